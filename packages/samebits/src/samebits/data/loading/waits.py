"""How long training has waited for data.

On a CPU that is the time that the loop spends in the loader. On a GPU it is not: the host runs ahead, and may wait in
the loader while the GPU is busy with earlier steps. There only the time counts in which the GPU had nothing to do:

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
    """clock: makes the clock at the first batch, as that of a GPU initializes CUDA, and workers are forked before."""

    def __init__(self, clock: Callable[[], Any]) -> None:
        self._make, self._seconds = clock, 0.0
        self._clock: Any = None
        self._end: Any = None
        self._pending: deque[tuple[Any, Any]] = deque()  # (end, resumed) that the device has not yet passed

    def begin(self) -> None:
        """The loop asks for a batch."""
        self._clock = self._clock or self._make()
        self._end = self._clock.now()

    def end(self) -> None:
        """It has one; on a GPU, behind its copy."""
        self._pending.append((self._end, self._clock.now()))
        self.seconds()

    def seconds(self) -> float:
        """Up to where the device is now: after a log, which waits for it, all that was asked for before."""
        while self._pending and self._clock.passed(self._pending[0][1]):
            self._seconds += self._clock.seconds(*self._pending.popleft())
        return self._seconds


def waits_on(device: torch.device) -> Waits:
    return Waits(partial(DeviceClock, device) if device.type == "cuda" else HostClock)
