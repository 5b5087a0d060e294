"""Find tensors that a checkpoint would not contain, and buffers that are not finite."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import ConfigError, RunFailed

# _flat_weights: the tensors that an LSTM computes with, which are its parameters or are computed from them
NOT_SEARCHED = ("_parameters", "_buffers", "_modules", "metrics", "_flat_weights")
COMPUTED = ("_orig", "_v")  # torch.nn.utils' spectral_norm, pruning and weight_norm compute `weight` from `weight_orig`


def unregistered(thing: Any) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of tensors in `thing` that are not in its state dict, except metrics."""
    saved = thing.state_dict(keep_vars=True).values() if isinstance(thing, nn.Module) else ()
    known = {id(value) for value in saved}
    return ((name, value) for name, value in _tensors(thing) if id(value) not in known)


@contextmanager
def no_new_parameters(model: nn.Module) -> Iterator[None]:
    """Raise ConfigError after this block if it has created a parameter of the model, which no optimizer has."""
    before = dict(model.named_parameters())
    yield
    if made := [name for name, _ in model.named_parameters() if name not in before]:
        raise ConfigError(
            f"model: {type(model).__name__} creates the parameter {made[0]} in `forward`, so it would be neither "
            "trained nor loaded: create it in __init__"
        )


def _tensors(
    thing: Any, prefix: str = "", depth: int = 2, seen: dict[int, int] | None = None
) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, tensor) of parameters, buffers, and tensors and states of generators in attributes of `thing`,
    `depth` levels deep. seen: {id of a module: depth}, because parts of a model may refer to the whole model."""
    seen = {} if seen is None else seen
    if isinstance(thing, (Tensor, torch.Generator)):
        yield prefix, thing if isinstance(thing, Tensor) else thing.get_state()
        return
    dot = prefix and f"{prefix}."
    computed: set[str] = set()
    if isinstance(thing, nn.Module):
        if seen.get(id(thing), -1) >= depth:
            return
        seen[id(thing)] = depth
        names = [name for name, _ in thing.named_parameters(recurse=False)]  # of TorchScript too
        computed = {name.removesuffix(end) for name in names for end in COMPUTED if name.endswith(end)}
        for name, value in (*thing.named_parameters(recurse=False), *thing.named_buffers(recurse=False)):
            yield dot + name, value
        for name, module in thing.named_children():
            yield from _tensors(module, dot + name, depth, seen)
    held = thing if isinstance(thing, dict) else dict(enumerate(thing)) if isinstance(thing, (list, tuple)) else None
    if held is None:
        held = getattr(thing, "__dict__", {})
    for key, value in held.items() if depth else ():
        if key not in NOT_SEARCHED and key not in computed:
            yield from _tensors(value, f"{dot}{key}", depth - 1, seen)


class BufferChecks:
    """Check buffers before a save. Create it before the first step and before a checkpoint is loaded.

    held: module with everything that a checkpoint contains. task, model: may have tensors that are not in its state
    dict. average: the weight average, which a checkpoint also contains.
    """

    def __init__(self, held: nn.Module, task: Any, average: nn.Module | None = None, model: Any = None) -> None:
        parts = [part for part in (held, average) if part is not None]
        self._saved = {id(value): value for part in parts for value in part.state_dict(keep_vars=True).values()}
        self._at_start = {name: _worst(buffer) for name, buffer in held.named_buffers()}
        self._owners: dict[str, Any] = {"task": task, "model": model}
        self._held: dict[str, dict[str, tuple[Tensor, int]]] = {"task": {}, "model": {}}
        self._starts = True
        self.unsaved()
        self._starts = False

    def check_finite(self, held: nn.Module, step: int) -> None:
        """Raise RunFailed for new inf or NaN in a buffer. Initial ones (the -inf of a causal mask) are allowed."""
        for name, buffer in held.named_buffers():  # trainer.non_finite=stop checks only weights and gradients
            if _worst(buffer) > self._at_start.get(name, 0):
                shown = name.removeprefix("model.")
                raise RunFailed(f"the model's buffer {shown} is not finite at step {step}; debug=nan names the module")

    def unsaved(self) -> str | None:
        """Return a warning, once for each of task and model, if its tensors change in training and are not in its state
        dict."""
        for owner in [*self._owners]:
            if changed := self._changed(owner):
                del self._owners[owner], self._held[owner]
                names = ", ".join([*changed[:3], *(["..."] if changed[3:] else [])])
                return (
                    f"the {owner} changes tensors that are not in a checkpoint ({names}): a resumed run starts with "
                    "their initial values; if a step uses the values of an earlier step, make them buffers of a module "
                    "(register_buffer), which are saved, and seed a random generator at each use"
                )
        return None

    def _changed(self, owner: str) -> list[str]:
        """Return the names of the changed tensors. Of the model only those that it had at the start, because a tensor
        that `forward` adds is usually a cache, which is computed before it is read."""
        changed, held = [], self._held[owner]
        for name, now in unregistered(self._owners[owner]):
            if id(now) in self._saved or not (name in held or self._starts or owner == "task"):
                continue  # a task may hold the model itself
            before, version = held.setdefault(name, (now, _version(now)))
            same = before is now or (before.shape == now.shape and torch.equal(before, now.to(before.device)))
            if not same or _version(before) != version:
                changed.append(name)
        return changed


def _version(tensor: Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version  # tensors of inference_mode do not count their writes


def _worst(buffer: Tensor) -> int:
    """Return 0 if all values are finite, 1 if some are infinite, 2 if some are NaN."""
    if not (buffer.is_floating_point() or buffer.is_complex()) or torch.isfinite(buffer).all():
        return 0
    return 2 if torch.isnan(buffer).any() else 1
