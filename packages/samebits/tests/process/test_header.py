"""The first lines of a run's log."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from samebits.device import HardwareConfig, resolve_hardware
from samebits.process import header, options_without_effect
from samebits.profiling import SampleCost
from samebits.world import World


@pytest.mark.parametrize(("flop", "graph", "told"), [(5e5, False, True), (5e5, True, False), (1e9, False, False)])
def test_a_small_step_is_told_of_the_graph(flop: float, graph: bool, told: bool) -> None:
    """On the first screen of a run on a GPU, where it would help and is not on."""
    lines: list[str] = []
    strategy: Any = SimpleNamespace(strategy="ddp", global_batch_size=64)
    here = resolve_hardware(HardwareConfig(device="cpu"), strategy)
    machine = replace(here, device="cuda", precision="bf16", cuda_graph=graph)
    run: Any = SimpleNamespace(
        trainer=SimpleNamespace(global_batch_size=64), world=World(0, 1, 0, torch.device("cpu")), total_steps=9,
        cost_per_sample=SampleCost(flop={"": flop}), hardware=machine, train=SimpleNamespace(why=""),
    )  # fmt: skip
    logger: Any = SimpleNamespace(say=lines.append)
    header.describe(logger, nn.Linear(2, 2), run, {"train": range(9)}, [], HardwareConfig())
    assert any("hardware.cuda_graph=true" in line for line in lines) is told


def test_nan_in_a_config_is_no_change_of_a_resume(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each file gives its own NaN, also below a list or a mapping."""

    def loaded(_: Any, directory: Path) -> dict[str, Any]:
        rate = 0.1 if directory == tmp_path else 0.2
        return {"data.missing": math.nan * 1, "data.fill": [1, {"x": math.nan * 1}], "optim.lr": rate}

    (tmp_path / header.BEFORE).mkdir()
    monkeypatch.setattr("samebits.runs.directory.load_flat", loaded)
    monkeypatch.setattr(header, "codes_of", lambda _: [None])
    project: Any = None
    assert header.changes_of_resume(project, tmp_path) == "optim.lr 0.2 -> 0.1"


class Rows:
    pass


class Packs(Rows):
    def collate(self, samples: Any) -> Any:
        return samples


@pytest.mark.parametrize(
    ("given", "device", "dataset", "model", "said"),
    [
        ({"deterministic": True, "cudnn_benchmark": True}, "cpu", Rows, nn.Linear(2, 2), "has no effect"),
        ({"deterministic": True}, "cuda", Packs, nn.Conv2d(1, 1, 1), None),
        ({}, "cuda", Packs, nn.Conv2d(1, 1, 1), "set hardware.cudnn_benchmark=false"),
        ({"cudnn_benchmark": False}, "cuda", Packs, nn.Conv2d(1, 1, 1), None),
        ({}, "cuda", Packs, nn.Linear(2, 2), None),
        ({}, "cuda", Rows, nn.Conv2d(1, 1, 1), None),
        ({}, "cpu", Rows, nn.Linear(2, 2).double(), "float64 weights"),
    ],
)
def test_values_without_effect_and_hidden_costs_are_told(
    given: dict[str, bool], device: str, dataset: type, model: nn.Module, said: str | None
) -> None:
    run: Any = SimpleNamespace(hardware=SimpleNamespace(device=device))
    lines = options_without_effect(run, model, dataset, HardwareConfig(**given))
    assert [said in line for line in lines] == [True] if said else lines == []
