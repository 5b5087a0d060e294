"""Runs that are still running, kept in memory: new lines of their files are read, and nothing twice."""

from __future__ import annotations

import json
import math
import os
import sys
import time
from array import array
from contextlib import suppress
from pathlib import Path
from threading import Lock
from typing import Any

from samebits.errors import ConfigError, first_line, visible
from samebits.files import open_regular, read_end, read_json
from samebits.runs import SILENT_S, UNDER_WAY, current_status
from samebits.status import METRICS, RESULT, STATUS
from samebits.sweeps.report.read import runs_below

TRAIN_LOG = "train.log"
FILES = (STATUS, RESULT, METRICS, TRAIN_LOG)
SCAN_S, SCAN_SHARE = 1.0, 20.0  # between two searches for new runs: seconds, and how often as long as one takes
ASK_S = 10.0  # seconds without a write until the lock of a run is tried; a run that writes is running
POINTS = 4_000_000  # maximum number of points of all curves; longer curves are thinned
FEWEST, MOST = 60, 1200  # points of one curve
CHUNK = 1 << 24  # bytes of one metrics.jsonl that are read at once
END = 4096  # bytes at the end of a log that are read
TAIL = 256  # bytes before the offset that are compared, because a resume writes the file again


class Curve:
    """The points of one key, thinned evenly: every stride-th point and the last one. steps, values: (n,)."""

    def __init__(self) -> None:
        self.steps, self.values = array("q"), array("d")
        self._stride, self._count = 1, 0
        self._last: tuple[int, float] | None = None

    def add(self, step: int, value: float, most: int) -> None:
        """Append a point, and keep at most `most` points."""
        self._last = (step, value)
        if self._count % self._stride == 0:
            self.steps.append(step)
            self.values.append(value)
            while len(self.steps) > most:
                self.steps, self.values = self.steps[::2], self.values[::2]
                self._stride *= 2
        self._count += 1

    def points(self) -> list[list[float]]:
        """Return [steps, values]."""
        steps, values = list[float](self.steps), [float(f"{value:.6g}") for value in self.values]
        if self._last and steps[-1:] != [self._last[0]]:
            steps.append(self._last[0])
            values.append(float(f"{self._last[1]:.6g}"))
        return [steps, values]


class LiveRun:
    """One run directory. version: version of LiveRuns at its last change."""

    def __init__(self, path: Path, name: str) -> None:
        self.path, self.name, self.version = path, name, 0
        self.status, self.error, self.log, self.step = "queued", "", "", 0
        self.curves: dict[str, Curve] = {}
        self.score: dict[str, float] = {}
        self.written = 0.0  # time.time() of the last write to one of its files
        self._known: dict[str, tuple[int, int, int]] = {}  # {file: inode, size, mtime_ns}
        self._offset, self._tail = 0, b""
        self._asked = 0.0

    def refresh(self, now: float, most: int) -> bool:
        """Read what is new. Return True if something has changed. most: points of each curve."""
        before = (self.status, self.error)
        changed = {name for name in FILES if self._has_changed(name)}
        try:
            if self._read_status(now, bool(changed)):  # first, because a run writes it last: the others are complete
                changed |= {name for name in FILES if name != STATUS and self._has_changed(name)}
            if METRICS in changed:
                self._read_metrics(most)
            if TRAIN_LOG in changed:
                self.log = last_line(self.path / TRAIN_LOG)
            if RESULT in changed:
                result = read_json(self.path / RESULT)
                self.score = {k: v for k, v in result.items() if "/" in k and is_number(v)}
        except (ConfigError, OSError) as error:  # a damaged file of one run does not end the page
            self.status, self.error = "unreadable", visible(first_line(error))
            for name in changed:
                self._known.pop(name, None)
        return bool(changed) or before != (self.status, self.error)

    def row(self, key: str) -> dict[str, Any]:
        """Return the run as JSON types, with the curve of one key."""
        curve = self.curves.get(key)
        latest = curve.values[-1] if curve and curve.values else None
        return {
            "name": self.name,
            "status": self.status,
            "error": self.error,
            "log": self.log,
            "step": self.step,
            "written": self.written,
            "score": self.score.get(key),
            "latest": curve.points()[1][-1] if curve and latest is not None else None,
            "curve": curve.points() if curve else [[], []],
        }

    def _has_changed(self, name: str) -> bool:
        try:
            found = os.lstat(self.path / name)
        except OSError:
            return self._known.pop(name, None) is not None
        stamp = (found.st_ino, found.st_size, found.st_mtime_ns)
        self.written = max(self.written, found.st_mtime)
        if self._known.get(name) == stamp:
            return False
        self._known[name] = stamp
        return True

    def _read_status(self, now: float, changed: bool) -> bool:
        """Update the status. Return False if it need not be read. The lock is tried rarely, and only while the status
        is running, because a run that starts at that moment would find it held."""
        if not changed and (self.status not in (*UNDER_WAY, "silent") or now - self._asked < ASK_S):
            return False
        record = read_json(self.path / STATUS)
        self.error = visible(str(record.get("error") or "").strip().partition("\n")[0])
        self.status = str(record.get("status", "queued"))
        if self.status in UNDER_WAY and now - self.written >= ASK_S:
            self._asked = now
            self.status = current_status(self.path)
            if self.status in UNDER_WAY and now - self.written >= SILENT_S:
                self.status = "silent"
        return True

    def _read_metrics(self, most: int) -> None:
        """Read the lines after the offset; all of them if the file was written again, as a resume does."""
        try:
            file = open_regular(self.path / METRICS)
        except FileNotFoundError:
            return
        with file:
            size = os.fstat(file.fileno()).st_size
            file.seek(max(0, self._offset - len(self._tail)))
            if size < self._offset or file.read(len(self._tail)) != self._tail:
                self.curves, self.step, self._offset, self._tail = {}, 0, 0, b""
                file.seek(0)
            data = file.read(CHUNK)
        whole = data[: data.rfind(b"\n") + 1]  # the rest is still being written
        self._offset += len(whole)
        self._tail = (self._tail + whole)[-TAIL:]
        if len(data) == CHUNK:
            self._known.pop(METRICS, None)  # the next call reads on
            if not whole:
                raise ConfigError(f"{self.path / METRICS}: damaged, it has a line of more than {CHUNK:,} bytes")
        for line in whole.splitlines():
            with suppress(ValueError, RecursionError):
                self._add(json.loads(line), most)

    def _add(self, record: Any, most: int) -> None:
        if not isinstance(record, dict) or type(record.get("step")) is not int or abs(record["step"]) >= 1 << 62:
            return
        self.step = record["step"]
        for key, value in record.items():
            if "/" in key and is_number(value):
                self.curves.setdefault(key, Curve()).add(self.step, float(value), most)


