"""callback=summary: a table of modules, made without computing anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, metrics, start_run
from samebits.testing.processes import slow

SHORT = (*QUICK, "trainer.max_steps=3", "trainer.log_every=1", "trainer.global_batch_size=12", "model.dropout=0.3")


@pytest.mark.slow
@pytest.mark.parametrize("ranks", [1, slow(2)])
def test_the_table_is_written_and_the_run_is_the_same(tmp_path: Path, ranks: int) -> None:
    """Bit for bit, with dropout."""
    ways = () if ranks == 1 else ("trainer=ddp", "hardware.num_procs=2")
    plain, run = (
        start_run(tmp_path / name, *SHORT, *ways, f"callback={callback}")
        for name, callback in (("plain", "none"), ("run", "summary"))
    )
    text = (run / "summary.txt").read_text()
    assert text in (run / "train.log").read_text()
    found = [line.split() for line in text.splitlines()]
    assert found[1][:2] == ["model", "MLP"]
    assert ["0", "Linear", f"[{12 // ranks},", "16]", "1,040", "2.05", "k"] in found
    assert found[-1][0] == "1,210"
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(plain)["model"])
    assert [re.sub(r'"(time|perf)[^,}]*', "", str(line)) for line in metrics(run)] == [
        re.sub(r'"(time|perf)[^,}]*', "", str(line)) for line in metrics(plain)
    ]


@pytest.mark.parametrize("ranks", [1, slow(2)])
@pytest.mark.parametrize("callback", ["summary", slow("graph")])
def test_a_model_that_asks_for_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, callback: str, ranks: int
) -> None:
    """It has the same table and the same pictures, by a real batch, and no bit of the run changes."""

    def started(name: str, callback: str) -> tuple[dict[str, str], dict[str, Any]]:
        ways = () if ranks == 1 else ("trainer=ddp", "hardware.num_procs=2")
        run = start_run(tmp_path / name, *SHORT, *ways, f"callback={callback}")
        files = [*run.glob("summary.txt"), *run.rglob("*.svg")]
        # two lines of metrics.jsonl name the pictures
        held = {key: value for key, value in last_checkpoint(run).items() if key != "logged_lines"}
        return {str(file.relative_to(run)): file.read_text() for file in files}, held

    wanted, _ = started("meta", callback)
    import lab.losses.cross_entropy as module

    original = module.CrossEntropy.__call__

    def asking(self: Any, output: Any, batch: Any) -> Any:
        assert output.sum().item() < 1e9
        assert callback == "graph" or output[batch["y"] > 4].isfinite().all()  # it would be in the picture
        return original(self, output, batch)

    monkeypatch.setattr(module.CrossEntropy, "__call__", asking)
    (found, run), (nothing, plain) = started("run", callback), started("plain", "none")
    assert (len(found), found, nothing) == (1 if callback == "summary" else 2, wanted, {})
    assert_equal(run, plain)


@pytest.mark.slow
def test_not_of_a_model_that_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^callback=summary: does not support trainer=fsdp"):
        start_run(tmp_path, *SHORT, "trainer=fsdp", "hardware.num_procs=2", "callback=summary")
