"""Where the bytes of an HDF5 dataset lie in its file, and hence how it can be read. No torch, no reading of values.

contiguous, or raw chunks of whole rows        -> mapped   gathered from a memory mapping, at the speed of memcpy
chunks with filters that filters.py knows      -> chunks   read by offset, decoded in threads
anything else                                  -> h5py     exact, slower
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from glob import glob
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from lab.data import filters
from lab.errors import ConfigError


@dataclass(eq=False)
class Layout:
    """The extents of one dataset of N rows. Row chunk c, tile t of it: `size[c, t]` bytes at `offset[c, t]` of `path`.

    A contiguous dataset is one chunk of N rows. A chunk that was never written has size 0 and holds `fill`.
    """

    path: str  # of the file that holds the dataset: not the one opened, if a link leads elsewhere
    name: str
    shape: tuple[int, ...]  # (N, *sample)
    dtype: np.dtype[Any]
    chunk: tuple[int, ...]  # (rows, *tile)
    offset: np.ndarray  # (row chunks, tiles) int64
    size: np.ndarray  # (row chunks, tiles) int64
    mask: np.ndarray  # (row chunks, tiles) uint32; bit i: filter i was left out for this chunk
    pipeline: tuple[tuple[int, tuple[int, ...]], ...]  # (filter, its options), in the order of writing
    fill: Any

    @property
    def row_bytes(self) -> int:
        return int(np.prod(self.shape[1:], dtype=np.int64)) * self.dtype.itemsize

    @property
    def chunk_bytes(self) -> int:
        return int(np.prod(self.chunk, dtype=np.int64)) * self.dtype.itemsize

    @property
    def end(self) -> int:
        """Bytes that the file must have at least."""
        return int((self.offset + self.size).max(initial=0))


def files_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """A file, a pattern with *, or a list of both -> the files, in this order; every one exists."""
    names = [path] if isinstance(path, (str, os.PathLike)) else list(path)
    files: list[str] = []
    for name in map(os.path.expanduser, map(str, names)):
        found = sorted(glob(name)) if "*" in name else [name] * Path(name).exists()
        if not found:
            raise ConfigError(f"data.path={name}: no such file (the current directory is {Path.cwd()})")
        files += [os.path.abspath(file) for file in found]
    if not files:
        raise ConfigError("data.path is empty: give a file, a pattern or a list of files")
    return files


@contextmanager
def open_h5(path: str, swmr: bool = False) -> Iterator[h5py.File]:
    file = open_file(path, swmr)
    try:
        yield file
    except ConfigError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError, MemoryError) as error:  # what h5py may raise
        raise ConfigError(
            f"{path}: cannot be read ({_first_line(error)}): it is damaged; copy or write it again"
        ) from error
    finally:
        file.close()


def open_file(path: str, swmr: bool = False) -> h5py.File:
    """Open for reading, without HDF5's locks (which fail on some network and read-only file systems)."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_sieve_buf_size(0)  # the default reads 21 bytes for each byte wanted of 3 KB rows
    access.set_file_locking(False, True)
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    try:
        try:
            return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
        except OSError as error:
            if "file locking" not in str(error):
                raise
            return h5py.File(path, "r", swmr=swmr)  # this process has it open already, with locks
    except OSError as error:
        if Path(path).is_dir():
            hint = "it is a directory; give the file"
        elif "truncated" in str(error):
            hint = "it is cut short: was the copy, or the program that wrote it, interrupted? Copy or write it again"
        elif "signature" in str(error):
            hint = "it is not an HDF5 file, or its beginning is damaged"
        elif "already open for" in str(error):
            hint = (
                "it is being written (data.swmr=true reads a SWMR writer's file), or its writer was killed (h5clear -s)"
            )
        else:
            hint = "check that it is readable and whole (h5ls)"
        raise ConfigError(f"data.path={path}: cannot be opened ({_first_line(error)}): {hint}") from error


