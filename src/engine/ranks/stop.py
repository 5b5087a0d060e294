"""When a run is asked to stop before its end: by a signal to any rank, by Ctrl-C, or as its time is up.

    a signal, the clock -> requested (this rank) -> all ranks tell each other -> cause (all ranks, after the same step)

The ranks tell each other on the CPU, beside the step: what one call of `agreed` sends, the next one reads. They do it
after each step, but not more often than every tenth of a second (all after the same steps), as it costs a short step of
a CPU half its time. Importing this imports no torch.
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
)  # the greatest that reached a rank is what all say
TELL_S = 0.1
MOST_STEPS = 64  # between two meetings
SAME_S = 0.5  # a terminal and the parent send one Ctrl-C twice


class Stopped(Exception):
    """An evaluation was left, on all ranks after the same batch; it is made anew when the run goes on."""


class StopRequest:
    """requested: what reached this rank. cause: what all ranks have agreed to stop for. Either is one of CAUSES.

    max_time_s: counted from `began` (time.monotonic); rank 0 looks at it, and leaves room for a save.
    """

    def __init__(self, began: float) -> None:
        self.requested, self.cause = early.asked(), ""
        self.began = began
        self.max_time_s: float | None = None
        self.save_s = 0.0  # the longest save so far
        self._signalled_at = -SAME_S
        self._last_call: float | None = None
        self._sent_at = began
        self._calls = 0  # since the ranks told each other
        self._every = 1  # calls between two tellings, the same on all ranks
        self._sent: Callable[[], list[int]] | None = None

    def agreed(self, world: World) -> bool:
        """Whether all ranks stop now. All call it equally often: after each step, and each batch of an evaluation."""
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
        """Read what was sent last: before the speed of the calls changes, and before the ranks part."""
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
    """Signals that ask to stop wait until the block ends; a process forked in it has them wait until it is ready."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def handling(handle: Callable[[int, Any], None]) -> Iterator[None]:
    """Signals that ask to stop go to `handle` for the length of the block."""
    before = {number: signal.signal(number, handle) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def heeded() -> list[signal.Signals]:
    """SIGNALS; without SIGHUP where whoever started this process has it ignored (nohup)."""
    return [n for n in SIGNALS if n != getattr(signal, "SIGHUP", None) or signal.getsignal(n) != signal.SIG_IGN]


@contextmanager
def stop_on_signals(began: float) -> Iterator[StopRequest]:
    """Signals ask the loop to stop, for the length of the block (in a main thread; others get none)."""
    request = StopRequest(began)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    with handling(request._handle):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
        yield request
