"""Leaving a step out where its gradients are not finite, without asking the device whether they are.

weights          the optimizer's fused kernel leaves them as they are (found_inf, see samebits.torch_private), or an optimizer
                 that says so does (takes_found_inf)
moving average   takes a weight of 0
module's state   what a step did to it is put back

The learning rate goes on: it follows the number of the step.
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

# classes whose fused kernels take found_inf, and parts of parameters (fsdp); another class with an argument `fused` may
# know nothing of either
FUSED = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)

Named = Iterable[tuple[str, Tensor]]


def takes_found_inf(optimizer: Optimizer) -> bool:
    """Whether it leaves a step out by a tensor `found_inf`: fused kernels, and classes with takes_found_inf = True."""
    if kernel_skips_non_finite(optimizer) and isinstance(optimizer, FUSED):
        # SGD's first momentum is the gradient without dampening: from zero, as begin_momentum has it, it is another
        return not any(group.get("dampening") for group in optimizer.param_groups)
    return bool(getattr(optimizer, "takes_found_inf", False))


def begin_momentum(optimizer: Optimizer) -> None:
    """SGD's at zero: where the first step is left out, torch's fused kernel takes the memory as it finds it."""
    if isinstance(optimizer, torch.optim.SGD) and takes_found_inf(optimizer):
        for group in optimizer.param_groups:
            for p in group["params"] if group["momentum"] else ():
                optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def any_of(flags: list[Tensor]) -> Tensor:
    """flags: 0-d, 0.0 or 1.0. Most steps have one."""
    return flags[0] if len(flags) == 1 else torch.stack(flags).amax()


def all_of(flags: list[Tensor]) -> Tensor:
    """flags: 0-d, 0.0 or 1.0. Most steps have one."""
    return flags[0] if len(flags) == 1 else torch.stack(flags).amin()


def update_average(mean: list[Tensor], values: list[Tensor], weight: float, skipped: Tensor | None) -> None:
    """mean += weight * (values - mean), in place; nothing where skipped, 0-d, is 1. skipped: None if no step may be."""
    if skipped is None:
        torch._foreach_lerp_(mean, values, weight)
        return
    change = torch._foreach_sub(values, mean)
    torch._foreach_mul_(change, weight * (1 - skipped))
    torch._foreach_add_(mean, change)


@contextmanager
def restore_if(skipped: Tensor | None, tensors: Sequence[Tensor]) -> Iterator[None]:
    """Where skipped, 0-d, is 1, these tensors are afterwards what they were before this block. skipped: None if no step
    may be."""
    if skipped is None:
        yield
        return
    parts = local_parts(tensors)
    before = [part.clone() for part in parts]
    yield
    for part, was in zip(parts, before):
        _put_back(part, was, skipped)


def update_scale(scaler: torch.amp.GradScaler, non_finite: Tensor) -> None:
    """After a step: raise the loss scale, or lower it where non_finite, 0-d, is 1. Nothing waits for the device.

    The scaler looks for inf in gradients: here it finds it in that of a parameter made for this."""
    flag = torch.nn.Parameter(torch.zeros((), device=non_finite.device))
    flag.grad = torch.where(non_finite > 0, torch.inf, 0.0)
    scaler.unscale_(torch.optim.SGD([flag]))
    scaler.update()


def copy_buffers(buffers: Named) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in buffers}


def restore_buffers_if(before: Mapping[str, Tensor], buffers: Named, skipped: Tensor) -> None:
    """Where skipped, 0-d, is 1, the buffers that were there before become what they were."""
    for name, value in buffers:
        if name in before:
            was = before[name]
            if value.shape != was.shape:
                raise RunFailed(
                    f"the buffer {name} went from shape {tuple(was.shape)} to {tuple(value.shape)} in a step that may "
                    "be skipped (fp16, trainer.non_finite=skip): give it its largest shape from the start"
                )
            _put_back(value, was, skipped)


def _put_back(value: Tensor, before: Tensor, skipped: Tensor) -> None:
    value.copy_(torch.where(skipped.to(value.device) > 0, before, value))
