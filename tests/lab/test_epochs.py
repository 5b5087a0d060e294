"""data.order=epochs: each ends with a whole batch, so steps, evaluations and logs fall on its end. docs/your_script.md
compares such a run with a plain loop."""

from __future__ import annotations

from pathlib import Path

import pytest
from conftest import QUICK, assert_equal, last_checkpoint, metrics, raise_at_step, result, start_run

from engine.errors import ConfigError

WALLS = (
    *QUICK, "trainer.max_epochs=3", "trainer.global_batch_size=300", "trainer.log_every=1ep", "trainer.eval_every=1ep",
    "trainer.save_every=1ep", "data.order._target_=engine.data.order.epochs", "+data.order.batch_size=300",
)  # fmt: skip


def test_an_epoch_is_a_whole_number_of_steps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """1,297 samples are 4 batches of 300: 12 steps, and not round(3 * 4.32); also where a run is killed and goes on,
    with as many epochs, and with one more."""
    straight, killed = start_run(tmp_path / "straight", *WALLS), tmp_path / "killed"
    assert result(straight)["step"] == 12
    assert [line["step"] for line in metrics(straight) if "val/loss" in line] == [4, 8, 12]
    assert [line["train/epoch"] for line in metrics(straight) if "train/epoch" in line] == [1, 2, 3]
    with monkeypatch.context() as patch:
        raise_at_step(patch, 6, KeyboardInterrupt)
        with pytest.raises(KeyboardInterrupt):
            start_run(killed, *WALLS)
    start_run(killed, *WALLS)
    assert_equal(last_checkpoint(killed), last_checkpoint(straight))
    with pytest.raises(ConfigError, match=r"global_batch_size=150: the run has trained 3,600 samples in 12 steps"):
        start_run(killed, *WALLS, "trainer.global_batch_size=150", "data.order.batch_size=150", "trainer.max_epochs=4")
    start_run(killed, *WALLS, "trainer.max_epochs=4")
    assert result(killed)["step"] == 16