def listing(group: h5py.Group, limit: int = 24) -> list[str]:
    """Names of the datasets below a group, with shape and type."""
    found: list[str] = []

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset):
            found.append(f"{name} {item.shape} {item.dtype}")
        return True if len(found) >= limit else None

    group.visititems(visit)
    return found


def find(file: h5py.File, group: str, name: str, key: str) -> tuple[h5py.Dataset | h5py.Group, str | None]:
    """The dataset (or group) `name` below `group`, and the member if the path goes on into a compound type.

    key: the config key to blame. Nested paths may be used; a name that begins with / starts at the file's root.
    """
    try:
        below = file[group]
    except (KeyError, ValueError):
        raise ConfigError(f"{file.filename} has no group {group!r} ({key}); {_choices(file, group)}") from None
    if not isinstance(below, h5py.Group):
        raise ConfigError(f"{file.filename}: {group!r} ({key}) is a dataset, not a group; use its parent group, or '/'")
    item: Any = below
    parts = [part for part in name.split("/") if part]
    if name.startswith("/"):
        item = file
    for k, part in enumerate(parts):
        if isinstance(item, h5py.Dataset):
            member = "/".join(parts[k:])
            if item.dtype.names and member in item.dtype.names:
                return item, member
            kinds = f"the members {list(item.dtype.names)}" if item.dtype.names else "no members"
            raise ConfigError(f"{file.filename}: {item.name} has {kinds}, not {member!r} ({key})")
        try:
            item = item[part]
        except KeyError:
            link = item.get(part, getlink=True) if isinstance(item, h5py.Group) and part in item else None
            if isinstance(link, h5py.ExternalLink):
                raise ConfigError(
                    f"{file.filename}: {part!r} ({key}) links to {link.filename}, which is missing"
                ) from None
            raise ConfigError(
                f"{file.filename}: {below.name} has no {name!r} ({key}); {_choices(below, name)}"
            ) from None
    if not isinstance(item, (h5py.Dataset, h5py.Group)):
        raise ConfigError(
            f"{file.filename}: {item.name} ({key}) is a named type, not a dataset; {_choices(below, name)}"
        )
    return item, None