class LiveRuns:
    """All runs below some folders. `refresh` is called by one thread, `rows` by any."""

    def __init__(self, folders: list[Path], root: Path) -> None:
        self._folders, self._root = folders, root
        self._runs: dict[Path, LiveRun] = {}
        self._gone: dict[str, int] = {}  # {name: version}
        self._lock, self._version, self._next_scan, self.read = Lock(), 0, -math.inf, 0

    def refresh(self) -> None:
        """Find new runs from time to time, and read what is new of all runs."""
        began = time.monotonic()
        if began >= self._next_scan:
            self._scan()
            now = time.monotonic()
            self._next_scan = now + max(SCAN_S, SCAN_SHARE * (now - began))
        most = max(FEWEST, min(MOST, POINTS // (20 * max(len(self._runs), 1))))
        for count, run in enumerate(list(self._runs.values()), 1):
            with self._lock:
                if run.refresh(time.time(), most) or not run.version:
                    self._version += 1
                    run.version = self._version
            self.read = max(self.read, count)

    def _scan(self) -> None:
        found: dict[Path, None] = {}
        for folder in self._folders:
            with suppress(FileNotFoundError):  # it has been removed
                found |= dict.fromkeys(runs_below(folder))
        with self._lock:
            for path in [path for path in self._runs if path not in found]:
                self._version += 1
                self._gone[self._runs.pop(path).name] = self._version
            for path in found:
                if path not in self._runs:
                    self._runs[path] = LiveRun(path, os.path.relpath(path, self._root))
                    self._gone.pop(self._runs[path].name, None)

    def rows(self, key: str, since: int) -> dict[str, Any]:
        """Return the runs that have changed since a version, as JSON types. key: the curve that is shown."""
        with self._lock:
            keys = {key for run in self._runs.values() for key in run.curves}
            return {
                "version": self._version,
                "now": time.time(),
                "count": len(self._runs),
                "read": min(self.read, len(self._runs)),
                "keys": sorted(keys, key=lambda k: (not k.startswith("val"), not k.startswith("train"), k)),
                "gone": [name for name, version in self._gone.items() if version > since],
                "runs": [run.row(key) for run in self._runs.values() if run.version > since],
            }


def is_number(value: Any) -> bool:
    """Return True for a number that a page can show: not NaN, infinite or an integer too large for a float."""
    return isinstance(value, (int, float)) and abs(value) <= sys.float_info.max


def last_line(path: Path) -> str:
    """Return the last line of a log that is not empty, without control characters; "" without the file."""
    try:
        lines = read_end(path, END).decode(errors="replace").splitlines()
    except FileNotFoundError:
        return ""
    return visible(next((line.strip() for line in reversed(lines) if line.strip()), ""))[:500]
