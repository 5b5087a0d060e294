"""Checksums of checkpoints: a file with a flipped bit must not load.

torch.save writes a zip with a CRC-32 of each record, which torch.load does not check. For other files the CRC-32 is
stored in rest.pt (shards.py). A check reads the file once more, from the page cache: about 0.8 s per GB, divided among
the ranks.
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

import torch

from samebits.errors import CorruptFileError
from samebits.files import check_regular

CHUNK = 1 << 20  # bytes
Share = tuple[int, int]  # (rank, ranks): which of the records or files to check
WHOLE: Share = (0, 1)
SPEAKING = (ValueError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError)
OF_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)  # EINVAL: a seek to a damaged offset
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """In this block errors from reading a damaged or foreign file become CorruptFileError, with a one-line message.

    Errors that do not depend on the file's content are not changed: no memory, no permission, an I/O error.
    """
    try:
        yield
    except CorruptFileError:
        raise
    except Exception as error:
        elsewhere = isinstance(error, OSError) and error.errno not in OF_CONTENT
        if elsewhere or isinstance(error, MemoryError) or any(text in str(error).lower() for text in NO_MEMORY):
            raise
        raise CorruptFileError(f"{path} does not load: {error_line(error)}") from error


def error_line(error: BaseException) -> str:
    """Returns the message's first line, after the error's type unless it is clear without that (SPEAKING)."""
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, SPEAKING):
        return lines[0]
    return ": ".join([type(error).__name__, *lines[:1]])


def mapped(path: Path) -> Any:
    """Returns what torch.save wrote. Tensors are pages of the file, read when they are used: the ranks of a host share
    them, and what is never used (an optimizer's state, for scores) takes no memory."""
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "unable to mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)  # a file system that maps no files


def load_verified(path: Path, share: Share = WHOLE) -> Any:
    """Returns what save_checkpoint has written there, whatever it is, on the CPU. Raises CorruptFileError."""
    with reading(path):
        check_zip(path, share)
        content = mapped(path)
        check_tensors(content)
        return content


def check_tensors(content: Any) -> None:
    """Raise for a tensor in it that has no memory of its own in the file, for each of its values: a stride of 0 asks
    for any amount of it when it is used, with a few bytes saved. A sparse tensor is its values and their indices."""
    held, seen = [content], set()
    while held:
        value = held.pop()
        if isinstance(value, torch.Tensor):
            if value.is_meta or value.is_quantized or value.is_nested:
                raise ValueError("it holds a tensor that is meta, quantized or nested, which no run saves")
            dense = value.layout == torch.strided
            if dense and value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise ValueError(f"it holds a tensor {tuple(value.shape)} that is larger than what was saved of it")
        elif isinstance(value, (dict, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            held += [*value, *value.values()] if isinstance(value, dict) else value


def check_zip(path: Path, share: Share = WHOLE) -> None:
    """Raise if a record of a file that torch.save wrote does not match its CRC-32. share: see `Share`."""
    rank, ranks = share
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist()[rank::ranks]:
            # torch writes records uncompressed and without attributes; a header that says otherwise is damaged, and
            # torch would read other bytes than zipfile checks
            stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
            if not stored or record.external_attr:
                raise ValueError(f"the entry of {record.filename!r} is damaged")
            with archive.open(record) as file:
                while file.read(CHUNK):  # raises BadZipFile at the end if the CRC-32 differs
                    pass


def check_files(directory: Path, sizes: dict[str, int]) -> None:
    """Raise if the directory lacks a file or has another size of it, or if a name leads elsewhere. sizes: {file name:
    bytes}."""
    for name, size in sizes.items():
        if Path(name).name != name or name == "..":
            raise ValueError(f"{name!r} is no name of a file")
        if (there := check_regular(directory / name)) != size:
            raise ValueError(f"{name} has {there:,} of its {size:,} bytes")


def check_sums(directory: Path, sums: dict[str, int], share: Share = WHOLE) -> None:
    """Raise if a file in the directory does not match. sums: {file name: CRC-32} of files that `check_files` knows."""
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
    """Wraps a file that is written sequentially; `sum` is the CRC-32 of the bytes written so far."""

    def __init__(self, file: Any) -> None:
        self._file, self.sum = file, 0

    def write(self, data: Any) -> int:
        self.sum = zlib.crc32(data, self.sum)
        return self._file.write(data)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._file, name)
