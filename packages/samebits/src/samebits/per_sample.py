"""One value a sample: the shapes of losses and metrics, and the first samples of whatever a model returns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samebits.errors import ConfigError


def check_per_sample(values: Any, size: int, key: str) -> None:
    """Losses and metrics must be per sample, (size,): they are summed and divided by the samples of all batches."""
    shape = tuple(values.shape) if isinstance(values, Tensor) else None
    if shape == (size,):
        return
    found = f"a {type(values).__name__}:" if shape is None else f"shape {shape}:"
    if size > 1 and shape == (size, size):
        told = "where (B, 1) met (B,), which broadcast, make the shapes equal first, as by output.squeeze(1); else"
        found = f"shape {shape} - {told}"
    raise ConfigError(
        f"{key}: must return one value a sample, (B,) = ({size},), but returned {found} leave the mean over the batch "
        "out, and take it over all other dimensions, values.view(B, -1).mean(1)"
    )


def check_terms(key: str, losses: dict[str, Any], size: int, terms: Sequence[str]) -> None:
    """Losses must be {"loss": (B,), term: (B,), ...} with exactly the terms in `loss_names`. key: of what makes them."""
    for name, values in losses.items():
        check_per_sample(values, size, key if name == "loss" else f"task: the term {name!r}")
    if losses.keys() != {"loss", *terms}:
        raise ConfigError(
            f"task: its losses are {sorted(losses)}; a task returns 'loss' and what it announces as its `loss_names`, "
            f"{sorted(terms)}"
        )


def check_losses(
    key: str, losses: dict[str, Any], size: int, terms: Sequence[str] | None, minimised: str = "loss"
) -> None:
    """Check training losses. key: of what makes them. terms: None for an objective of several, whose terms need not be
    declared. minimised: the term whose gradient is asked for."""
    if "loss" not in losses:
        raise ConfigError(f"task: its losses {sorted(losses)} must hold 'loss', which is minimised")
    check_terms(key, losses, size, [name for name in losses if name != "loss"] if terms is None else terms)
    if minimised not in losses:
        raise ConfigError(
            f"task: optimizer_step.gradients asks for the term {minimised!r}; its losses are {sorted(losses)}"
        )
    if not losses[minimised].requires_grad:
        raise ConfigError(
            f"{key}: the losses have no gradient, so nothing can be trained: they must depend on the model's "
            "output, by operations that have one (no argmax, no detach, no numpy)"
        )
    if losses[minimised].element_size() < 4:  # as F.cross_entropy of bf16 logits is on CUDA, though not on a CPU
        raise ConfigError(
            f"{key}: the losses are {losses[minimised].dtype}, which holds two or three digits, and their gradient no "
            "more: compute them from output.float()"
        )


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
