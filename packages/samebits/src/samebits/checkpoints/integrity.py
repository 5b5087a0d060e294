"""Verify the checksums of checkpoints, so that a file with a flipped bit does not load.

torch.save writes a zip with a CRC-32 of each record, which torch.load does not check. For other files the CRC-32 is
stored in rest.pt (sharded.py). The check reads the file one more time, from the page cache: about 0.8 s per GB, divided
among the ranks.
"""

from __future__ import annotations

import errno
import io
import pickle
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from samebits.errors import ConfigError, CorruptFileError
from samebits.files import check_regular

CHUNK = 1 << 20  # bytes
RankShare = tuple[int, int]  # (rank, ranks): which of the records or files to check
WHOLE: RankShare = (0, 1)
SPEAKING = (ValueError, RuntimeError, zipfile.BadZipFile, pickle.UnpicklingError)
OF_CONTENT = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.EINVAL)  # EINVAL: a seek to a damaged offset
NO_MEMORY = ("not enough memory", "can't allocate memory", "out of memory")


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Convert errors from reading a damaged or foreign file in this block to CorruptFileError with a one-line message.

    Errors that do not depend on the file's content pass unchanged: no memory, no permission, an I/O error. Raise
    ConfigError if torch maps the file, and its path is not UTF-8.
    """
    try:
        yield
    except ConfigError:
        raise
    except Exception as error:
        elsewhere = isinstance(error, OSError) and error.errno not in OF_CONTENT
        if elsewhere or isinstance(error, MemoryError) or any(text in str(error).lower() for text in NO_MEMORY):
            raise
        if isinstance(error, UnicodeEncodeError) and str(path) in error.object:
            raise ConfigError(
                f"{path}: torch maps no file whose path is not UTF-8 - rename it, or unset LC_ALL and PYTHONUTF8, "
                "which choose the encoding in which Python reads it"
            ) from None
        raise CorruptFileError(f"{path} does not load: {error_line(error)}") from error


def error_line(error: BaseException) -> str:
    """Return the first line of an error's message. The error's type precedes it if the message needs it."""
    lines = str(error).strip().splitlines()
    if lines and isinstance(error, SPEAKING):
        return lines[0]
    return ": ".join([type(error).__name__, *lines[:1]])


def disk_error(error: BaseException | None) -> OSError | None:
    """Return the OSError (full disk) that caused an error of torch.save's zip writer, or None."""
    while error is not None and not isinstance(error, OSError):
        error = error.__context__
    return error


def failure_line(error: Exception) -> str:
    """Return one line that says why a file could not be written."""
    cause = disk_error(error)
    return cause.strerror if cause and cause.strerror else error_line(error)


def mapped(path: Path) -> Any:
    """Return the content of a file from torch.save, memory-mapped.

    Tensors are read when they are used: the ranks of a host share the pages, and unused tensors (the optimizer's state
    in an evaluation) take no memory.
    """
    try:
        return torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except RuntimeError as error:
        if "unable to mmap" not in str(error):
            raise
        return torch.load(path, map_location="cpu", weights_only=True)  # a file system without mmap


def load_verified(path: Path, share: RankShare = WHOLE) -> Any:
    """Return the content of a file from save_checkpoint, on the CPU. Raise CorruptFileError if it is damaged."""
    with reading(path):
        check_zip(path, share)
        content = mapped(path)
        check_tensors(content)
        return content


def check_tensors(content: Any) -> None:
    """Raise ValueError for a tensor that is larger than its data in the file.

    A tensor with a stride of 0 can be saved in a few bytes and need any amount of memory when it is used. Sparse
    tensors are not compared; meta, quantized and nested tensors are refused.
    """
    held, seen = [content], set()
    while held:
        value = held.pop()
        if isinstance(value, torch.Tensor):
            if value.is_meta or value.is_quantized or value.is_nested:
                raise ValueError("it contains a meta, quantized or nested tensor, which a run never saves")
            dense = value.layout == torch.strided
            if dense and value.numel() * value.element_size() > value.untyped_storage().nbytes():
                raise ValueError(
                    f"it contains a tensor of shape {tuple(value.shape)} that is larger than its saved data"
                )
        elif isinstance(value, (dict, list, tuple, set)) and id(value) not in seen:
            seen.add(id(value))
            held += [*value, *value.values()] if isinstance(value, dict) else value


def check_zip(path: Path, share: RankShare = WHOLE) -> None:
    """Raise ValueError or BadZipFile if a record of a file from torch.save does not match its CRC-32."""
    rank, ranks = share
    with zipfile.ZipFile(path) as archive:
        for record in archive.infolist()[rank::ranks]:
            # torch writes records uncompressed and without attributes. Any other header is damaged, and torch would
            # read other bytes than zipfile checks
            stored = record.compress_type == zipfile.ZIP_STORED and record.compress_size == record.file_size
            if not stored or record.external_attr:
                raise ValueError(f"the entry of {record.filename!r} is damaged")
            with archive.open(record) as file:
                while file.read(CHUNK):  # raises BadZipFile at the end if the CRC-32 differs
                    pass


def check_files(directory: Path, sizes: dict[str, int], sums: dict[str, int], share: RankShare = WHOLE) -> None:
    """Raise if a file of this rank's share is missing, has another size, or does not match its CRC-32.

    sizes: {file name: bytes}; sums: {file name: CRC-32}. Raise ValueError if any name is a path.
    """
    for name in sizes:
        if Path(name).name != name or name == "..":
            raise ValueError(f"{name!r} is not a file name")
    rank, ranks = share
    for name in sorted(sizes)[rank::ranks]:
        try:
            there = check_regular(directory / name)
        except FileNotFoundError:
            raise ValueError(f"{name} is missing") from None
        if there != sizes[name]:
            raise ValueError(f"{name} has {there:,} bytes, expected {sizes[name]:,}")
        if name in sums and file_sum(directory / name) != sums[name]:
            raise ValueError(f"{name} is damaged (its CRC-32 differs)")


def file_sum(path: Path) -> int:
    """Return the CRC-32 of a file."""
    found = 0
    with open(path, "rb") as file:
        while chunk := file.read(CHUNK):
            found = zlib.crc32(chunk, found)
    return found


class Summing(io.RawIOBase):
    """A file that is written sequentially. `sum` is the CRC-32 of the bytes written so far.

    A tensor is written in up to 39 parts. An io.BufferedWriter in front collects them, so that this code, which the
    training loop waits for, runs once per CHUNK.
    """

    def __init__(self, file: io.FileIO) -> None:
        self._file, self.sum = file, 0

    def writable(self) -> bool:
        """Return True."""
        return True

    def write(self, data: Any) -> int:
        """Write the data, or the first part of it, and update `sum`. Return the number of bytes."""
        count = self._file.write(data)
        self.sum = zlib.crc32(memoryview(data)[:count], self.sum)
        return count

    def tell(self) -> int:
        """Return the number of bytes written so far."""
        return self._file.tell()
