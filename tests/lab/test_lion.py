"""Lion: the paper's algorithm, in a run, and where steps are left out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs
from optimizer_base import assert_moves_as, optimizer_of, small
from torch import Tensor

from samebits.testing import SMALL, devices, last_checkpoint, start_run

pytestmark = needs("conf/optim/lion.yaml")


def test_it_is_the_papers_algorithm() -> None:
    """Chen et al. 2023, algorithm 2: decoupled decay, of matrices alone as of any optimizer here."""

    def plain(i: int, weight: Tensor, gradient: Tensor, held: dict[str, Any]) -> Tensor:
        momentum = held.get("m", torch.zeros_like(weight))
        c = 0.8 * momentum + (1 - 0.8) * gradient
        held["m"] = 0.95 * momentum + (1 - 0.95) * gradient
        return weight - held["lr"] * (c.sign() + (0.3 if weight.dim() > 1 else 0.0) * weight)

    model = small()
    optimizer = optimizer_of(model, "optim=lion", "optim.betas=[0.8,0.95]", "optim.weight_decay=0.3")
    assert_moves_as(optimizer, model, plain, [0.01, 0.02, 0.005, 0.01])


@pytest.mark.slow
def test_no_step_waits_where_steps_may_be_left_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = devices.refused_in_steps(monkeypatch)
    start_run(
        tmp_path, *SMALL, "optim=lion", "hardware.precision=fp16", "trainer.non_finite=skip", "trainer.max_steps=3"
    )
    assert steps == [0, 1, 2]


@pytest.mark.slow
def test_shards_move_as_whole_weights(tmp_path: Path) -> None:
    common = (*SMALL, "optim=lion", "trainer.max_steps=1")
    whole = last_checkpoint(start_run(tmp_path / "whole", *common))["model"]
    shards = start_run(tmp_path / "shards", *common, "trainer=fsdp", "hardware.num_procs=2")
    torch.testing.assert_close(last_checkpoint(shards)["model"], whole)
