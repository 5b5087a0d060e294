"""Whether a checkpoint is what was written: a flipped bit must not load as another value.

torch.save writes a zip with a CRC-32 of each record, which torch.load ignores. Files that are no zips have their sums
written beside them (shards.py). Checking reads a file once more, from the page cache: about 0.8 s per GB, and the ranks
of a run share it.
"""

from __future__ import annotations

import errno
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from engine.errors import Damaged

CHUNK = 1 << 20  # bytes
Share = tuple[int, int]  # (rank, ranks): which of the records or files to check
WHOLE: Share = (0, 1)
SPEAKING = (ValueError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError)
OF_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)  # EINVAL: a damaged offset, to seek to
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Whatever a damaged or foreign file makes its reader raise becomes Damaged, in one line.

    What says nothing of the file's content passes: no memory, no permission, a disk that cannot be read.
    """
    try:
        yield
    except Damaged:
        raise
    except Exception as error:
        elsewhere = isinstance(error, OSError) and error.errno not in OF_CONTENT
        if elsewhere or isinstance(error, MemoryError) or any(text in str(error).lower() for text in NO_MEMORY):
            raise
        raise Damaged(f"{path} does not load: {one_line(error)}") from error


def one_line(error: BaseException) -> str:
    """The first line of what it says; after its type where that is needed, as a KeyError's text is a mere name."""
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, SPEAKING):
        return lines[0]
    return ": ".join([type(error).__name__, *lines[:1]])


def check_zip(path: Path, share: Share = WHOLE) -> None:
    """Raise where a record of a file that torch.save wrote is not what was written."""
    rank, ranks = share
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist()[rank::ranks]:
            # as torch writes them: otherwise torch reads other bytes than zipfile (of what is marked a folder, none)
            stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
            if not stored or record.external_attr:
                raise ValueError(f"the entry of {record.filename!r} is damaged")
            with archive.open(record) as file:
                while file.read(CHUNK):  # raises at its end where the sum differs
                    pass


def check_sums(directory: Path, sums: dict[str, int], share: Share = WHOLE) -> None:
    """sums: CRC-32 of files in the directory, by name."""
    rank, ranks = share
    for name in sorted(sums)[rank::ranks]:
        if file_sum(directory / name) != sums[name]:
            raise ValueError(f"{name} is not what was written (its CRC-32 differs)")


def file_sum(path: Path) -> int:
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


class Summing:
    """A file that is written from start to end, and its CRC-32."""

    def __init__(self, file: Any) -> None:
        self._file, self.sum = file, 0

    def write(self, data: Any) -> int:
        self.sum = zlib.crc32(data, self.sum)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
