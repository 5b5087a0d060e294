"""How long training has waited for data.

On a CPU that is the time that the loop spends in the loader. On a GPU it is not: the host runs ahead, and may wait in
the loader while the GPU is busy with earlier steps. There only the time counts in which the GPU had nothing to do:

    GPU    ... last step |end|   idle   |resumed| next step ...      both are events; the host waits for neither
    host            in the loader ------------>|
"""

from __future__ import annotations

import time
from collections import deque
from typing import Any

import torch

from engine.data.loading.side_stream import Cuda


class HostWaits:
    def __init__(self) -> None:
        self._seconds = self._began = 0.0

    def begin(self) -> None:
        """The loop asks for a batch."""
        self._began = time.perf_counter()

    def end(self) -> None:
        """It has one."""
        self._seconds += time.perf_counter() - self._began

    def seconds(self) -> float:
        return self._seconds


class DeviceWaits:
    def __init__(self, cuda: Cuda) -> None:
        self._cuda = cuda
        self._seconds = 0.0
        self._now = self._events()  # (end, resumed)
        self._pending: deque[tuple[Any, Any]] = deque()  # those that the GPU has not yet passed
        self._used: list[tuple[Any, Any]] = []  # to be recorded again

    def _events(self) -> tuple[Any, Any]:
        return self._cuda.event(timed=True), self._cuda.event(timed=True)

    def begin(self) -> None:
        self._now[0].record(self._cuda.computing())

    def end(self) -> None:
        self._now[1].record(self._cuda.computing())  # behind the copy of the batch
        self._pending.append(self._now)
        self._settle()
        self._now = self._used.pop() if self._used else self._events()

    def _settle(self) -> None:
        while self._pending and self._pending[0][1].query():
            end, resumed = self._pending.popleft()
            self._seconds += end.elapsed_time(resumed) / 1e3
            self._used.append((end, resumed))

    def seconds(self) -> float:
        """Up to where the GPU is now: after a log, which waits for it, all that was asked for before."""
        self._settle()
        return self._seconds


def waits_on(device: torch.device) -> HostWaits | DeviceWaits:
    return DeviceWaits(Cuda(device)) if device.type == "cuda" else HostWaits()
