"""Early stop: by a signal to any rank, by Ctrl-C, by process.max_time, or after process.stop_at_step.

    a signal -> requested (this rank) -> the store -> rank 0, the clock -> broadcast -> cause (all, after the same step)

Rank 0 alone decides, and tells the others on the CPU, beside the step: one call of `agree` starts a broadcast, the
first call past half the way to the next broadcast reads it. This happens about every 0.2 s (on all ranks after the same
steps) rather than at each step, as it would cost a short CPU step half its time. N ranks get N - 1 messages each time,
along a tree, and nobody waits for the slowest: an all-reduce passes 2 N (N - 1) along a ring.

Three ranks, a broadcast after each fourth step (B: starts it, R: reads it); SIGTERM reaches rank 2 in step 5:

    after step   3    4    5                  7    8      9    10   11
    rank 0       R    B                       R    B*               R: stops
    rank 1       R    B                       R    B                R: stops
    rank 2       R    B    asks for SIGTERM   R    B                R: stops

Rank 2 asks by a note in the store. After step 8 (*) rank 0 finds the note, and broadcasts SIGTERM, and how many calls
come before the next broadcast. All ranks read both after step 11, so they stop after the same step, and all have the
same number at any time. Nobody waits, as the message has had three steps to arrive. Importing this imports no torch.
"""

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
CAUSES = ("", MAX_TIME, *(one.name for one in reversed(STOP_SIGNALS)))  # rising priority: rank 0 takes the last
TELL_S = 0.2  # between two broadcasts
MOST_STEPS = 64  # between two broadcasts
LONG_S = 1.0  # steps longer than this do not take one more until the broadcast is read
NOTE = "stop"  # in the store


class Messages:
    """Of any rank to rank 0, and of rank 0 to all."""

    def ask(self, cause: str) -> None:
        store().set(f"{NOTE}/{cause}", "")
        store().set(NOTE, "")

    def asked(self) -> str:
        """The highest cause that any rank has asked for; rank 0 calls this."""
        is_noted = store().check
        if not is_noted([NOTE]):
            return ""
        return next((cause for cause in reversed(CAUSES) if cause and is_noted([f"{NOTE}/{cause}"])), "")

    def announce(self, values: list[int], world: World) -> Callable[[], list[int]]:
        """Start to tell all ranks rank 0's values; returns a function that waits for them."""
        return world.start_broadcast(values)


class Stopped(Exception):
    """An evaluation was cut short, on all ranks after the same batch; a resumed run repeats it from the start."""


class StopRequest:
    """requested: the cause that reached this rank. cause: what all ranks have agreed on. Each is one of CAUSES, cause
    also AT_STEP.

    max_time_s: counted from `began` (time.monotonic); only rank 0 checks it, and leaves time for a save.
    """

    def __init__(self, began: float, messages: Messages | None = None) -> None:
        self.requested, self.cause = early_signals.asked(), ""
        self.messages = messages or Messages()
        self._asked = ""  # what rank 0 was told
        self.began = began
        self.max_time_s: float | None = None
        self.save_s = 0.0  # the longest save so far
        self._signalled_at = -SAME_SIGNAL_S
        self._interrupted = False
        self._last_call: float | None = None
        self._announced_at = began
        self._calls = 0  # calls of agreed since the last broadcast began
        self._calls_between = 1  # two broadcasts, as rank 0 says; 0: one at each call, which reads it too
        self._announced: Callable[[], list[int]] | None = None

    def saved(self, seconds: float) -> None:
        """A checkpoint has been written, which took so long."""
        self.save_s = max(self.save_s, seconds)

    def at_step(self) -> bool:
        """Stop now. All ranks call it after the same step, which each of them knows."""
        self.cause = self.cause or AT_STEP
        return True

    def agree(self, world: World) -> bool:
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
        if self.requested != self._asked and not world.is_main:
            self.messages.ask(self.requested)
            self._asked = self.requested
        self._calls += 1
        if self._calls > self._calls_between // 2:  # half way to the next: then it has come, and nobody waits for it
            self._receive()
        if not self.cause and self._calls >= self._calls_between:
            self._announce(world, now)
            if self._calls_between == 0:
                self._receive()
        return bool(self.cause)

    def _look_at_the_clock(self, now: float, step_s: float) -> None:
        if self.max_time_s is None or self.requested:
            return
        room_s = 2 * (self.save_s + step_s) if self.save_s else max(2 * step_s, min(30.0, self.max_time_s / 20))
        if now - self.began > self.max_time_s - room_s:
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

    def finish_broadcast(self) -> None:
        """Finish a pending broadcast: before calls come at another rate (evaluation), and before the ranks end."""
        self._receive()
        self._calls_between, self._calls, self._last_call, self._announced_at = 1, 0, None, time.monotonic()

    def _handle(self, number: int, frame: Any) -> None:
        now, name = time.monotonic(), signal.Signals(number).name
        again = now - self._signalled_at > SAME_SIGNAL_S or dist_env.size is None
        if number == signal.SIGINT and self.requested == "SIGINT" and again:
            if not self._interrupted:  # once: what it ends is not to be disturbed
                self._interrupted = True
                raise KeyboardInterrupt
            return
        if number == signal.SIGINT:
            self._signalled_at = now
        if not self.requested and dist_env.rank == 0:
            with suppress(OSError):  # nobody reads it any more
                os.write(2, f"\n{name}: saving and stopping after this step; Ctrl-C again: now\n".encode())
        if CAUSES.index(name) > CAUSES.index(self.requested):
            self.requested = name


@contextmanager
def stop_on_signals(began: float) -> Iterator[StopRequest]:
    """A StopRequest that the stop signals set, for the length of the block (only a main thread receives signals)."""
    request = StopRequest(began)
    if threading.current_thread() is not threading.main_thread():
        yield request
        return
    end_children_at_exit()
    with handling_signals(request._handle):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)
        yield request
