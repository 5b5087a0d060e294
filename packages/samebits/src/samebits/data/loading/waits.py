"""Measure how long training has waited for data.

On a CPU this is the time that the loop spends in the loader. On a GPU it is not, because the host runs ahead and may
wait in the loader while the GPU is busy with earlier steps. Then only the time counts in which the GPU is idle:

    GPU    ... last step |end|   idle   |resumed| next step ...      both are events; the host waits for neither
    host            in the loader ------------>|
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

import torch

from samebits.clocks import DeviceClock, HostClock

T = TypeVar("T")


class HostWaits:
    """Sum the times spent in the loader."""

    def __init__(self) -> None:
        self._seconds = 0.0

    def next(self, batches: Iterator[T]) -> T | None:
        """Return next(batches, None), and add the time that it takes."""
        began = HostClock.now()
        batch = next(batches, None)
        self._seconds += HostClock.now() - began
        return batch

    def seconds(self) -> float:
        """Return the seconds that the loop has waited so far."""
        return self._seconds


class DeviceWaits:
    """Sum the times in which the device is idle because it waits for data.

    clock: makes the clock; called at the first batch, because a GPU's clock initializes CUDA, which must not happen
    before workers are forked."""

    def __init__(self, clock: Callable[[], Any]) -> None:
        self._make, self._seconds = clock, 0.0
        self._clock: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()  # (end, resumed) that the device has not reached yet

    def next(self, batches: Iterator[T]) -> T | None:
        """Return next(batches, None), which enqueues the copy of the batch, and add the time that the device idles."""
        self._clock = self._clock or self._make()
        end = self._clock.now()
        batch = next(batches, None)
        self._pending.append((end, self._clock.now()))
        self.seconds()
        return batch

    def seconds(self) -> float:
        """Return the seconds that the device has waited so far. It does not wait for the device."""
        while self._pending and self._clock.passed(self._pending[0][1]):
            self._seconds += self._clock.seconds(*self._pending.popleft())
        return self._seconds


def waits_on(device: torch.device) -> HostWaits | DeviceWaits:
    """Return the Waits of a device."""
    return DeviceWaits(partial(DeviceClock, device)) if device.type == "cuda" else HostWaits()
