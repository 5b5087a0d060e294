"""Tensors that a checkpoint would miss, and buffers that must not be saved as they are."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import RunFailed


def unregistered(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of tensors in `thing` but not in its state dict; without metrics, which each evaluation resets."""
    saved = thing.state_dict(keep_vars=True).values() if isinstance(thing, nn.Module) else ()
    known = {id(value) for value in saved}
    return ((name, value) for name, value in _tensors(thing) if id(value) not in known)


def _tensors(thing: Any, prefix: str = "", depth: int = 2) -> Iterator[tuple[str, Tensor]]:
    """(name, tensor) of parameters, buffers and tensors among the attributes of `thing`, `depth` levels deep."""
    if isinstance(thing, Tensor):
        yield prefix, thing
        return
    dot = prefix and f"{prefix}."
    if isinstance(thing, nn.Module):
        for name, value in (*thing.named_parameters(recurse=False), *thing.named_buffers(recurse=False)):
            yield dot + name, value
        for name, module in thing.named_children():
            yield from _tensors(module, dot + name, depth)
    held = thing if isinstance(thing, dict) else dict(enumerate(thing)) if isinstance(thing, (list, tuple)) else None
    if held is None:
        held = getattr(thing, "__dict__", {})
    for key, value in held.items() if depth else ():
        if key not in ("_parameters", "_buffers", "_modules", "metrics"):
            yield from _tensors(value, f"{dot}{key}", depth - 1)


class BufferChecks:
    """Checks of buffers before a save. To be built before the first step and before a checkpoint is loaded.

    held: module with everything that a checkpoint holds. task: may hold tensors that are not in its state dict.
    average: of the weights, which a checkpoint holds too."""

    def __init__(self, held: nn.Module, task: Any, average: nn.Module | None = None) -> None:
        parts = [part for part in (held, average) if part is not None]
        self._saved = {id(value): value for part in parts for value in part.state_dict(keep_vars=True).values()}
        self._at_start = {name: _worst(buffer) for name, buffer in held.named_buffers()}
        self._task: Any = task
        self._held: dict[str, tuple[Tensor, int]] = {}
        self.unsaved()

    def check_finite(self, held: nn.Module, step: int) -> None:
        """RunFailed for new inf or NaN in a buffer; those it was built with (a causal mask's -inf) are allowed."""
        for name, buffer in held.named_buffers():  # trainer.non_finite=stop asks for weights and gradients only
            if _worst(buffer) > self._at_start.get(name, 0):
                shown = name.removeprefix("model.")
                raise RunFailed(f"the model's buffer {shown} is not finite at step {step}; debug=nan names the module")

    def unsaved(self) -> str | None:
        """Returns a warning, once, if tensors of the task change in training and are not in its state dict."""
        changed = []
        for name, now in unregistered(self._task):
            if id(now) in self._saved:  # a task may hold the model itself
                continue
            before, version = self._held.setdefault(name, (now, now._version))
            same = before is now or (before.shape == now.shape and torch.equal(before, now.to(before.device)))
            if not same or before._version != version:
                changed.append(name)
        if not changed:
            return None
        self._task, self._held = None, {}
        names = ", ".join([*changed[:3], *(["..."] if changed[3:] else [])])
        return (
            f"the task changes what it holds ({names}), and no checkpoint has that: a run that is resumed "
            "begins with it anew; a buffer of a module, register_buffer, is saved"
        )


def _worst(buffer: Tensor) -> int:
    """0: all finite; 1: there are infinite values; 2: there are NaNs."""
    if not (buffer.is_floating_point() or buffer.is_complex()) or torch.isfinite(buffer).all():
        return 0
    return 2 if torch.isnan(buffer).any() else 1
