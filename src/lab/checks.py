"""Checks of the user's code: losses and metrics (shapes, dtypes), and tensors that a checkpoint would miss."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import ConfigError, RunFailed, first_line
from engine.ranks import is_sharded

CAST = "'+data.transforms.cast={_target_: lab.transforms.fields.Cast, field: %s}'"


TYPE_ERRORS = ("dtype", "datatype", "scalar type", "Input type", "the type torch.", "not implemented for")
INTEGERS: dict[Any, tuple[str, ...]] = {  # as torch's messages name them
    torch.int64: ("Long", "long", "int64"),
    torch.int32: ("Int", "int", "int32"),
    torch.int16: ("Short", "short", "int16"),
    torch.int8: ("Char", "signed char", "int8"),
    torch.uint8: ("Byte", "unsigned char", "uint8"),
    torch.bool: ("Bool", "bool"),
}


def check_per_sample(values: Any, size: int, key: str) -> None:
    """Losses and metrics must be per sample, (size,): they are summed and divided by the samples of all batches."""
    if not isinstance(values, Tensor):
        found = f"a {type(values).__name__}"
    elif values.shape != (size,):
        found = f"shape {tuple(values.shape)}"
    else:
        return
    if isinstance(values, Tensor) and size > 1 and values.shape == (size, size):
        found += " - where (B, 1) met (B,), which broadcast, make the shapes equal first, as by output.squeeze(1); else"
    else:
        found += ":"
    raise ConfigError(
        f"{key}: must return one value a sample, (B,) = ({size},), but returned {found} leave the mean over the batch "
        "out, and take it over all other dimensions, values.view(B, -1).mean(1)"
    )


def _key(task: Any) -> str:
    """What to blame for a task's losses: its criterion, if it has one."""
    return "task.criterion" if hasattr(task, "criterion") else "task"


def check_terms(task: Any, losses: dict[str, Any], size: int, terms: Sequence[str]) -> None:
    """Losses must be {"loss": (B,), term: (B,), ...} with exactly the terms in `terms`."""
    for name, values in losses.items():
        check_per_sample(values, size, _key(task) if name == "loss" else f"task: the term {name!r}")
    if losses.keys() != {"loss", *terms}:
        raise ConfigError(
            f"task: its losses are {sorted(losses)}; a task returns 'loss' and what it announces as its `terms`, "
            f"{sorted(terms)}"
        )


def check_losses(
    task: Any, losses: dict[str, Any], size: int, terms: Sequence[str] | None, minimised: str = "loss"
) -> None:
    """Check training losses. terms: None for an objective of several, whose terms need not be declared. minimised:
    the term whose gradient is asked for."""
    if "loss" not in losses:
        raise ConfigError(f"task: its losses {sorted(losses)} must hold 'loss', which is minimised")
    check_terms(task, losses, size, [name for name in losses if name != "loss"] if terms is None else terms)
    if minimised not in losses:
        raise ConfigError(f"task: descend.gradients asks for the term {minimised!r}; its losses are {sorted(losses)}")
    if not losses[minimised].requires_grad:
        raise ConfigError(
            f"{_key(task)}: the losses have no gradient, so nothing can be trained: they must depend on the model's "
            "output, by operations that have one (no argmax, no detach, no numpy)"
        )


def applied(function: Callable[..., Any], key: str, output: Any, batch: Any) -> Any:
    """Returns function(output, batch), a criterion or metric; ConfigError if it cannot handle the model's output."""
    try:
        return function(output, batch)
    except (AttributeError, TypeError) as error:
        kind = type(output).__name__
        if isinstance(output, Tensor) or kind not in str(error):
            raise
        name = getattr(function, "__name__", type(function).__name__)
        raise ConfigError(
            f"{key}: {name} cannot use the model's output, a {kind} ({first_line(error)}): return "
            "one tensor from the model, or name a criterion and metrics that take it apart"
        ) from error


def explains_mistakes(forward: Callable[..., Any]) -> Callable[..., Any]:
    """Decorator of forward(model, task, batch, ...): errors from a wrong dtype, or from collectives that not all ranks
    reach, are raised again with the remedy."""

    @wraps(forward)
    def call(model: nn.Module, task: Any, batch: Any, *more: Any) -> Any:
        try:
            return forward(model, task, batch, *more)
        except ConfigError:
            raise
        except KeyError as error:
            if missing := _missing_field(batch, error):
                raise missing from error
            raise
        except TypeError as error:
            if other := _other_inputs(model, error):
                raise other from error
            raise
        except (RuntimeError, ValueError) as error:
            if mistake := _dtype_mistake(model, batch, error) or _unequal_batches(model, error):
                raise mistake from error
            raise

    return call


