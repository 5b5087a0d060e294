"""Call one logging library from a thread, in order, so that training never waits for a network or a disk."""

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
FINISH_S = 60.0  # seconds for unsent data at the end


class Background:
    """A copy of the run's metrics in one logging library. The thread calls the methods with an underscore, which
    subclasses implement.

    The first error is logged and the next call is made anyway; at the end, everything that is missing is logged again.
    from_step: the step of the checkpoint, for a resumed run. most_s: limit for the wait at the end, in seconds. lacks:
    True if data are missing in the library.
    """

    title = remedy = ""  # name of the library; how to add missing data
    _start: Callable[[], None]
    _log: Callable[[int, dict[str, float]], None]
    _known: Callable[[], Mapping[str, Collection[int]]]  # {name: steps} that it already has
    _summary: Callable[[dict[str, Any]], None]
    _show: Callable[[int, str, Media], None]
    _end: Callable[[str], None]  # status

    def __init__(self, project: Project, run_dir: Path, from_step: int, most_s: float) -> None:
        self._project, self._directory, self._from_step = project, run_dir, from_step
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._most_s, self._has_begun, self.lacks, self._told = most_s, False, False, False
        self._calls.put(lambda: None)  # starts the library
        # a daemon: if the library hangs, the process can still end and release its GPU and the lock of its directory
        self._thread = threading.Thread(target=self._work, name=self.title, daemon=True)
        self._thread.start()

    def log(self, step: int, values: dict[str, float]) -> None:
        """Queue {name: value} of a step."""
        self._calls.put(lambda: self._log(step, values))

    def summary(self, values: dict[str, Any]) -> None:
        """Queue values of the whole run."""
        self._calls.put(lambda: self._summary(values))

    def show(self, step: int, name: str, media: Media) -> None:
        """Queue an image, table or other media of a step."""
        self._calls.put(lambda: self._show(step, name, media))

    def finish(self, status: str, limit_s: float | None = None) -> None:
        """Log what is missing, then close the copy. Wait at most limit_s (default: FINISH_S) and at most most_s
        seconds. status: as in status.json."""
        self._calls.put(self._catch_up)
        self._calls.put(lambda: self._end(status))
        self._calls.put(None)
        limit_s = min(limit_s or FINISH_S, self._most_s)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            self.lacks = True
            log.warning("%s is still busy after %.0f s", self.title, limit_s)
        if self.lacks:
            log.warning(
                "%s: some values of metrics.jsonl are missing%s", self.title, self.remedy.format(shown(self._directory))
            )

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
        """Log the first error only."""
        if not self._told:
            self._told = True
            log.warning(
                "%s: %s: %s; training continues, and values that are missing in %s are logged again at the end",
                self.title, type(error).__name__, redacted(first_line(error)), self.title,
            )  # fmt: skip

    def _catch_up(self) -> None:
        if self.lacks:
            self.lacks = False
            self._again(self._known())

    def _again(self, known: Mapping[str, Collection[int]], last: float = math.inf) -> None:
        """Log the values of metrics.jsonl up to step `last` that the library does not have. known: {name: steps}."""
        for _, record in records(self._directory / METRICS):
            step = record["step"]
            values = {k: v for k, v in record.items() if "/" in k and v is not None and step not in known.get(k, ())}
            if values and step <= last:
                self._log(step, values)
