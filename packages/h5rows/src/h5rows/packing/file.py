"""The temporary file OUT.partial: create it in full size, fill it in place, verify it, rename it to OUT.

HDF5 writes no rows: every dataset is contiguous and allocated, and workers call pwrite at its offset.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.errors import ConfigError, errno_of, printable
from h5rows.locks import Busy, Lock

try:
    from isal.isal_zlib import crc32  # the same values as zlib's, about 30 times faster
except ImportError:
    from zlib import crc32

PAGE = 4096  # bytes; datasets begin at a page, so that no page has both mapped rows and metadata


@dataclass(frozen=True)
class Column:
    """A dataset to create: its path in the file, its shape with the rows first, its attributes."""

    path: str
    shape: tuple[int, ...]
    dtype: np.dtype
    attrs: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Span:
    """`size` written bytes of a dataset, from byte `begin`, and their crc32."""

    path: str
    begin: int
    size: int
    crc: int


@contextlib.contextmanager
def under_work(out: Path, overwrite: bool) -> Iterator[Path]:
    """Yield the path OUT.partial, which the body creates. Rename it to OUT at the end; remove it if the body raises.

    OUT.partial.lock is locked during this time, so that no other pack writes the file. Files left by a killed pack are
    replaced."""
    temp, place = out.with_name(f"{out.name}.partial"), out.with_name(f"{out.name}.partial.lock")
    with written(out):
        if not out.parent.is_dir():
            raise ConfigError(f"{out.parent} is not a folder; create it first")
        if out.is_dir():
            raise ConfigError(f"{out} is a folder; name the file in it")
        if out.exists() and not out.is_file():
            raise ConfigError(f"{out} is a pipe, a socket or a device; give a file")
        with locked(place):
            try:
                if out.exists() and not overwrite:
                    raise ConfigError(f"{out} exists; overwrite=True replaces it")
                with full_disk(out, temp):
                    yield temp
                    temp.replace(out)
                    with written(out, "is complete, but its name may be lost if the machine stops now"):
                        flush(out.parent, os.O_RDONLY)
            finally:
                temp.unlink(missing_ok=True)
                place.unlink(missing_ok=True)


@contextlib.contextmanager
def written(out: Path, what: str = "cannot be written") -> Iterator[None]:
    """Turn an OSError of the body into a ConfigError of one line about `out`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        said = " ".join(filter(None, [error.strerror or str(error), error.filename and f"({error.filename})"]))
        remedy = "check the disk and the permissions, then try again"
        raise ConfigError(printable(f"{out}: {what}: {said}; {remedy}")) from error


def locked(path: Path) -> Lock:
    """Return the lock. Raise ConfigError if another pack has it, or if it cannot be written."""
    for attempt in range(20):  # workers of a pack that was just killed keep the lock for a moment
        try:
            return Lock(path)
        except Busy:
            if attempt < 19:
                time.sleep(0.1)
        except OSError as error:
            denied = isinstance(error, PermissionError)
            remedy = "check its permissions" if denied else "its file system may have no locks"
            what = f"cannot be written or locked: {error.strerror}; {remedy}, or pack into another folder"
            raise ConfigError(f"{path}: {what}") from error
    raise ConfigError(f"{path} is locked: another pack is writing this file; wait for it or end it")


def create(
    path: Path,
    columns: list[Column],
    attrs: Mapping[str, Any],
    groups: Mapping[str, Mapping[str, Any]],
) -> dict[str, int]:
    """Create the file with all datasets allocated and not filled. Return {dataset: offset of its bytes in the file}.

    Datasets of a page or more begin at a page. groups: {path of a group: its attributes}."""
    path.unlink(missing_ok=True)  # not truncated: a worker of a pack that was just killed may still write to it
    with new_file(path, timeless(h5py.h5p.FILE_CREATE), (PAGE, PAGE)) as file:
        for column in columns:
            for name in accumulate(column.path.strip("/").split("/")[:-1], "{}/{}".format):
                if name not in file:
                    h5py.h5g.create(file.id, name.encode(), gcpl=timeless(h5py.h5p.GROUP_CREATE))
            allocate(file, column, timeless(h5py.h5p.DATASET_CREATE), None, file.id)
        set_attrs(file, attrs)
        for group, held in groups.items():
            set_attrs(file[group or "/"], held)
    reserve(path)
    return offsets(path)


