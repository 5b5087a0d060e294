"""Measure spans of the training loop on the device's clock, and add them up by part.

host     |--data wait--|--forward--|--backward--|--optimizer--| ...   a mark is recorded at each border
device   ....|--data wait--|----forward----|----backward----|...      CUDA events: when the device reached the mark

The time between two marks belongs to the innermost open part, so the parts add up to the total. On a GPU the marks are
CUDA events that are read when metrics are logged; the host does not wait for them.
"""

from __future__ import annotations

import functools
import time
from collections import defaultdict, deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import torch
from torch import nn

from samebits.clocks import DeviceClock, HostClock

T = TypeVar("T")
OTHER, DATA, COPY, FORWARD = "other", "data wait", "copy", "forward"


class Spans(Protocol):
    """A recorder of nested spans."""

    def begin(self, part: str) -> None:
        """Open a span of this part."""

    def end(self) -> None:
        """Close the innermost span."""


@dataclass
class _Mark:
    part: str  # the part that starts here
    host_s: float
    at: Any
    behind: bool = False  # for a data wait: the device was still busy when the batch arrived


@dataclass
class Figures:
    """Seconds of each part since `restart`. idle: number of steps that started while the device had almost no work
    left."""

    steps: int = 0
    idle: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    host_seconds: dict[str, float] = field(default_factory=lambda: defaultdict(float))

    @property
    def total(self) -> float:
        """Seconds of all parts."""
        return sum(self.seconds.values())

    def share(self, *parts: str) -> float:
        """Return the fraction of the total time of these parts."""
        return sum(self.seconds.get(part, 0.0) for part in parts) / self.total if self.total else 0.0


class Timeline:
    """The marks of one rank's training loop; not thread-safe."""

    def __init__(self, device: torch.device) -> None:
        self._clock: Any = DeviceClock(device) if device.type == "cuda" else HostClock()
        self.on_gpu = device.type == "cuda"
        self._open = [OTHER]
        self._marks: deque[_Mark] = deque()
        self.figures = Figures()

    def begin(self, part: str) -> None:
        """Open a span of this part."""
        self._open.append(part)
        self._mark()

    def end(self) -> None:
        """Close the innermost span."""
        self._open.pop()
        self._mark()

    def _mark(self) -> None:
        if self.on_gpu and self._marks and self._marks[-1].part == DATA:
            self._marks[-1].behind = not self._clock.passed(self._marks[-1].at)
        self._marks.append(_Mark(self._open[-1], time.perf_counter(), self._clock.now()))

    def step(self) -> None:
        """Start a step."""
        # the device has already reached the last span (the optimizer), so the host is hardly ahead of it
        if self.on_gpu and len(self._marks) > 1 and self._clock.passed(self._marks[-2].at):
            self.figures.idle += 1
        self.figures.steps += 1
        self._mark()

    def step_end(self) -> None:
        """End the last step: the time until now belongs to the open part. Synchronizes with the device."""
        self._mark()
        if self.on_gpu:
            torch.cuda.synchronize()

    def restart(self) -> None:
        """Discard all measurements."""
        self._marks.clear()
        self.figures = Figures()

    def collect(self) -> Figures:
        """Add up the marks that the device has passed. Call it after a synchronization."""
        while len(self._marks) > 1 and self._clock.passed(self._marks[1].at):
            first, second = self._marks.popleft(), self._marks[0]
            seconds, host_s = self._clock.seconds(first.at, second.at), second.host_s - first.host_s
            self.figures.host_seconds[first.part] += host_s
            if first.part == DATA and self.on_gpu:
                # an idle device waits for the host, then for the copy; a busy device only for the copy
                waited = 0.0 if first.behind else min(seconds, host_s)
                self.figures.seconds[COPY] += seconds - waited
                seconds = waited
            self.figures.seconds[first.part] += seconds
        return self.figures


class Batches:
    """A loader that waits for its batches in a span. All other attributes are the loader's."""

    def __init__(self, loader: Any, spans: Spans) -> None:
        self._loader, self._spans = loader, spans

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)

    def __iter__(self) -> Iterator[Any]:
        batches = iter(self._loader)
        try:
            while True:
                self._spans.begin(DATA)
                try:
                    out = [next(batches)]
                except StopIteration:
                    return
                finally:
                    self._spans.end()
                yield out.pop()
        finally:
            close = getattr(batches, "close", None)
            if close is not None:
                close()


def spanned(function: Callable[..., T], part: str, spans: Spans) -> Callable[..., T]:
    """Return the function with each call in a span."""

    @functools.wraps(function)
    def call(*args: Any, **more: Any) -> T:
        spans.begin(part)
        try:
            return function(*args, **more)
        finally:
            spans.end()

    return call


@contextmanager
def wrapped(places: Iterable[tuple[Any, str, str]], nets: Iterable[nn.Module], spans: Spans) -> Iterator[None]:
    """Put these functions, given as (owner, name, part), and the forward passes of `nets` in spans within this
    block."""
    with ExitStack() as undo:
        for owner, name, part in places:
            before = getattr(owner, name)
            undo.callback(setattr, owner, name, before)
            setattr(owner, name, spanned(before, part, spans))
        for net in nets:
            before_it = net.register_forward_pre_hook(lambda *_: spans.begin(FORWARD))
            behind_it = net.register_forward_hook(lambda *_: spans.end(), always_call=True)
            undo.callback(before_it.remove)
            undo.callback(behind_it.remove)
        yield
