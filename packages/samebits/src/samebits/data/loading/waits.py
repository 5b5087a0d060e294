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


class Waits:
    """Sum the times between `begin` and `end`, by the clock of the device.

    make_clock: called at the first batch, because a GPU's clock initializes CUDA, which must not happen before workers
    are forked."""

    def __init__(self, make_clock: Callable[[], Any]) -> None:
        self._make_clock, self._seconds = make_clock, 0.0
        self._clock: Any = None
        self._end: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()  # (end, resumed) that the device has not reached yet

    def begin(self) -> None:
        """Call it before the loop gets a batch."""
        self._clock = self._clock or self._make_clock()
        self._end = self._clock.now()

    def end(self) -> None:
        """Call it after the loop got a batch; on a GPU, after its copy was enqueued."""
        self._pending.append((self._end, self._clock.now()))
        self.seconds()

    def seconds(self) -> float:
        """Return the seconds so far. It does not wait for the device."""
        while self._pending and self._clock.passed(self._pending[0][1]):
            self._seconds += self._clock.seconds(*self._pending.popleft())
        return self._seconds


def waits_on(device: torch.device) -> Waits:
    """Return the Waits of a device."""
    return Waits(partial(DeviceClock, device) if device.type == "cuda" else HostClock)
