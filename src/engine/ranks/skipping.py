"""Leaving a step out where its gradients are not finite, without asking the device whether they are.

weights          the optimizer's fused kernel leaves them as they are (found_inf, see engine.private), or an optimizer
                 that says so does (takes_found_inf)
moving average   takes a weight of 0
module's state   what a step did to it is put back
learning rate    the device counts the updates and looks up the rate of the next one
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from engine.errors import RunFailed
from engine.private import kernel_skips_non_finite
from engine.ranks.distributed import to_host
from engine.ranks.fsdp import local_parts

BLOCK = 1024  # updates whose learning rates are computed and copied to the device at once
RATE_ON_DEVICE = (torch.optim.Adam, torch.optim.AdamW, torch.optim.SGD, torch.optim.Adagrad)  # fused: lr may be there


class HostSchedule(Protocol):
    updates: int
    total_steps: int

    @property
    def last_lr(self) -> float: ...
    def rates(self, updates: int) -> list[float]:
        """The learning rate of each parameter group in update number `updates`."""
        ...

    def scored(self, score: float) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DeviceSchedule:
    """The schedule of `optimizers`, in the order of its rates, whose updates the device counts."""

    on_device = True

    def __init__(self, schedule: HostSchedule, optimizers: Sequence[Optimizer], device: torch.device) -> None:
        self.schedule, self.optimizers, self.device = schedule, optimizers, device
        for optimizer in optimizers:
            optimizer.register_state_dict_post_hook(_with_plain_rates)
            if isinstance(optimizer, torch.optim.SGD):
                _begin_momentum(optimizer)
        self._begin()

    def _begin(self) -> None:
        """From the update that the host's schedule is at."""
        self._first = self._most = self.schedule.updates  # _most: where the device is if no step was skipped
        # float64 where the kernel reads it: rates are those of the host to the bit; on other devices it reads float32
        dtype = torch.float64 if self.device.type == "cpu" else torch.float32
        groups = [group for optimizer in self.optimizers for group in optimizer.param_groups]
        self._table = torch.empty(0, len(groups), dtype=dtype, device=self.device)  # a row for each update
        self._row = torch.zeros(1, dtype=torch.int64, device=self.device)  # of the next update
        self._rates = torch.empty(1, len(groups), dtype=dtype, device=self.device)
        for group, rate in zip(groups, self._rates[0]):
            group["lr"] = rate
        self._look_up()

    def _look_up(self) -> None:
        end = self._first + len(self._table)
        if self._most >= end:
            last = max(self._most, min(end + BLOCK - 1, self.schedule.total_steps))
            rows = torch.tensor([self.schedule.rates(k) for k in range(end, last + 1)], dtype=self._table.dtype)
            if self.device.type == "cuda":
                rows = rows.pin_memory()
            self._table = torch.cat([self._table, rows.to(self.device, non_blocking=True)])
        torch.index_select(self._table, 0, self._row, out=self._rates)

    def step(self, moved: Sequence[Tensor] = ()) -> None:
        """moved: 0-d bool on the device; the schedule moves on if all are true."""
        self._row += moved[0] if len(moved) == 1 else torch.stack(list(moved)).all() if moved else 1
        self._most += 1
        self._look_up()

    @property
    def updates(self) -> int:
        """Waits for the device."""
        self.schedule.updates = self._first + int(to_host(self._row)[0])
        return self.schedule.updates

    @property
    def last_lr(self) -> float:
        """Learning rate of the last update. Waits for the device."""
        _ = self.updates
        return self.schedule.last_lr

    def scored(self, score: float) -> bool:
        """After an evaluation: waits for the device. Returns whether the rates have changed."""
        _ = self.updates
        changed = self.schedule.scored(score)
        if changed:
            self._begin()
        return changed

    def state_dict(self) -> dict[str, Any]:
        _ = self.updates
        return self.schedule.state_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.schedule.load_state_dict(state)
        self._begin()


def _with_plain_rates(optimizer: Optimizer, state: dict[str, Any]) -> None:
    for group in state["param_groups"]:
        group["lr"] = float(to_host(group["lr"]))


def _begin_momentum(optimizer: torch.optim.SGD) -> None:
    """At zero: where the first step is left out, torch's fused kernel takes the memory as it finds it."""
    for group in optimizer.param_groups:
        for p in group["params"] if group["momentum"] else ():
            optimizer.state[p]["momentum_buffer"] = torch.zeros_like(p)


def can_skip(optimizers: Sequence[Optimizer]) -> bool:
    """Whether all can leave a step out by a tensor `found_inf` and take their learning rates from the device: fused
    kernels, and classes with takes_found_inf = True."""
    # SGD's first momentum is the gradient without dampening, so a momentum that begins at zero is another one with it
    dampened = any(group.get("dampening") for one in optimizers for group in one.param_groups)
    return not dampened and all(map(_can_skip, optimizers))


def _can_skip(optimizer: Optimizer) -> bool:
    fused = kernel_skips_non_finite(optimizer) and isinstance(optimizer, RATE_ON_DEVICE)
    return fused or getattr(optimizer, "takes_found_inf", False)


def average_in(mean: list[Tensor], values: list[Tensor], weight: float, skipped: Tensor | None) -> None:
    """mean += weight * (values - mean), in place; nothing where skipped, 0-d, is 1."""
    if skipped is None:
        torch._foreach_lerp_(mean, values, weight)
        return
    change = torch._foreach_sub(values, mean)
    torch._foreach_mul_(change, weight * (1 - skipped))
    torch._foreach_add_(mean, change)


@contextmanager
def unless(skipped: Tensor | None, held: nn.Module | Sequence[Tensor]) -> Iterator[None]:
    """Where skipped, 0-d, is 1, these tensors, or a module's parameters and buffers, are afterwards what they were
    before this block."""
    if skipped is None:
        yield
        return
    before = copies(_held(held))
    yield
    put_back(before, _held(held), skipped)


def copies(held: Iterable[tuple[Any, Tensor]]) -> dict[Any, Tensor]:
    """held: (name, tensor)."""
    return {name: _local(value).clone() for name, value in held}


def put_back(before: Mapping[Any, Tensor], held: Iterable[tuple[Any, Tensor]], skipped: Tensor) -> None:
    """Where skipped, 0-d, is 1, the tensors of these names become what they were."""
    for name, value in held:
        if name in before:
            own, was = _local(value), before[name]
            if own.shape != was.shape:
                raise RunFailed(
                    f"the buffer {name} went from shape {tuple(was.shape)} to {tuple(own.shape)} in a step that may be "
                    "skipped (fp16, trainer.non_finite=skip): give it its largest shape from the start"
                )
            own.copy_(torch.where(skipped.to(own.device) > 0, was, own))


def _local(value: Tensor) -> Tensor:
    (part,) = local_parts([value])
    return part


def _held(held: nn.Module | Sequence[Tensor]) -> Iterator[tuple[Any, Tensor]]:
    if isinstance(held, nn.Module):
        yield from held.named_parameters()
        yield from held.named_buffers()
    else:
        yield from enumerate(held)


def any_of(flags: list[Tensor | None]) -> Tensor | None:
    """1.0 where one of the flags, 0-d, is 1; None if there are none."""
    given = [flag for flag in flags if flag is not None]
    return None if not given else given[0] if len(given) == 1 else torch.stack(given).amax()


def skipped(moved: bool | Tensor) -> Tensor | None:
    """1.0 where nothing moved, as the device or the host knows; None where the host knows that something did."""
    return (~moved).to(torch.float32) if isinstance(moved, Tensor) else None if moved else torch.ones(())