def _choices(group: h5py.Group, wanted: str) -> str:
    there = listing(group)
    names = [line.split(" ")[0] for line in there]
    groups = list(group) if len(group) < 1000 else []
    near = difflib.get_close_matches(wanted.strip("/"), [*names, *groups], n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"It holds: {'; '.join(there) or 'no datasets'}"


def plan_reader(dset: h5py.Dataset) -> tuple[str, str]:
    """-> (mapped | chunks | h5py, why): the way in which the rows of this dataset are read."""
    way, reason, _ = plan(dset)
    return way, reason


def plan(dset: h5py.Dataset) -> tuple[str, str, Layout | None]:
    """As plan_reader, and the layout for the two ways that need it."""
    reason = _obstacle(dset)
    if reason is not None:
        return "h5py", reason, None
    if dset.chunks is None:
        offset = dset.id.get_offset()
        if offset is None:
            return "h5py", "stored inside the file's metadata (compact), or never written", None
        size = dset.size * dset.dtype.itemsize
        return "mapped", f"contiguous at byte {offset}", _layout(dset, dset.shape, [[offset]], [[size]], [[0]], ())
    layout = _chunk_table(dset)
    rows = f"chunks of {layout.chunk[0]} row{'s' * (layout.chunk[0] > 1)}"
    if layout.offset.shape[1] > 1:
        rows += f", {layout.offset.shape[1]} tiles to a row"
    unwritten = int((layout.size == 0).sum())
    if unwritten and not _fills(dset):
        return "h5py", f"{rows}, {unwritten} of them never written and without a fill value", None
    if not layout.pipeline and not unwritten and layout.offset.shape[1] == 1 and layout.chunk[1:] == layout.shape[1:]:
        return "mapped", f"raw {rows}", layout
    names = "+".join(filters.NAMES[number] for number, _ in layout.pipeline) or "no filter"
    return "chunks", f"{rows}, {names}" + (f", {unwritten} never written" if unwritten else ""), layout


def _obstacle(dset: h5py.Dataset) -> str | None:
    """Why the file's bytes cannot be taken as they are."""
    if dset.dtype.kind not in "biufcS" or dset.dtype.subdtype:
        return f"type {dset.dtype}" if dset.dtype.kind != "O" else "variable length"
    if not dset.dtype.isnative:
        return "other byte order than this machine's"
    if not dset.id.get_type().equal(h5py.h5t.py_create(dset.dtype, logical=True)):
        return "stored in another type than it is read as"
    if dset.is_virtual:
        return "virtual"
    if dset.external:
        return "stored in other files"
    if dset.size == 0:
        return "empty"
    if dset.file.driver not in ("sec2", "stdio"):
        return f"file driver {dset.file.driver}"
    if dset.chunks is not None:
        if dset.file.userblock_size and h5py.h5.get_libversion() < (1, 14, 4):
            return "chunks behind a user block, whose addresses are wrong in this version of HDF5"
        return filters.obstacle(_pipeline(dset), int(np.prod(dset.chunks, dtype=np.int64)) * dset.dtype.itemsize)
    return None


def _pipeline(dset: h5py.Dataset) -> tuple[tuple[int, tuple[int, ...]], ...]:
    create = dset.id.get_create_plist()
    return tuple(
        (number, tuple(options)) for number, _, options, _ in map(create.get_filter, range(create.get_nfilters()))
    )


def _fills(dset: h5py.Dataset) -> bool:
    create = dset.id.get_create_plist()
    return (
        create.fill_value_defined() != h5py.h5d.FILL_VALUE_UNDEFINED
        and create.get_fill_time() != h5py.h5d.FILL_TIME_NEVER
    )


def _chunk_table(dset: h5py.Dataset) -> Layout:
    grid = [-(-n // c) for n, c in zip(dset.shape, dset.chunks, strict=True)]
    where, stored = [], []

    def visit(info: Any) -> None:
        where.append(info.chunk_offset)
        stored.append((info.byte_offset, info.size, info.filter_mask))

    if hasattr(dset.id, "chunk_iter"):
        dset.id.chunk_iter(visit)
    else:
        for k in range(dset.id.get_num_chunks()):
            visit(dset.id.get_chunk_info(k))
    table = np.zeros((3, int(np.prod(grid))), dtype=np.int64)
    if where:
        index = np.asarray(where, dtype=np.int64) // dset.chunks
        table[:, np.ravel_multi_index(tuple(index.T), grid)] = np.asarray(stored, dtype=np.int64).T
    offset, size, mask = table.reshape(3, grid[0], -1)
    return _layout(dset, dset.chunks, offset, size, mask.astype(np.uint32), _pipeline(dset))


def _layout(dset: h5py.Dataset, chunk: Any, offset: Any, size: Any, mask: Any, pipeline: Any) -> Layout:
    return Layout(
        path=os.path.abspath(dset.file.filename),
        name=dset.name,
        shape=tuple(dset.shape),
        dtype=dset.dtype,
        chunk=tuple(chunk),
        offset=np.asarray(offset, dtype=np.int64),
        size=np.asarray(size, dtype=np.int64),
        mask=np.asarray(mask, dtype=np.uint32),
        pipeline=tuple(pipeline),
        fill=dset.fillvalue if (np.asarray(size) == 0).any() else None,
    )


def split_of(splits: Mapping[str, Mapping[str, Any] | None], split: str) -> Mapping[str, Any]:
    """The entry of a split that is there and not null."""
    if split not in splits:
        raise ConfigError(f"data.splits has no {split!r}; it has {sorted(splits)}")
    entry = splits[split]
    if entry is None:
        raise ConfigError(
            f"data.splits.{split} is null: this set has no such split; give it a group, or shares of the rows"
        )
    if "group" not in entry:
        raise ConfigError(f"data.splits.{split} names no group; '/' is the file's root")
    return entry


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
