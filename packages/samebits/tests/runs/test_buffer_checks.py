"""Tensors that change and are not in a checkpoint, and buffers that are not finite."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from samebits.checkpoints import BufferChecks
from samebits.errors import RunFailed


class Plain:
    def __init__(self, held: Any) -> None:
        self.held = held


def test_what_a_model_changes_is_told() -> None:
    model = nn.Sequential(nn.Linear(1, 1))
    scale: Any = torch.ones(1)
    model[0].scale, model[0].cache = scale, None  # type: ignore[assignment]
    checks = BufferChecks(model, None, model=model)
    model[0].cache = torch.ones(2)
    assert checks.unsaved() is None
    model[0].cache, model[0].scale = torch.ones(3), scale * 0.9
    told = checks.unsaved() or ""
    assert told.startswith("the model changes tensors that are not in a checkpoint (0.scale)")
    assert checks.unsaved() is None
    model[0].random = torch.Generator()
    checks = BufferChecks(model, None, model=model)
    assert checks.unsaved() is None
    torch.rand(1, generator=model[0].random)
    assert "(0.random): a resumed run" in (checks.unsaved() or "")


@pytest.mark.parametrize("first", [(1, 2), (0, 2)])
def test_a_state_that_each_step_computes_from_the_last_one_is_told(first: tuple[int, int]) -> None:
    """It has the graph of its step, like an activation; a memory may also grow."""
    model = nn.Sequential(nn.Linear(2, 2))
    layer: Any = model[0]
    layer.state = torch.zeros(first)
    checks = BufferChecks(model, None, model=model)
    layer.state = torch.cat([layer.state.detach(), model(torch.ones(1, 2))])[-1:]
    assert "(0.state)" in (checks.unsaved() or "")


def test_what_a_criterion_changes_is_told_once() -> None:
    criterion = Plain(torch.zeros(3))
    checks = BufferChecks(nn.Linear(1, 1), criterion)
    assert checks.unsaved() is None
    criterion.held = torch.zeros(3)  # a copy of what it was, such as one on the device
    criterion.later = torch.ones(2)  # type: ignore[attr-defined]
    assert checks.unsaved() is None
    criterion.later += 1  # type: ignore[attr-defined]
    criterion.held = torch.ones(3)
    assert "tensors that are not in a checkpoint (held, later)" in (checks.unsaved() or "")
    criterion.held += 1
    assert checks.unsaved() is None


@pytest.mark.parametrize(
    ("start", "then", "fails"),
    [
        (0.0, 1.0, False),
        (0.0, math.inf, True),
        (0.0, math.nan, True),
        (-math.inf, math.inf, False),
        (-math.inf, 0.0, False),
        (-math.inf, math.nan, True),
        (math.nan, math.nan, False),
    ],
)
def test_a_buffer_may_be_what_it_was_built_as(start: float, then: float, fails: bool) -> None:
    model = nn.Linear(1, 1)
    model.register_buffer("mask", torch.tensor([0.0, start]))
    checks = BufferChecks(model, None)
    model.mask = torch.tensor([0.0, then])
    if fails:
        with pytest.raises(RunFailed, match="buffer mask is not finite at step 7"):
            checks.check_finite(model, 7)
    else:
        checks.check_finite(model, 7)
