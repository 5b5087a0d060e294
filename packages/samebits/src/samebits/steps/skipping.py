"""Skip steps with gradients that are not finite, without synchronizing with the device.

weights          unchanged: the optimizer's fused kernel skips (found_inf, see samebits.torch_private), or an optimizer
                 that declares takes_found_inf
weight average   updated with a weight of 0
module's state   restored after the step

The learning rate is not affected, because it depends on the number of the step.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.optim import Optimizer

from samebits.errors import RunFailed
from samebits.shards import local_parts
from samebits.torch_private import kernel_skips_non_finite

# classes whose fused kernels support found_inf and parts of parameters (fsdp); other classes with an argument `fused`
# may support neither
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)

Named = Iterable[tuple[str, Tensor]]


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Return True if an optimizer skips by a tensor `found_inf`: fused kernels, and classes with takes_found_inf =
    True."""
    if kernel_skips_non_finite(optimizer) and isinstance(optimizer, FUSED):
        # SGD applies no dampening to its first momentum; with the zeros of begin_momentum it would
        return not any(group.get("dampening") for group in optimizer.param_groups)
    return bool(getattr(optimizer, "takes_found_inf", False))


def begin_momentum(optimizer: Optimizer) -> None:
    """Create the momentum of SGD without dampening, alone or a part of a wrapper, as zeros. torch's fused kernel would
    use uninitialized memory if the first step is skipped, and cannot begin a momentum after the first step."""
    for part in getattr(optimizer, "parts", ()):
        begin_momentum(part)
    if isinstance(optimizer, torch.optim.SGD):
        for group in optimizer.param_groups:
            for p in group["params"] if group["momentum"] and not group["dampening"] else ():
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def any_of(flags: list[Tensor]) -> Tensor:
    """Return 1.0 if any flag is 1.0. flags: 0-d, 0.0 or 1.0; usually only one."""
    return flags[0] if len(flags) == 1 else torch.stack(flags).amax()


def all_of(flags: list[Tensor]) -> Tensor:
    """Return 1.0 if all flags are 1.0. flags: 0-d, 0.0 or 1.0; usually only one."""
    return flags[0] if len(flags) == 1 else torch.stack(flags).amin()


def update_average(mean: list[Tensor], values: list[Tensor], weight: float, skipped: Tensor | None) -> None:
    """Update in place: mean += weight * (values - mean). skipped: 0-d, no update if it is 1; None: no step can be
    skipped."""
    if skipped is None:
        torch._foreach_lerp_(mean, values, weight)
        return
    change = torch._foreach_sub(values, mean)
    torch._foreach_mul_(change, weight * (1 - skipped))
    torch._foreach_add_(mean, change)


@contextmanager
def restore_if(skipped: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Restore these tensors after this block if skipped is 1. skipped: 0-d; None: no step can be skipped."""
    if skipped is None:
        yield
        return
    parts = local_parts(tensors)
    before = [part.clone() for part in parts]
    yield
    for part, was in zip(parts, before):
        _put_back(part, was, skipped)


def update_scale(scaler: torch.amp.GradScaler, non_finite: Tensor) -> None:
    """Raise the loss scale after a step, or lower it if non_finite is 1. non_finite: 0-d. Does not wait for the device.

    GradScaler looks for inf in gradients, so it gets a parameter whose gradient contains the flag.
    """
    flag = torch.nn.Parameter(torch.zeros((), device=non_finite.device))
    flag.grad = torch.where(non_finite > 0, torch.inf, 0.0)
    scaler.unscale_(torch.optim.SGD([flag]))
    scaler.update()


def copy_buffers(buffers: Named) -> dict[str, Tensor]:
    """Return copies of the buffers, by name."""
    return {name: value.clone() for name, value in buffers}


def restore_buffers_if(before: Mapping[str, Tensor], buffers: Named, skipped: Tensor) -> None:
    """Restore the buffers in `before` if skipped is 1. skipped: 0-d.

    Raise RunFailed if the shape of a buffer has changed.
    """
    for name, value in buffers:
        if name in before:
            was = before[name]
            if value.shape != was.shape:
                raise RunFailed(
                    f"the buffer {name} changed from shape {tuple(was.shape)} to {tuple(value.shape)} in a step that "
                    "may be skipped (fp16, trainer.non_finite=skip): give it its largest shape from the start"
                )
            _put_back(value, was, skipped)


def _put_back(value: Tensor, before: Tensor, skipped: Tensor) -> None:
    value.copy_(torch.where(skipped.to(value.device) > 0, before, value))
