"""Early stop: by a signal to any rank, by Ctrl-C, by process.max_time, or after process.stop_at_step.

    a signal -> requested (this rank) -> the store -> rank 0, the clock -> broadcast -> cause (all, after the same step)

Only rank 0 decides. It broadcasts its decision on the CPU in the background: one call of `agree` starts a broadcast,
and the first call after half of the interval reads it. This happens about every 0.2 s, on all ranks after the same
steps, because doing it in each step would cost half of the time of a short CPU step. A broadcast sends N - 1 messages
along a tree and waits for nobody; an all-reduce would send 2 N (N - 1) messages along a ring.

Three ranks, a broadcast after each fourth step (B: starts it, R: reads it); SIGTERM reaches rank 2 in step 5:

    after step   3    4    5                  7    8      9    10   11
    rank 0       R    B                       R    B*               R: stops
    rank 1       R    B                       R    B                R: stops
    rank 2       R    B    requests SIGTERM   R    B                R: stops

Rank 2 writes its request to the store. After step 8 (*) rank 0 reads it and broadcasts SIGTERM together with the number
of calls until the next broadcast. All ranks read both after step 11, so they stop after the same step and always have
the same number. Nobody waits, because the message has had three steps to arrive. Importing this module does not import
torch."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from samebits import early_signals
from samebits.children import end_children_at_exit
from samebits.signals import SAME_SIGNAL_S, STOP_SIGNALS, handling_signals
from samebits.world.environment import dist_env
from samebits.world.store import store

if TYPE_CHECKING:
    from samebits.world.collectives import World

MAX_TIME, AT_STEP = "process.max_time", "process.stop_at_step"
NO_RESUME = "LAB_NO_RESUME"  # an environment variable: set if the run's folder is removed when its command has ended
CAUSES = ("", MAX_TIME, *(one.name for one in reversed(STOP_SIGNALS)))  # in rising priority: rank 0 uses the last one
TELL_S = 0.2  # seconds between two broadcasts
MOST_STEPS = 64  # maximum number of steps between two broadcasts
LONG_S = 1.0  # with steps longer than this, the broadcast is read without waiting for another step
NOTE = "stop"  # key in the store


class Messages:
    """Messages from any rank to rank 0, and from rank 0 to all ranks."""

    def ask(self, cause: str) -> None:
        """Send a request to rank 0."""
        store().set(f"{NOTE}/{cause}", "")
        store().set(NOTE, "")

    def asked(self) -> str:
        """Return the highest cause that any rank has requested; called by rank 0."""
        is_noted = store().check
        if not is_noted([NOTE]):
            return ""
        return next((cause for cause in reversed(CAUSES) if cause and is_noted([f"{NOTE}/{cause}"])), "")

    def announce(self, values: list[int], world: World) -> Callable[[], list[int]]:
        """Start a broadcast of rank 0's values. Return a function that waits for the result."""
        return world.start_broadcast(values)


class Stopped(Exception):
    """An evaluation was cut short, on all ranks after the same batch. A resumed run repeats it from the beginning."""


