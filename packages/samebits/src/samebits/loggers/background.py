"""A thread that makes all calls of one logging library, in order: training never waits for a network or a disk."""

from __future__ import annotations

import logging
import math
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from samebits.credentials import redacted
from samebits.errors import first_line
from samebits.files import records
from samebits.loggers.media import Media
from samebits.project import Project
from samebits.status import METRICS, shown

log = logging.getLogger("samebits")
FINISH_S = 60.0  # time for unsent data at the end


class Background:
    """One logging library's record of the run. Subclasses have the methods with an underscore, which the thread calls.

    The first error is said, the next call goes on, and at the end what is lacking is logged again. from_step: the
    checkpoint's, of a resumed run. most_s: limit of the wait at the end. lacks: whether the library lacks something.
    """

    title = remedy = ""  # as the user knows the library; what adds what it lacks
    _start: Callable[[], None]
    _log: Callable[[int, dict[str, float]], None]
    _known: Callable[[], Mapping[str, Collection[int]]]  # {name: steps} of what it holds
    _summary: Callable[[dict[str, Any]], None]
    _show: Callable[[int, str, Media], None]
    _end: Callable[[str], None]  # status

    def __init__(self, project: Project, run_dir: Path, from_step: int, most_s: float) -> None:
        self._project, self._directory, self._from_step = project, run_dir, from_step
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._most_s, self._has_begun, self.lacks, self._told = most_s, False, False, False
        self._calls.put(lambda: None)  # begins
        # a daemon: if the library hangs, the process can still end and free its GPU and its directory's lock
        self._thread = threading.Thread(target=self._work, name=self.title, daemon=True)
        self._thread.start()

    def log(self, step: int, values: dict[str, float]) -> None:
        self._calls.put(lambda: self._log(step, values))

    def summary(self, values: dict[str, Any]) -> None:
        self._calls.put(lambda: self._summary(values))

    def show(self, step: int, name: str, media: Media) -> None:
        self._calls.put(lambda: self._show(step, name, media))

    def finish(self, status: str, limit_s: float | None = None) -> None:
        """End the record; waits limit_s at most (default: FINISH_S), and most_s. status: as in status.json."""
        self._calls.put(self._catch_up)
        self._calls.put(lambda: self._end(status))
        self._calls.put(None)
        limit_s = min(limit_s or FINISH_S, self._most_s)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self.lacks = True
            log.warning("%s is still busy after %.0f s", self.title, limit_s)
        if self.lacks:
            log.warning("%s lacks something of metrics.jsonl%s", self.title, self.remedy.format(shown(self._directory)))

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                if not self._has_begun:
                    self._start()
                    self._has_begun = True
                call()
            except Exception as error:
                self.lacks = True
                self._refused(error)

    def _refused(self, error: Exception) -> None:
        """Say the first thing that was refused."""
        if not self._told:
            self._told = True
            log.warning(
                "%s: %s: %s; training, metrics.jsonl and %s's next values go on, and at the end it gets what it lacks",
                self.title, type(error).__name__, redacted(first_line(error)), self.title,
            )  # fmt: skip

    def _catch_up(self) -> None:
        if self.lacks:
            self.lacks = False
            self._again(self._known())

    def _again(self, known: Mapping[str, Collection[int]], last: float = math.inf) -> None:
        """Log what metrics.jsonl has up to the step `last`, but not the library. known: {name: steps}."""
        for _, record in records(self._directory / METRICS):
            step = record["step"]
            values = {k: v for k, v in record.items() if "/" in k and v is not None and step not in known.get(k, ())}
            if values and step <= last:
                self._log(step, values)
