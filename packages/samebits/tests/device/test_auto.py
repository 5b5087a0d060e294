"""hardware.precision=auto: a GPU's by the size of a step; a run keeps what was decided, and is scored with it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from samebits.device import (
    Hardware,
    auto,
    recorded_precision,
    resolve_auto,
    resolve_auto_as_recorded,
    resolve_auto_of_run,
)
from samebits.device.threads import Threads
from samebits.world import World

ALONE = World(0, 1, 0, torch.device("cpu"))
GPU = Hardware("cuda", 1, "bf16", Threads(1, 1, "", auto=False), [64], 64, precision_is_auto=True)


@pytest.fixture
def arithmetic() -> Iterator[None]:
    """What `resolve_auto_of_run` sets in the process is put back."""
    precision, threads = torch.get_float32_matmul_precision(), torch.get_num_threads()
    yield
    torch.set_float32_matmul_precision(precision)
    torch.set_num_threads(threads)


@pytest.mark.parametrize(("ranks", "micro"), [(1, [64]), (1, [32, 32]), (4, [16]), (2, [16, 16])])
def test_the_size_of_a_step_decides(ranks: int, micro: list[int]) -> None:
    """Of the whole step: what one rank computes in fp32, several do as well."""
    machine = replace(GPU, num_procs=ranks, micro_batch_sizes=micro)
    limit = auto.LAUNCHES_BOUND_FLOP / 64
    assert resolve_auto(machine, limit * 0.99).precision == "fp32"
    assert resolve_auto(machine, limit * 1.01).precision == "bf16"
    for asked in ("bf16", "fp16", "fp32"):
        assert resolve_auto(replace(machine, precision=asked, precision_is_auto=False), 1.0).precision == asked


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize(
    ("recorded", "begins", "flop", "taken"),
    [
        (None, True, 1.0, "fp32"),
        (None, True, 1e12, "bf16"),
        (None, False, 1.0, "bf16"),  # begun by a version that took bf16 for every step
        ("fp32", False, 1e12, "fp32"),  # the batch has grown since
        ("bf16", True, 1.0, "bf16"),  # killed before its first checkpoint
    ],
)
def test_a_run_keeps_its_precision(tmp_path: Path, recorded: str | None, begins: bool, flop: float, taken: str) -> None:
    file = tmp_path / "environment.json"
    file.write_text(json.dumps({"torch": "2"} | ({} if recorded is None else {"precision": recorded})))
    assert resolve_auto_of_run(GPU, tmp_path, ALONE, flop, begins).precision == taken
    assert torch.get_float32_matmul_precision() == {"fp32": "highest", "bf16": "high"}[taken]
    assert torch.get_num_threads() == 1
    assert json.loads(file.read_text()) == {"torch": "2", "precision": taken}
    assert resolve_auto_as_recorded(GPU, tmp_path).precision == taken
    asked = replace(GPU, precision="fp16", precision_is_auto=False)
    assert (
        resolve_auto_as_recorded(asked, tmp_path).precision
        == resolve_auto_of_run(asked, tmp_path, ALONE, flop, begins).precision
        == "fp16"
    )


CPU = {"machine": {"cpu": "6502"}}
OF_GPU = {"machine": {"cpu": "6502", "gpus": ["H100"]}}


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize(
    ("environment", "here", "taken", "said"),
    [
        (CPU, "bf16", "fp32", "as when the run started"),  # nothing recorded, as before there was a rule
        (OF_GPU, "bf16", "bf16", "as when the run started"),
        ({**CPU, "precision": "fp32"}, "bf16", "fp32", "as when the run started"),
        ({**OF_GPU, "precision": "fp32"}, "fp32", "fp32", "as when the run started"),
        ({**OF_GPU, "precision": "bf16"}, "fp32", "fp32", "the run started with bf16, so rounding changes"),
    ],
)
def test_a_run_keeps_its_precision_on_another_device(
    tmp_path: Path, environment: dict[str, Any], here: str, taken: str, said: str
) -> None:
    """here: what the device has. Resumed and scored, a run of a CPU is in fp32 on a GPU too."""
    file = tmp_path / "environment.json"
    file.write_text(json.dumps(environment))
    machine = replace(GPU, precision=here)
    scored = resolve_auto_as_recorded(machine, tmp_path)
    resumed = resolve_auto_of_run(machine, tmp_path, ALONE, 1e12, begins=False)
    for found in (scored, resumed):
        assert (found.precision, found.precision_why) == (taken, said)
    assert json.loads(file.read_text())["precision"] == recorded_precision(environment)