class StopRequest:
    """A request to stop the run.

    requested: the cause that reached this rank. cause: the cause that all ranks have agreed on. Both are one of CAUSES;
    cause may also be AT_STEP. max_time_s: counted from `began` (time.monotonic); only rank 0 checks it, and leaves time
    for a save. ended: the outcome of the run is decided; the rest, such as an upload to W&B, saves nothing.
    """

    def __init__(self, began: float, messages: Messages | None = None) -> None:
        self.requested, self.cause = early_signals.asked(), ""
        self.messages = messages or Messages()
        self._asked = ""  # the cause that rank 0 has read
        self.began = began
        self.max_time_s: float | None = None
        self.ended = False
        self.save_s = 0.0  # seconds of the longest save so far
        self._signalled_at = -SAME_SIGNAL_S
        self._interrupted = False
        self._last_call: float | None = None
        self._announced_at = began
        self._calls = 0  # calls of `agree` since the last broadcast started
        # calls between two broadcasts, set by rank 0; 0: a broadcast in each call, which also reads it
        self._calls_between = 1
        self._announced: Callable[[], list[int]] | None = None

    def saved(self, seconds: float) -> None:
        """Record the duration of a save in seconds."""
        self.save_s = max(self.save_s, seconds)

    def request_at_step(self) -> bool:
        """Stop now. All ranks must call this after the same step."""
        self.cause = self.cause or AT_STEP
        return True

    def agree(self, world: World) -> bool:
        """Return True if all ranks stop now. All ranks must call this equally often: after each step and evaluation
        batch."""
        if self.cause:
            return True
        now = time.monotonic()
        step_s = now - self._last_call if self._last_call is not None else 0.0
        self._last_call = now
        if self.max_time_s is not None and world.is_main:
            self._look_at_the_clock(self.max_time_s, now, step_s)
        if world.size == 1:
            self.cause = self.requested
            return bool(self.cause)
        if self.requested != self._asked and not world.is_main:
            self.messages.ask(self.requested)
            self._asked = self.requested
        self._calls += 1
        # after half of the interval the broadcast has arrived, so nobody waits
        if self._calls > self._calls_between // 2:
            self._receive()
        if not self.cause and self._calls >= self._calls_between:
            self._announce(world, now)
            if self._calls_between == 0:
                self._receive()
        return bool(self.cause)

    def _look_at_the_clock(self, max_time_s: float, now: float, step_s: float) -> None:
        room_s = 2 * (self.save_s + step_s) if self.save_s else max(2 * step_s, min(30.0, max_time_s / 20))
        if not self.requested and now - self.began > max_time_s - room_s:
            self.requested = MAX_TIME

    def _announce(self, world: World, now: float) -> None:
        values = [0, 0]
        if world.is_main:
            step_s = max((now - self._announced_at) / self._calls, 1e-6)
            steps = max(1, min(int(TELL_S / step_s), 2 * max(1, self._calls_between), MOST_STEPS))
            cause = max(self.requested, self.messages.asked(), key=CAUSES.index)
            values = [CAUSES.index(cause), steps if step_s < LONG_S else 0]
        self._announced = self.messages.announce(values, world)
        self._announced_at, self._calls = now, 0

    def _receive(self) -> None:
        if self._announced is not None:
            (cause, self._calls_between), self._announced = self._announced(), None
            self.cause = CAUSES[cause] or self.cause

    def receive_broadcast(self) -> None:
        """Finish a pending broadcast, before the rate of calls changes (evaluation) and before the ranks end."""
        self._receive()
        self._calls_between, self._calls, self._last_call, self._announced_at = 1, 0, None, time.monotonic()

    def _handle(self, number: int, frame: Any) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        # a parent passes on the first Ctrl-C, perhaps late, and kills its ranks after the second
        later = dist_env.size is None or now - self._signalled_at > SAME_SIGNAL_S
        again = later and not dist_env.has_parent
        if number == signal.SIGINT and self.requested == "SIGINT" and again:
            if not self._interrupted:  # only once, so that the cleanup is not interrupted
                self._interrupted = True
                raise KeyboardInterrupt
            return
        if number == signal.SIGINT:
            self._signalled_at = now
        if not self.requested and dist_env.rank == 0:
            with suppress(OSError):  # the reader has gone
                what = "the run has ended, its loggers finish" if self.ended else "saving and stopping after this step"
                os.write(2, f"\n{name}: {what}; Ctrl-C again: now\n".encode())
        if CAUSES.index(name) > CAUSES.index(self.requested):
            self.requested = name


@contextmanager
def stop_on_signals(began: float) -> Iterator[StopRequest]:
    """Yield a StopRequest that stop signals set within the block. Only a main thread receives signals."""
    request = StopRequest(began)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    end_children_at_exit()
    with handling_signals(request._handle):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        yield request
