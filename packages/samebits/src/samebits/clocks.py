"""Timestamps on the host and on a CUDA device."""

from __future__ import annotations

import time

import torch


class HostClock:
    """Timestamps of the host, in seconds."""

    now = staticmethod(time.perf_counter)

    def passed(self, mark: float) -> bool:
        """Return True if the timestamp has been reached."""
        return True

    def seconds(self, start: float, end: float) -> float:
        """Return the seconds between two timestamps."""
        return end - start


class DeviceClock:
    """CUDA events on the training loop's stream, also when recorded from a thread of the autograd engine."""

    def __init__(self, device: torch.device) -> None:
        self._stream = torch.cuda.current_stream(device)

    def now(self) -> torch.cuda.Event:
        """Record a timestamp."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(self._stream)
        return event

    def passed(self, mark: torch.cuda.Event) -> bool:
        """Return True if the device has reached the timestamp."""
        return mark.query()

    def seconds(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float:
        """Return the seconds between two timestamps, which synchronizes with the device."""
        end.synchronize()  # it may be pending only when values are logged, which synchronizes anyway
        return start.elapsed_time(end) / 1e3
