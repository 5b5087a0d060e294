"""Measure how long training has waited for data.

On a CPU this is the time that the loop spends in the loader. On a GPU it is not, because the host runs ahead and may
wait in the loader while the GPU is busy with earlier steps. Then only the time counts in which the GPU is idle:

    GPU    ... last step |end|   idle   |resumed| next step ...      both are events; the host waits for neither
    host            in the loader ------------>|
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from samebits.clocks import DeviceClock, HostClock


class HostWaits:
    """Sum the times spent in the loader."""

    def __init__(self) -> None:
        self._seconds = self._began = 0.0

    def begin(self) -> None:
        """Call it before the loop gets a batch."""
        self._began = HostClock.now()

    def end(self) -> None:
        """Call it after the loop got a batch."""
        self._seconds += HostClock.now() - self._began

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
        self._end: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()  # (end, resumed) that the device has not reached yet

    def begin(self) -> None:
        """Call it before the loop gets a batch."""
        self._clock = self._clock or self._make()
        self._end = self._clock.now()

    def end(self) -> None:
        """Call it after the loop got a batch; on a GPU, after its copy was enqueued."""
        self._pending.append((self._end, self._clock.now()))
        self.seconds()

    def seconds(self) -> float:
        """Return the seconds that the device has waited so far. It does not wait for the device."""
        while self._pending and self._clock.passed(self._pending[0][1]):
            self._seconds += self._clock.seconds(*self._pending.popleft())
        return self._seconds


def waits_on(device: torch.device) -> HostWaits | DeviceWaits:
    """Return the Waits of a device."""
    return DeviceWaits(partial(DeviceClock, device)) if device.type == "cuda" else HostWaits()
