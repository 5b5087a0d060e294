"""A thread that makes all calls of one logging library, in order: training never waits for a network or a disk."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from engine.files import records
from engine.loggers.media import Media
from engine.project import Project
from engine.runs import METRICS

log = logging.getLogger("engine")
FINISH_S = 60.0  # time for unsent data at the end


class Background:
    """One logging library's record of the run. Subclasses have the methods with an underscore, which the thread calls.

    An error is logged once and ends the logging there, not the training. from_step: the checkpoint's, of a resumed run.
    most_s: limit of the wait at the end.
    """

    title = ""  # as the user knows the library
    _start: Callable[[], None]
    _log: Callable[[int, dict[str, float]], None]
    _summary: Callable[[dict[str, Any]], None]
    _show: Callable[[int, str, Media], None]
    _end: Callable[[str], None]  # status

    def __init__(self, project: Project, run_dir: Path, from_step: int, most_s: float) -> None:
        self._project, self._directory, self._from_step = project, run_dir, from_step
        self._calls: SimpleQueue[Callable[[], object] | None] = SimpleQueue()
        self._calls.put(self._start)
        self._most_s = most_s
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
        self._calls.put(lambda: self._end(status))
        self._calls.put(None)
        limit_s = min(limit_s or FINISH_S, self._most_s)
        self._thread.join(limit_s)
        if self._thread.is_alive():
            log.warning("%s is still busy after %.0f s", self.title, limit_s)

    def _work(self) -> None:
        while (call := self._calls.get()) is not None:
            try:
                call()
            except Exception as error:
                what = f"{type(error).__name__}: {error}"
                log.warning("%s stopped (%s); metrics.jsonl goes on", self.title, what)
                return

    def _again(self, known: Mapping[str, Collection[int]]) -> None:
        """Log what a killed process had written to metrics.jsonl by `from_step`, but not here. known: {name: steps}."""
        for _, record in records(self._directory / METRICS):
            step = record["step"]
            values = {k: v for k, v in record.items() if "/" in k and v is not None and step not in known.get(k, ())}
            if values and step <= self._from_step:
                self._log(step, values)
