"""Gradients of sharded blocks, and optimizers that cannot update shards."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from samebits.errors import RunFailed
from samebits.parallel.fsdp import _without_sync


def test_gradients_are_reduced_again_after_a_block_without() -> None:
    """Whether the block ends well or not; until then by no module."""
    asked: list[bool] = []
    model = SimpleNamespace(set_requires_gradient_sync=asked.append)
    with _without_sync(model):
        assert asked == [False]
    assert asked == [False, True]
    with pytest.raises(ZeroDivisionError), _without_sync(model):
        raise ZeroDivisionError
    assert asked == [False, True] * 2


@pytest.mark.parametrize("broken", [False, True])
@pytest.mark.parametrize("error", [NotImplementedError("aten.x"), TypeError("unlike any"), AssertionError()])
def test_what_an_optimizer_cannot_do_with_shards_is_told_by_what_it_can_do_with_others(
    error: Exception, broken: bool
) -> None:
    """Whatever torch raises for an operation that has no sharded form; its own mistakes stay what they are."""
    from samebits.shards import on_shards

    class Refusing(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            if broken or hasattr(self.param_groups[0]["params"][0], "full_tensor"):
                raise error

    weight: Any = nn.Parameter(torch.ones(3))
    weight.full_tensor, weight._local_tensor = None, weight.detach()  # what a DTensor is known by
    optimizer = Refusing([weight], lr=0.1)
    told = None if broken else "^optim: Refusing cannot update sharded weights"
    with pytest.raises(type(error) if broken else RunFailed, match=told), on_shards(optimizer):
        optimizer.step()
