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


def test_activations_that_a_model_keeps_are_not_told() -> None:
    """Also after an evaluation, and of another size: they are computed before they are read."""
    model = nn.Sequential(nn.Linear(2, 2))
    layer: Any = model[0]
    layer.loss, layer.shown = torch.zeros(()), torch.zeros(1)
    checks = BufferChecks(model, None, model=model)
    for x in (torch.ones(3, 2), torch.ones(4, 2)):
        output = model(x)
        layer.loss, layer.shown = output.sum(), output.detach()
        assert checks.unsaved() is None
    layer.loss = layer.loss.detach() + 1
    assert checks.unsaved() is None


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
