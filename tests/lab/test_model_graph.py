"""callback=graph: pictures of the modules and of autograd's operations, made without changing the run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from common import QUICK, needs

from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, metrics, start_run

SHORT = (*QUICK[:3], "trainer.max_epochs=null", "trainer.max_steps=4", "trainer.log_every=1")


def without_lines(run: Path) -> dict[str, Any]:
    """The last checkpoint without the number of lines in metrics.jsonl, two of which name the pictures."""
    return {key: value for key, value in last_checkpoint(run).items() if key != "logged_lines"}


@pytest.mark.slow
@needs("conf/model/resnet.yaml")
@pytest.mark.parametrize("ranks", [1, 2])
def test_the_run_is_the_same(tmp_path: Path, ranks: int) -> None:
    """Bit for bit, with BatchNorm and dropout; a resumed run has the pictures already."""
    ways = () if ranks == 1 else ("trainer=ddp", "hardware.num_procs=2")
    small = ("model=resnet", "model.dropout=0.3", "trainer.global_batch_size=16", "trainer.max_eval_batches=1")
    plain = start_run(tmp_path / "plain", *SHORT, *small, *ways)
    run = tmp_path / "run"
    with pytest.raises(SystemExit, match="75"):
        start_run(run, *SHORT, *small, *ways, "callback=graph", "process.stop_at_step=2")
    start_run(run, *SHORT, *small, *ways, "callback=graph")
    assert_equal(without_lines(run), without_lines(plain))
    assert {str(path.relative_to(run / "media/graph")) for path in (run / "media").rglob("*.svg")} == {
        "modules/00000000.svg", "autograd/00000000.svg",
    }  # fmt: skip
    lines = metrics(run)
    assert [line["media"] for line in lines if "media" in line] == [
        {"graph/modules": "svg"}, {"graph/autograd": "svg"},
    ]  # fmt: skip
    assert [line for line in lines if "media" not in line] == metrics(plain)
    shown = (run / "media/graph/modules/00000000.svg").read_text()
    assert all(f">{line}</text>" in shown for line in ("model.head", f"[{16 // ranks}, 10]", "1,290 parameters"))
    assert "media/graph/autograd/00000000.svg" in (run / "train.log").read_text()


@needs("conf/task/gan.yaml")
@pytest.mark.slow
def test_each_objective_has_a_picture(tmp_path: Path) -> None:
    small = ("model.input_shape=[4]", "model.num_outputs=64", "model.hidden=[16]", "task.critic.hidden=[16]")
    run = start_run(tmp_path, *SHORT, "task=gan", *small, "callback=graph", "trainer.max_eval_batches=1")
    found = {path.parent.name for path in (run / "media").rglob("*.svg")}
    assert found == {"modules", "autograd_generator", "autograd_critic"}


def test_only_the_modules(tmp_path: Path) -> None:
    run = start_run(tmp_path, *SHORT, "callback=graph", "callback.graph.autograd=false", "trainer.max_steps=1")
    assert [path.parent.name for path in (run / "media").rglob("*.svg")] == ["modules"]


def test_too_large_for_a_picture_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("samebits.profiling.graph.MOST_NODES", 12)
    with pytest.raises(ConfigError, match=r"^callback=graph: autograd's graph has \d+ operations, more than 12 - set "):
        start_run(tmp_path / "a", *SHORT, "callback=graph")
    monkeypatch.setattr("samebits.profiling.graph.MOST_NODES", 2)
    with pytest.raises(ConfigError, match=r"^callback=graph: more than 2 calls of modules - set a smaller depth$"):
        start_run(tmp_path / "b", *SHORT, "callback=graph")