def timeless(kind: Any) -> Any:
    """Return creation properties of this kind without timestamps, so that the same rows give the same bytes."""
    made = h5py.h5p.create(kind)
    made.set_obj_track_times(False)
    return made


def allocate(file: h5py.File, column: Column, plan: Any, kind: Any = None, parent: Any = None) -> Any:
    """Create a contiguous dataset, not filled. plan: its other creation properties. parent: None leaves it unnamed."""
    plan.set_layout(h5py.h5d.CONTIGUOUS)
    plan.set_alloc_time(h5py.h5d.ALLOC_TIME_EARLY)
    links = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    links.set_char_encoding(h5py.h5t.CSET_UTF8)
    kind = h5py.h5t.py_create(column.dtype, logical=True) if kind is None else kind
    made = h5py.h5d.create(file.id, None, kind, h5py.h5s.create_simple(column.shape), plan)
    if parent is not None:
        name = column.path if parent == file.id else column.path.rpartition("/")[2]
        h5py.h5o.link(made, parent, name.encode(), lcpl=links)
    set_attrs(h5py.Dataset(made), column.attrs)
    return made


def new_file(path: Path, properties: Any, alignment: tuple[int, int]) -> h5py.File:
    """Create a file. properties: creation properties. alignment: (smallest object to align, multiple), in bytes."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    # v108 allows attributes above 64 KB (class names, lists of skipped files); HDF5 reads it since 2008
    access.set_libver_bounds(h5py.h5f.LIBVER_V18, h5py.h5f.LIBVER_LATEST)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    start, step = alignment
    access.set_alignment(start, min(step, properties.get_userblock() or step))  # the user block must be aligned too
    return h5py.File(h5py.h5f.create(os.fsencode(path), h5py.h5f.ACC_TRUNC, properties, access))


def reserve(path: Path, begin: int = 0, size: int | None = None) -> None:
    """Allocate the disk space of `size` bytes from `begin`, or of the file.

    So a full disk raises NoRoom here, not after hours and not in HDF5, which crashes after a write that failed."""
    with open(path, "r+b") as file:
        found = os.fstat(file.fileno())
        size = found.st_size if size is None else size
        if hasattr(os, "posix_fallocate"):
            try:
                os.posix_fallocate(file.fileno(), begin, size)
            except OSError as error:
                if error.errno not in (errno.EOPNOTSUPP, errno.EINVAL):
                    raise NoRoom(begin + size, error.errno, error.strerror) from error
        elif shutil.disk_usage(path.parent).free + found.st_blocks * 512 < begin + size:
            raise NoRoom(begin + size, errno.ENOSPC, os.strerror(errno.ENOSPC))


class NoRoom(OSError):
    """The error of `reserve`. needed: size of the file in bytes."""

    def __init__(self, needed: int, *more: Any) -> None:
        super().__init__(*more)
        self.needed = needed


def set_attrs(item: Any, attrs: Mapping[str, Any]) -> None:
    """Write attributes; a list of str as variable-length strings."""
    for name, value in attrs.items():
        if isinstance(value, list) and all(isinstance(v, str) for v in value):
            item.attrs.create(name, value, dtype=h5py.string_dtype(), shape=(len(value),))
        else:
            item.attrs[name] = value


def offsets(path: Path) -> dict[str, int]:
    """Return {dataset: offset of its bytes in the file}, without empty datasets."""
    found: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.size:
            found[name] = item.id.get_offset()

    with h5py.File(path, "r") as file:
        file.visititems(visit)
    return found


def bytes_of(values: np.ndarray) -> np.ndarray:
    """Return the bytes of an array in C order, (nbytes,) uint8; a view if the array is contiguous."""
    return np.ascontiguousarray(values).reshape(-1).view(np.uint8)


def pwrite_all(fd: int, data: np.ndarray, offset: int) -> int:
    """Write all bytes of an array at the offset. Return their crc32."""
    view = memoryview(bytes_of(data).data)
    # first, as it loads the pages of a mapped source: loading them in pwrite, which locks the file, takes twice as long
    crc = crc32(view)
    done = 0
    while done < len(view):
        done += os.pwrite(fd, view[done:], offset + done)
    return crc


def crc_of(fd: int, offset: int, size: int) -> int:
    """Return the crc32 of bytes read back, or -1 if the file is too short."""
    buffer = bytearray(min(size, 1 << 22))
    crc, done = 0, 0
    while done < size:
        got = os.preadv(fd, [memoryview(buffer)[: size - done]], offset + done)
        if not got:
            return -1
        crc = crc32(memoryview(buffer)[:got], crc)
        done += got
    return crc


def verify(path: Path, spans: list[Span], workers: int, quiet: bool) -> None:
    """Compare every byte with its checksum, and the first, middle and last span of each dataset as HDF5 reads them.

    Raise ConfigError for the first difference."""
    places = offsets(path)
    fd = os.open(path, os.O_RDONLY)
    try:
        with ThreadPoolExecutor(workers) as pool:
            found = pool.map(lambda s: crc_of(fd, places[s.path] + s.begin, s.size), spans)
            for span, crc in zip(tqdm(spans, desc="verify", unit=" blocks", disable=quiet), found, strict=True):
                if crc != span.crc:
                    raise damaged(path, span)
    finally:
        os.close(fd)
    by_path: dict[str, list[Span]] = {}
    for span in spans:
        by_path.setdefault(span.path, []).append(span)
    some = [each for found in by_path.values() for each in {found[0], found[len(found) // 2], found[-1]}]
    read_back(path, some, quiet=True)


def read_back(path: Path, spans: list[Span], quiet: bool) -> None:
    """Compare the spans as HDF5 reads them, which also checks offsets and types. Raise ConfigError for a difference."""
    with h5py.File(path, "r") as file:
        for span in tqdm(spans, desc="verify", unit=" blocks", disable=quiet):
            dset = file[span.path]
            width = max(1, dset.dtype.itemsize * int(np.prod(dset.shape[1:], dtype=np.int64)))
            rows = dset[span.begin // width : (span.begin + span.size) // width]
            if crc32(bytes_of(rows)) != span.crc:
                raise damaged(path, span)


def damaged(path: Path, span: Span) -> ConfigError:
    """Return the error for a span whose checksum differs."""
    where = f"{span.path}, bytes {span.begin} to {span.begin + span.size}"
    return ConfigError(f"{path}: {where}: read back with other bytes than written; check the disk, then pack again")


@contextlib.contextmanager
def flushing(path: Path) -> Iterator[None]:
    """Flush a file to the disk in a thread while the body reads it back. It is on the disk when this ends."""
    with ThreadPoolExecutor(1) as pool:
        flushed = pool.submit(flush, path, os.O_RDWR)
        yield
        flushed.result()


def flush(path: Path, mode: int) -> None:
    """Open the file or folder with this mode and fsync it."""
    fd = os.open(path, mode)
    try:
        os.fsync(fd)
    except OSError as error:
        if error.errno != errno.EINVAL:  # some file systems have no such call for folders
            raise
    finally:
        os.close(fd)


@contextlib.contextmanager
def full_disk(out: Path, temp: Path) -> Iterator[None]:
    """Turn the error of a full disk, or of a limit on the size of files, into a ConfigError with the sizes. temp: the
    file that is being written."""
    try:
        yield
    except (OSError, RuntimeError) as error:  # HDF5's are RuntimeError if a file cannot be closed
        if (number := no_room(error)) is None:
            raise
        size, taken = (s.st_size, s.st_blocks * 512) if temp.exists() and (s := temp.stat()) else (0, 0)
        size = max(size, getattr(error, "needed", 0))
        if number == errno.EFBIG:
            limit = "the file system or `ulimit -f` allows no file of this size"
            raise ConfigError(f"{out}: {limit} ({in_words(size)} needed); raise the limit, then repeat") from None
        free = in_words(shutil.disk_usage(out.parent).free + taken)
        room = f"at least {in_words(size)} needed, {free} free in {out.parent}; free space, then repeat the command"
        raise ConfigError(f"{out}: the disk is full ({os.strerror(number)}): {room}") from None


def no_room(error: BaseException | None) -> int | None:
    """Return the number of a system's error that means no room for a file, of this error or one that led to it."""
    while error is not None:
        if (number := errno_of(error)) in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            return number
        error = error.__context__
    return None


def in_words(size: int) -> str:
    """Return a size in bytes as text, such as 1.5 GB."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if size >= scale:
            return f"{size / scale:.3g} {unit}"
    return f"{size} bytes"
