"""callback=summary: a table of modules, made without computing anything."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK, needs
from torch import Tensor, nn

from samebits.errors import ConfigError
from samebits.profiling import summarize, summary_table
from samebits.testing import assert_equal, last_checkpoint, metrics, start_run
from samebits.testing.processes import slow

pytestmark = needs("conf/callback/summary.yaml")
SHORT = (*QUICK, "trainer.max_steps=3", "trainer.log_every=1", "trainer.global_batch_size=12", "model.dropout=0.3")


class Odd(nn.Module):
    """A list that is not called, a layer used twice, one that is frozen, an output of several."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 4)])
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.tied = self.layers[0]

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.layers[1](self.layers[0](self.layers[0](x)))
        return {"hidden": (self.frozen(x), x)}


def test_shapes_parameters_and_flop() -> None:
    batch = {"x": torch.ones(5, 6)}
    rows = {row.name: row for row in summarize(Odd(), batch, lambda model, given: model(given["x"]))}
    assert list(rows) == ["", "layers", "layers.0", "layers.1", "frozen", "unused"]
    assert [row.shape for row in rows.values()] == [(5, 4), None, (5, 6), (5, 4), (5, 4), None]
    assert [row.parameters for row in rows.values()] == [146, 70, 42, 28, 20, 56]
    assert [row.trained for row in rows.values()] == [126, 70, 42, 28, 0, 56]
    linear = [2 * 5 * 6 * 6 * 2, 2 * 5 * 6 * 4, 2 * 5 * 4 * 4]  # multiply and add; the first is called twice
    assert [row.flop for row in rows.values()] == [sum(linear), linear[0] + linear[1], *linear, 0]
    table = summary_table([*rows.values()][1:], 5, depth=1)
    assert table.splitlines() == [
        "module              output   parameters  FLOP a sample",
        "layers  ModuleList                   70            192",
        "frozen  Linear      [5, 4]  20 (frozen)             32",
        "unused  Linear                       56              0",
    ]


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
def test_a_model_that_asks_for_values(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ranks: int) -> None:
    """It has the same table, by a real batch, and no bit of the run changes."""
    ways = () if ranks == 1 else ("trainer=ddp", "hardware.num_procs=2")
    wanted = (start_run(tmp_path / "meta", *SHORT, *ways, "callback=summary") / "summary.txt").read_text()
    import lab.losses.cross_entropy as module

    original = module.CrossEntropy.__call__

    def asking(self: Any, output: Any, batch: Any) -> Any:
        assert output.sum().item() < 1e9
        assert output[batch["y"] > 4].isfinite().all()
        return original(self, output, batch)

    monkeypatch.setattr(module.CrossEntropy, "__call__", asking)
    run = start_run(tmp_path / "run", *SHORT, *ways, "callback=summary")
    plain = start_run(tmp_path / "plain", *SHORT, *ways)
    assert (run / "summary.txt").read_text() == wanted
    assert_equal(last_checkpoint(run), last_checkpoint(plain))


@pytest.mark.slow
def test_not_of_a_model_that_is_cut(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^callback=summary: does not support trainer=fsdp"):
        start_run(tmp_path, *SHORT, "trainer=fsdp", "hardware.num_procs=2", "callback=summary")
