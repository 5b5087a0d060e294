"""Check that losses and metrics have one value per sample, and take the first samples of a model's output."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from samebits.errors import ConfigError


def check_per_sample(values: Any, size: int, key: str) -> None:
    """Raise ConfigError if `values` does not have the shape (size,) or is complex. Losses and metrics must be per
    sample, because they are summed and divided by the number of samples of all batches."""
    if isinstance(values, Tensor) and values.shape == (size,) and not values.is_complex():
        return
    wanted = f"{key}: must return one value per sample, (B,) = ({size},), but returned"
    if not isinstance(values, Tensor):
        kind = "None" if values is None else f"a value of type {type(values).__name__}"
        raise ConfigError(f"{wanted} {kind}: return a torch.Tensor")
    if values.is_complex():
        raise ConfigError(f"{wanted} complex numbers: return real ones, such as values.abs() or values.real")
    shape = tuple(values.shape)
    found = f"shape {shape}:"
    if size > 1 and shape == (size, size):
        told = "(B, 1) and (B,) broadcast to (B, B): make the shapes equal, e.g. output.squeeze(1); otherwise"
        found = f"shape {shape} - {told}"
    raise ConfigError(
        f"{wanted} {found} take the mean over all dimensions except the batch, values.view(B, -1).mean(1)"
    )


def check_terms(key: str, losses: dict[str, Any], size: int, terms: Sequence[str]) -> None:
    """Raise ConfigError if losses are not {"loss": (B,), name: (B,), ...} with exactly the names `terms`. key: the key
    of the function that computes them."""
    for name, values in losses.items():
        check_per_sample(values, size, key if name == "loss" else f"task: the term {name!r}")
    if losses.keys() != {"loss", *terms}:
        raise ConfigError(
            f"task: its losses are {sorted(losses)}; a task returns 'loss' and the names in its `loss_names`, "
            f"{sorted(terms)}"
        )


def check_losses(
    key: str, losses: dict[str, Any], size: int, terms: Sequence[str] | None, minimised: str = "loss"
) -> None:
    """Check training losses. Raise ConfigError if they are not per sample, have no gradient or have less than 32 bits.

    key: key of the function that computes them. terms: their names besides "loss"; None for one of several objectives,
    whose losses need not be declared. minimised: the name of the loss whose gradient is computed.
    """
    if "loss" not in losses:
        raise ConfigError(f"task: its losses {sorted(losses)} must contain 'loss', which is minimized")
    check_terms(key, losses, size, [name for name in losses if name != "loss"] if terms is None else terms)
    if minimised not in losses:
        raise ConfigError(
            f"task: optimizer_step.gradients uses the loss {minimised!r}, but its losses are {sorted(losses)}"
        )
    if not losses[minimised].requires_grad:
        raise ConfigError(
            f"{key}: the losses have no gradient, so nothing can be trained: compute them from the model's "
            "output with differentiable operations (no argmax, no detach, no numpy)"
        )
    if losses[minimised].element_size() < 4:  # e.g. F.cross_entropy of bf16 logits on CUDA, but not on a CPU
        raise ConfigError(
            f"{key}: the losses are {losses[minimised].dtype}, which has two or three digits, and so has their "
            "gradient: compute them from output.float()"
        )


def first_samples(value: Any, size: int, count: int) -> Any:
    """Return the first `count` of `size` samples of every tensor and list in `value` that has one entry per sample."""
    if count == size:
        return value
    if isinstance(value, dict):
        return {key: first_samples(entry, size, count) for key, entry in value.items()}
    if isinstance(value, (list, tuple)) and any(isinstance(entry, (Tensor, dict, list, tuple)) for entry in value):
        entries = [first_samples(entry, size, count) for entry in value]
        return type(value)(*entries) if hasattr(value, "_fields") else type(value)(entries)  # a named tuple
    if isinstance(value, Tensor) and not value.dim():
        return value
    return value[:count] if isinstance(value, (Tensor, list, tuple)) and len(value) == size else value
