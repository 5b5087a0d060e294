"""Log to metrics.csv in the run directory: one row per step, one column per metric.

The file is computed from metrics.jsonl whenever a run starts, so after a kill and a resume it has each row once. The
last row is completed in place; for a new column or an earlier step the file is computed again and replaced.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from samebits.files import as_json, no_links, records, replace_text
from samebits.loggers.background import Background
from samebits.loggers.media import Media, csv_text
from samebits.status import METRICS

FILE, STEP = "metrics.csv", "step"


class CSVThread(Background):
    """The thread that writes metrics.csv. lines: number of lines of metrics.jsonl that a resumed run keeps; None: those
    up to from_step. own: arguments of `Background`."""

    title = "CSV"

    def __init__(self, lines: int | None, *own: Any) -> None:
        self._lines = lines
        self._columns: list[str] = []  # names of metrics, in the order of their appearance
        self._step, self._row, self._begin = -1, dict[str, str](), 0  # the last row, and its position in bytes
        super().__init__(*own)

    def _start(self) -> None:
        if self._lines is None:
            self._rebuild(record for record in self._records() if record[STEP] <= self._from_step)
        else:
            self._rebuild(islice(self._records(), self._lines))

    def _records(self) -> Iterator[dict[str, Any]]:
        return (record for _, record in records(self._directory / METRICS))

    def _rebuild(self, kept: Iterable[dict[str, Any]]) -> None:
        """Write the file from records of metrics.jsonl."""
        rows: dict[int, dict[str, str]] = {}
        self._columns = []
        for record in kept:
            metrics = {k: v for k, v in record.items() if k not in (STEP, "time") and not isinstance(v, dict)}
            if metrics:  # a line about media has none
                rows.setdefault(record[STEP], {}).update(_texts(metrics))
                self._columns = list(dict.fromkeys([*self._columns, *metrics]))
        lines = [csv_text([[STEP, *self._columns]]).encode(), *(self._line(step, rows[step]) for step in sorted(rows))]
        replace_text(self._directory / FILE, b"".join(lines))
        self._step = max(rows, default=-1)
        self._row, self._begin = rows.get(self._step, {}), sum(map(len, lines[:-1]))

    def _log(self, step: int, values: dict[str, float]) -> None:
        texts = _texts(values)
        if step < self._step or not texts.keys() <= {*self._columns}:
            last = max(step, self._step)  # later ones are in the queue
            self._rebuild(record for record in self._records() if record[STEP] <= last)
            return
        row, begin = dict(self._row), self._begin
        with open(self._directory / FILE, "r+b", buffering=0, opener=no_links) as file:
            if step > self._step:
                row, begin = {}, file.seek(0, os.SEEK_END)
            row |= texts
            line = self._line(step, row)
            if os.pwrite(file.fileno(), line, begin) < len(line):
                raise OSError(f"{self._directory / FILE}: the disk is full")
            file.truncate(begin + len(line))  # a value that is replaced may be shorter
        self._step, self._row, self._begin = step, row, begin

    def _line(self, step: int, row: dict[str, str]) -> bytes:
        return csv_text([[str(step), *(row.get(name, "") for name in self._columns)]]).encode()

    def _catch_up(self) -> None:
        if self.lacks:
            self.lacks = False
            self._rebuild(self._records())

    def _summary(self, values: dict[str, Any]) -> None:
        """Do nothing: result.json contains the final values."""

    def _show(self, step: int, name: str, media: Media) -> None:
        """Do nothing: media are files of the run."""

    def _end(self, status: str) -> None:
        """Do nothing: each row is written when it is logged."""


def _texts(values: dict[str, Any]) -> dict[str, str]:
    """Return the values as metrics.jsonl has them; a value that is not finite is an empty cell."""
    return {name: "" if (text := as_json(value)) == "null" else text for name, value in values.items()}
