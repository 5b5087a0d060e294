"""A block in which the host must not ask the device for a value: on a GPU each such question waits for all its work."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

ASKS = ("item", "tolist", "__bool__", "__float__", "__int__", "__index__")
# operations whose result's shape, or whose result, the host must know
SIZED = ("_local_scalar_dense", "nonzero", "equal", "masked_select", "unique", "is_nonzero", "repeat_interleave")


class Waited(AssertionError):
    pass


class _Operations(TorchDispatchMode):
    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function.__name__.partition(".")[0]
        masks = args[1] if name.startswith("index") and len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
        masked = any(isinstance(m, torch.Tensor) and m.dtype in (torch.bool, torch.uint8) for m in masks)
        if masked or any(name.startswith(one) for one in SIZED):
            raise Waited(str(function))
        return function(*args, **(kwargs or {}))


@contextmanager
def refused() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch, _Operations():
        for name in ASKS:

            def ask(*args: Any, called: str = name) -> Any:
                raise Waited(f"Tensor.{called}")

            patch.setattr(torch.Tensor, name, ask)
        yield


def refused_in_steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every train_step of this process's runs is such a block. Returns the numbers of the steps that were taken."""
    import lab.loop

    original, steps = lab.loop.train_step, []

    def train_step(nets: Any, state: Any, *rest: Any) -> Any:
        steps.append(state.step)
        with refused():
            return original(nets, state, *rest)

    monkeypatch.setattr(lab.loop, "train_step", train_step)
    return steps
