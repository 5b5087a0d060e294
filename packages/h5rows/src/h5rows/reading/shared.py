"""Values that all splits of a data set need, such as the column of `by`: read once, not once per split or process."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, BinaryIO

import numpy as np

from h5rows.reading.external import REFUSE_EXTERNAL
from h5rows.reading.opening import is_remote
from h5rows.reading.stored import identity

Arrays = Sequence[np.ndarray]
_HEAD = 8  # bytes at the beginning of a shared file: where the last complete entry ends


class _Kept(dict[Any, Any]):
    """What is kept until the end of a block of `reading_once`. file: see there."""

    def __init__(self, file: BinaryIO | None) -> None:
        super().__init__()
        self.file, self._end = file, _HEAD

    def find(self, key: str, make: Callable[[], Arrays]) -> Arrays:
        """Return what is kept of a key, or make() if no process has it."""
        if key in self:
            return self[key]
        if (file := self.file) is None:
            return self.setdefault(key, make())
        fcntl.flock(file, fcntl.LOCK_EX)  # the kernel releases it if this process ends
        try:
            self._take(file)
            if key not in self:
                self.file = None  # a call by make() must not release the lock
                self[key] = make()
                self._add(file, key)
            return self[key]
        finally:
            self.file = file
            fcntl.flock(file, fcntl.LOCK_UN)

    def _take(self, file: BinaryIO) -> None:
        """Keep what other processes have added since the last call."""
        end = int.from_bytes(os.pread(file.fileno(), _HEAD, 0), "little")
        file.seek(self._end)
        while file.tell() < end:
            key, count = np.load(file).tolist()
            self[key] = [np.load(file) for _ in range(int(count))]
        self._end = file.tell()

    def _add(self, file: BinaryIO, key: str) -> None:
        """Add an entry for the other processes. One that a killed process has begun is overwritten."""
        file.seek(self._end)
        for array in (np.array([key, str(len(self[key]))]), *self[key]):
            np.save(file, array, allow_pickle=False)
        self._end = file.tell()
        os.pwrite(file.fileno(), self._end.to_bytes(_HEAD, "little"), 0)


_kept: ContextVar[_Kept | None] = ContextVar("kept", default=None)


@contextmanager
def reading_once(file: BinaryIO | None = None) -> Iterator[None]:
    """In this block, keep the columns that data sets read to choose their rows or to number their classes, and large
    descriptions of files, so that the splits of one data set read them once, and the rows of files that grow (swmr).

    file: share the columns with other processes, so that one of them reads each. A local file without a buffer that
    begins empty; each process has opened it by itself, because its lock and its position are of an open file."""
    token = _kept.set(_Kept(file))
    try:
        yield
    finally:
        _kept.reset(token)


def kept() -> _Kept | None:
    """Return what is kept until the end of the block of `reading_once`; None outside of such a block."""
    return _kept.get()


def once(files: Sequence[str], key: object, make: Callable[[], Arrays], swmr: bool, external: str) -> Arrays:
    """Return make(); in `reading_once`, return the result of an earlier call for the same files and key.

    Files that may change while they are open, or that lead to other files, are read again.
    """
    block = _kept.get()
    if block is None or swmr or external != REFUSE_EXTERNAL or any(map(is_remote, files)):
        return make()
    return block.find(repr((*zip(files, map(identity, files)), str(key))), make)


def coded(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return (distinct values in ascending order, the index in them of each value) of values (N,)."""
    values = values.astype(str) if values.dtype == object else values
    distinct, codes = np.unique(values, return_inverse=True)
    return distinct, codes.astype(np.min_scalar_type(len(distinct)))
