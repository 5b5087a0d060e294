"""Early stop: by a signal to any rank, by Ctrl-C, or by trainer.max_time.

    a signal, the clock -> requested (this rank) -> all-reduce MAX -> cause (all ranks, after the same step)

The all-reduce runs on the CPU, overlapped with the step: one call of `agreed` starts it, the next one reads it. Ranks
do this about every 0.1 s (all after the same steps) rather than at each step, as it would cost a short CPU step half
its time. Importing this imports no torch.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from engine import early
from engine.ranks.distributed import all_max, rank, started_ranks

if TYPE_CHECKING:
    from engine.ranks.distributed import World

SIGNALS = (signal.SIGINT, *early.SIGNALS)
MAX_TIME = "trainer.max_time"
CAUSES = (
    "",
    MAX_TIME,
    "SIGHUP",
    "SIGUSR2",
    "SIGUSR1",
    "SIGTERM",
    "SIGINT",
)  # rising priority: ranks agree on the highest (all-reduce MAX)
TELL_S = 0.1  # between two all-reduces
MOST_STEPS = 64  # between two all-reduces
SAME_S = 0.5  # a terminal and the parent send one Ctrl-C twice


class Stopped(Exception):
    """An evaluation was cut short, on all ranks after the same batch; a resumed run repeats it from the start."""


class StopRequest:
    """requested: the cause that reached this rank. cause: what all ranks have agreed on. Each is one of CAUSES.

    max_time_s: counted from `began` (time.monotonic); only rank 0 checks it, and leaves time for a save.
    """

    def __init__(self, began: float) -> None:
        self.requested, self.cause = early.asked(), ""
        self.began = began
        self.max_time_s: float | None = None
        self.save_s = 0.0  # the longest save so far
        self._signalled_at = -SAME_S
        self._last_call: float | None = None
        self._sent_at = began
        self._calls = 0  # calls of agreed since the last all-reduce began
        self._every = 1  # calls between two all-reduces, the same on all ranks
        self._sent: Callable[[], list[int]] | None = None

    def agreed(self, world: World) -> bool:
        """Whether all ranks stop now. All must call it equally often: after each step and each evaluation batch."""
        if self.cause:
            return True
        now = time.monotonic()
        step_s = now - self._last_call if self._last_call is not None else 0.0
        self._last_call = now
        if world.is_main:
            self._look_at_the_clock(now, step_s)
        if world.size == 1:
            self.cause = self.requested
            return bool(self.cause)
        self._calls += 1
        if self._sent is not None:
            self._receive()
            if self.cause:
                return True
        if self._calls >= self._every:
            self._send(world, now)
        return False

    def _look_at_the_clock(self, now: float, step_s: float) -> None:
        if self.max_time_s is None or self.requested:
            return
        room_s = 2 * (self.save_s + step_s) if self.save_s else max(2 * step_s, min(30.0, self.max_time_s / 20))
        if now - self.began > self.max_time_s - room_s:
            self.requested = MAX_TIME

    def _send(self, world: World, now: float) -> None:
        step_s = max((now - self._sent_at) / self._calls, 1e-6)
        steps = max(1, min(int(TELL_S / step_s), 2 * self._every, MOST_STEPS))
        self._sent = all_max([CAUSES.index(self.requested), steps], world)
        self._sent_at, self._calls = now, 0

    def _receive(self) -> None:
        assert self._sent is not None
        (cause, self._every), self._sent = self._sent(), None
        self.cause = CAUSES[cause]

    def settle(self) -> None:
        """Finish a pending all-reduce: before calls come at another rate (evaluation), and before the ranks end."""
        if self._sent is not None:
            self._receive()
        self._every, self._calls, self._last_call, self._sent_at = 1, 0, None, time.monotonic()

    def _handle(self, number: int, frame: Any) -> None:
        if number == getattr(signal, "SIGHUP", None):
            early.leave_hung_up_terminal()
        now, name = time.monotonic(), signal.Signals(number).name
        again = now - self._signalled_at > SAME_S or started_ranks() is None
        if number == signal.SIGINT and self.requested == "SIGINT" and again:
            raise KeyboardInterrupt
        if number == signal.SIGINT:
            self._signalled_at = now
        if not self.requested and rank() == 0:
            os.write(2, f"\n{name}: saving and stopping after this step; Ctrl-C again: now\n".encode())
        if CAUSES.index(name) > CAUSES.index(self.requested):
            self.requested = name


@contextmanager
def held_signals() -> Iterator[None]:
    """Hold stop signals back until the block ends; a process forked in it holds them until it unblocks them itself."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handling(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Install `handle` for the stop signals for the length of the block."""
    before = {number: signal.signal(number, handle) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeded() -> list[signal.Signals]:
    """The stop signals; without SIGHUP where it is ignored already (nohup)."""
    return [n for n in SIGNALS if n != getattr(signal, "SIGHUP", None) or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def stop_on_signals(began: float) -> Iterator[StopRequest]:
    """A StopRequest that the stop signals set, for the length of the block (only a main thread receives signals)."""
    request = StopRequest(began)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    with handling(request._handle):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield request