def _missing_field(batch: dict[str, Any], error: KeyError) -> ConfigError | None:
    """Of a line that asks the batch for it, not another dict."""
    line = traceback.extract_tb(error.__traceback__)[-1].line or ""
    if not error.args or error.args[0] in batch or "batch[" not in line:
        return None
    more = {
        "number": ", and a task gets it that has `numbered = True`",
        "row": ", and a task gets it that has `numbered = True`, but of a stream, which has no rows",
    }.get(error.args[0], "")
    return ConfigError(f"the batch has no field {error.args[0]!r}, only {sorted(batch)}: name it in data.fields{more}")


def _other_inputs(model: nn.Module, error: TypeError) -> ConfigError | None:
    """Of a model whose forward has other arguments than the task gives it."""
    text, forward = first_line(error), f"{type(model).__name__}.forward()"
    if not text.startswith((f"{forward} missing", f"{forward} takes", f"{forward} got")):
        return None
    return ConfigError(
        f"model: {text}: task=classification and its like call model(batch['x']); what else it needs a task of three "
        "lines gives it: docs/my_model.md, Several inputs or outputs"
    )


def _dtype_mistake(model: nn.Module, batch: dict[str, Any], error: Exception) -> ConfigError | None:
    text = str(error)
    if not any(words in text for words in TYPE_ERRORS):
        return None
    weights = next((p.dtype for p in model.parameters() if p.is_floating_point()), torch.float32)
    dtypes = {field: value.dtype for field, value in batch.items() if isinstance(value, Tensor)}
    wrong = [field for field, dtype in dtypes.items() if dtype.is_floating_point and dtype != weights]
    if not wrong and not any(isinstance(module, nn.Embedding) for module in model.modules()):
        names = INTEGERS.get(dtypes.get("x"), ())
        wrong = ["x"] if names and any(name in text for name in (*names, "mixed dtype")) else []
    if not wrong:
        return None
    found = ", ".join(f"{field!r} is {_name(dtypes[field])}" for field in wrong)
    return ConfigError(
        f"data: field {found}, and the model's weights are {_name(weights)} ({first_line(error)}): add "
        f"{CAST % wrong[0]}, or return {_name(weights)} from the dataset"
    )


def _unequal_batches(model: nn.Module, error: Exception) -> RunFailed | None:
    """Returns the error if a collective in the criterion or model failed in evaluation, where ranks' batches differ."""
    frames = traceback.walk_tb(error.__traceback__)
    talks = any("distributed_c10d" in frame.f_code.co_filename for frame, _ in frames)
    if not talks or torch.is_grad_enabled() or is_sharded(model) or not torch.distributed.is_initialized():
        return None
    return RunFailed(
        f"ranks did not meet in a collective of the criterion or model ({first_line(error)}): in an "
        "evaluation ranks have batches of unequal sizes and number, unless trainer.eval_in_step=true"
    )


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")


def first_samples(value: Any, size: int, count: int) -> Any:
    """Returns the first `count` of `size` samples of every tensor and list in `value` that has one entry per sample."""
    if count == size:
        return value
    if isinstance(value, dict):
        return {key: first_samples(entry, size, count) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(entry, (Tensor, dict, list, tuple)) for entry in value):
        entries = [first_samples(entry, size, count) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)  # a named tuple's
    if isinstance(value, Tensor) and not value.dim():
        return value
    return value[:count] if isinstance(value, (Tensor, list, tuple)) and len(value) == size else value


# ---- what a checkpoint does not hold, or must not


def check_criterion(criterion: Any) -> None:
    """Refuse a trainable tensor that is no registered parameter: it would be neither optimized nor saved nor synced."""
    for name, value in unregistered(criterion):
        if value.requires_grad:
            raise ConfigError(
                f"task.criterion: {type(criterion).__name__} has a parameter to train, {name}, which is not part of a "
                "module: make the criterion an nn.Module, and this a parameter or module of it; one that stays as it "
                "is wants requires_grad_(False)"
            )


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
