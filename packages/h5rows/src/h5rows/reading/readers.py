"""Read rows of one HDF5 dataset; layout.py selects the reader. All return the same bytes.

Each has gather_into, advise and file, like the fields in fields.py. rows: (B,) int64, all within the dataset (checked
by the caller); out: C-contiguous, of the dataset's shape and type. Safe from several threads. Handles belong to one
process: they are not pickled, and a forked child opens its own if they cannot be shared.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import h5py
import numpy as np
from h5py._objects import phil

from h5rows.errors import ConfigError, argument
from h5rows.reading import filters
from h5rows.reading.layout import Layout
from h5rows.reading.opening import BORROWERS, Held, check_same, hold, is_remote, unreadable
from h5rows.reading.raw import ChunkCache, Probes, RawFile, raw_file, run_in_threads
from h5rows.reading.stored import cached_property, identity, stored


class _AsTheyAre:
    """Rows are stored as plain bytes."""

    layout: Layout
    file: Any
    _probes: Probes

    def _addresses(self, rows: np.ndarray) -> np.ndarray:
        if len(self.layout.offset) == 1:
            return self.layout.offset[0, 0] + rows * self.layout.row_bytes
        chunk, inner = np.divmod(rows, self.layout.chunk[0])
        return self.layout.offset[chunk, 0] + inner * self.layout.row_bytes

    def advise(self, rows: np.ndarray, count: np.ndarray | int = 1) -> None:
        """Load rows in the background. count: number of consecutive rows from each on."""
        size = np.broadcast_to(count * self.layout.row_bytes, rows.shape)
        self.file.advise(self._addresses(rows), size, self._probes)


def copy_rows(source: np.ndarray, offset: np.ndarray, size: int, out: np.ndarray, at: np.ndarray | None = None) -> None:
    """Copy `size` bytes at source[offset[k]] to out[k], or to out[at[k]]. source: (n,) uint8. out: (B, size) uint8."""
    if size >= 16384:
        places = range(len(offset)) if at is None else at.tolist()
        for k, begin in zip(places, offset.tolist(), strict=True):
            out[k] = source[begin : begin + size]
        return
    # a view of `size` bytes at every offset, so that indexing gathers rows at any position
    runs = np.ndarray((len(source) - size + 1, size), np.uint8, source, 0, (1, 1))
    step = max(1, (128 << 10) // size)  # rows whose copies fit into the processor's cache
    for k in range(0, len(offset), step):
        here = slice(k, k + step)
        out[slice(k, min(k + step, len(offset))) if at is None else at[here]] = runs[offset[here]]


class Mapped(_AsTheyAre):
    """Copy rows from the file's mapping."""

    def __init__(self, layout: Layout, file: RawFile | None = None) -> None:
        self.layout, self.file, self._probes = layout, file or raw_file(layout.path, layout.identity), Probes()
        self._bytes, size = self.file.map(), self.layout.row_bytes
        self._rows: np.ndarray | None = None
        if len(self.layout.offset) == 1:
            first = int(self.layout.offset[0, 0])
            self._rows = self._bytes[first : first + self.layout.shape[0] * size].reshape(-1, size)

    def __reduce__(self) -> Any:
        return Mapped, (self.layout, self.file)

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Copy rows[k] to out[k], or to out[at[k]]."""
        if len(rows) == 0:
            return
        flat = out.reshape(len(out), -1).view(np.uint8)
        if self._rows is not None and at is None:
            # "clip", because "raise" copies through a buffer; one thread, because the loader has its own threads
            np.take(self._rows, rows, axis=0, out=flat[: len(rows)], mode="clip")
            return
        copy_rows(self._bytes, self._addresses(rows), self.layout.row_bytes, flat, at)

    def in_memory(self, row: int) -> bool:
        """Return True if a row need not be read from the disk; False if not, or if the system cannot tell."""
        middle = int(self._addresses(np.array([row]))[0]) + self.layout.row_bytes // 2
        return bool(self.file.in_memory(middle))

    @property
    def contiguous(self) -> bool:
        """Return True if all rows are stored one after the other."""
        return self._rows is not None

    def view(self, start: int, stop: int) -> np.ndarray:
        """Return rows start..stop of a contiguous dataset as a read-only view."""
        assert self._rows is not None
        return self._rows[start:stop].reshape(-1).view(self.layout.dtype).reshape(-1, *self.layout.shape[1:])


class MappedShards:
    """Copy rows of the mapped parts of a field, one in each shard, by their addresses in memory, all in one call.

    starts: (shards + 1,) number of the first row of each shard. The cost of a row does not depend on the number of
    shards that a batch touches.
    """

    def __init__(self, parts: Sequence[Mapped], starts: np.ndarray) -> None:
        self._parts, self._starts, self._row_bytes = parts, starts, parts[0].layout.row_bytes
        mapped = [part.file.map() for part in parts]
        begins = [whole.ctypes.data for whole in mapped]
        low, high = min(begins), max(begin + len(whole) for begin, whole in zip(begins, mapped, strict=True))
        tables = [part.layout.offset[:, 0] + begin - low for part, begin in zip(parts, begins, strict=True)]
        self._offset = np.concatenate(tables)  # of each chunk, from the lowest address of a mapping
        self._first = np.cumsum([0, *map(len, tables)])[:-1]
        self._chunk_rows = np.asarray([part.layout.chunk[0] for part in parts])
        self._memory = np.asarray(_Span(low, high - low, mapped))
        self._probes = Probes()

    def gather_into(self, rows: np.ndarray, of: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Copy row rows[k] of the field, which is in shard of[k], to out[k], or to out[at[k]]."""
        if len(rows) == 0:
            return
        chunk, inner = np.divmod(rows - self._starts[of], self._chunk_rows[of])
        offset = self._offset[self._first[of] + chunk] + inner * self._row_bytes
        copy_rows(self._memory, offset, self._row_bytes, out.reshape(len(out), -1).view(np.uint8), at)

    def in_memory(self, rows: np.ndarray, of: np.ndarray) -> bool:
        """Return True if a sample of these rows does not have to be read from the disk."""
        return self._probes.all_in_memory(
            len(rows), lambda k: self._parts[of[k]].in_memory(int(rows[k] - self._starts[of[k]]))
        )


class _Span:
    """All addresses from the first mapping to the end of the last one, as an array for NumPy. Only those within a
    mapping may be read."""

    def __init__(self, low: int, size: int, mapped: list[np.ndarray]) -> None:
        self.mapped = mapped  # stays mapped as long as this object exists
        self.__array_interface__ = {"data": (low, True), "shape": (size,), "typestr": "|u1", "version": 3}


class Ranged(_AsTheyAre):
    """Copy rows from the downloaded blocks of a remote file."""

    def __init__(self, layout: Layout) -> None:
        self.layout, self.file, self._probes = layout, raw_file(layout.path, layout.identity), Probes()

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Copy rows[k] to out[k], or to out[at[k]]. Missing blocks are downloaded first."""
        if len(rows) == 0:
            return
        flat = out.reshape(len(out), -1).view(np.uint8)
        at = np.arange(len(rows)) if at is None else at
        self.file.rows_into(self._addresses(rows), self.layout.row_bytes, flat, at)


class Chunks:
    """Chunks with filters: read by offset, decoded in threads, cropped."""

    def __init__(self, layout: Layout, cache: ChunkCache) -> None:
        self.layout, self._cache, self._probes = layout, cache, Probes()
        self.file = raw_file(layout.path, layout.identity)

    @cached_property
    def _tiles(self) -> list[tuple[tuple[slice, ...], tuple[slice, ...]]]:
        """Return, for each tile of a row, its position in the sample, and its part inside the dataset."""
        sides, tile, tiles = self.layout.shape[1:], self.layout.chunk[1:], []
        for corner in np.ndindex(*(-(-n // c) for n, c in zip(sides, tile, strict=True))):
            begin = [i * c for i, c in zip(corner, tile, strict=True)]
            end = [min(b + c, n) for b, c, n in zip(begin, tile, sides, strict=True)]
            target = tuple(map(slice, begin, end))
            tiles.append((target, tuple(slice(0, e - b) for b, e in zip(begin, end, strict=True))))
        return tiles

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Decode the chunks of these rows, and copy rows[k] to out[k], or to out[at[k]]."""
        chunk, inner = np.divmod(rows, self.layout.chunk[0])
        order = np.argsort(chunk, kind="stable")
        cuts = np.flatnonzero(np.diff(chunk[order])) + 1
        groups = np.split(order, cuts) if len(rows) else []
        if is_remote(self.layout.path):
            self.advise(rows)  # requests all of them concurrently

        def copy(group: np.ndarray) -> None:
            number = int(chunk[group[0]])
            to, of = (group if at is None else at[group]), inner[group]
            for tile, (target, inside) in enumerate(self._tiles):
                values = self._chunk(number, tile)
                here: Any = (to, *target)
                there: Any = (of, *inside)
                if len(group) == 1:  # plain slices, several times faster
                    k, row = int(to[0]), int(of[0])
                    here, there = (slice(k, k + 1), *target), (slice(row, row + 1), *inside)
                out[here] = values[there]

        run_in_threads(copy, groups, self.layout.chunk_bytes * len(self._tiles) * len(groups))

    @property
    def _is_kept(self) -> bool:
        """Return True if decoded chunks go into the cache. A described field gets another cache later."""
        # chunks of one row are read once per epoch, so the cache helps only if it can contain all of them
        layout = self.layout
        return layout.chunk[0] > 1 or layout.offset.size * layout.chunk_bytes <= self._cache.max_bytes

    def _chunk(self, number: int, tile: int) -> np.ndarray:
        """Return tile `tile` of row chunk `number`, decoded."""
        layout = self.layout
        if not self._is_kept or not layout.size[number, tile]:
            return self._decode(number, tile)
        # with the address, because links may give two datasets of another file one name
        key = (layout.path, layout.name, int(layout.offset[number, tile]))
        return self._cache.get(key, layout.chunk_bytes, lambda: self._decode(number, tile))

    def _decode(self, number: int, tile: int) -> np.ndarray:
        layout = self.layout
        size, offset = int(layout.size[number, tile]), int(layout.offset[number, tile])
        if size == 0:
            assert layout.fill is not None
            return np.broadcast_to(layout.fill, layout.chunk)
        raw = self.file.read(size, offset)
        try:
            data = filters.decode(raw, layout.pipeline, int(layout.mask[number, tile]), layout.chunk_bytes)
        except ValueError as error:
            first = number * layout.chunk[0]
            what = f"{layout.path}: {layout.name} is damaged in the chunk of row {first} (byte {offset}; {error})"
            raise ConfigError(f"{what}; copy or write the file again") from error
        return np.frombuffer(data, dtype=layout.dtype).reshape(layout.chunk)

    def advise(self, rows: np.ndarray) -> None:
        """Load the chunks of these rows in the background."""
        chunk = np.unique(rows // self.layout.chunk[0])
        offset, size = self.layout.offset[chunk].reshape(-1), self.layout.size[chunk].reshape(-1)
        self.file.advise(offset[size > 0], size[size > 0], self._probes)


class ThroughH5py:
    """Any dataset that HDF5 can read, by h5py with open handles, no sieve buffer and one read for consecutive rows.

    HDF5 returns zeros for a truncated file, so the file is compared with its state when opened, before and after each
    use.
    """

    file = None

    def __init__(self, dset: h5py.Dataset, member: str | None, swmr: bool) -> None:
        self._by_row = dset.is_virtual  # HDF5 2.0 may crash if several rows of a virtual dataset are read at once
        self.path, self.name, self.member, self.swmr = dset.file.filename, _own_name(dset), member, swmr
        if is_remote(self.path):
            problem = f"{self.path}: {self.name} can only be read by HDF5, which needs the whole file"
            raise ConfigError(f"{problem}: to download it, set {argument('cache_gb', None)}; or repack the file")
        self.identity = identity(dset.file)
        # process -> its handle, the dataset. First the caller's dataset, until the block of open_h5 ends: if the fill
        # value has variable length, HDF5 2.0 crashes when two handles have the dataset and one of them is closed
        self._handles: dict[int, tuple[Held | None, Any]] = {os.getpid(): (None, dset)}
        BORROWERS.add(self)

    def __getstate__(self) -> Any:
        return {**self.__dict__, "_handles": {}}

    def give_back(self) -> None:
        """Release the caller's handle."""
        if self._handles.get(os.getpid(), (self, None))[0] is None:
            del self._handles[os.getpid()]

    @contextmanager
    def _dataset(self) -> Iterator[Any]:
        """Open the dataset; its handle is not closed for others in this block."""
        with phil:
            held, dset = self._handles.get(os.getpid(), (None, None))
            if not dset:  # not opened yet, or closed by `hold`
                held = hold(self.path, self.swmr)
                check_same(self.path, self.identity, held.identity, self.swmr)
                dset = stored(held.file[self.name])
                filters.load_plugins(dset)
                self._handles[os.getpid()] = held, dset
            if held is not None:
                held.users += 1
        try:
            yield dset
        finally:
            if held is not None:
                with phil:
                    held.users -= 1

    def _check(self, dset: Any) -> None:
        check_same(self.path, self.identity, identity(dset.file), self.swmr)

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Read rows[k] to out[k], or to out[at[k]]."""
        for attempt in range(3):
            dset = None
            try:
                with self._dataset() as dset:
                    self._check(dset)
                    try:
                        self._read(dset, rows, out, at)
                    finally:
                        if dset:  # also after an error: a changed file may be its reason
                            self._check(dset)
                return
            except ConfigError:
                raise
            except (OSError, RuntimeError, KeyError, ValueError) as error:
                if attempt == 2 or dset is None or dset:  # otherwise another thread has closed it
                    raise unreadable(f"{self.path}: {self.name}", error) from error

    def _read(self, dset: Any, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None) -> None:
        if len(rows) == 0:
            return
        values = dset if self.member is None else dset.fields(self.member)
        order = np.argsort(rows, kind="stable")
        cuts = np.flatnonzero((np.diff(rows[order]) != 1) | self._by_row) + 1
        to = order if at is None else at[order]
        begins, places, bounds = rows[order].tolist(), to.tolist(), [0, *cuts.tolist(), len(rows)]  # faster than arrays
        for a, b in itertools.pairwise(bounds):
            begin, k = begins[a], places[a]
            if b - a == 1:  # not out[k] = values[begin]: a NumPy scalar loses the other bits of a bool's byte
                out[k : k + 1] = values[begin : begin + 1]
            else:
                out[to[a:b]] = values[begin : begin + b - a]

    def advise(self, rows: np.ndarray) -> None:
        """Do nothing, because HDF5 cannot read in the background."""


def _own_name(dset: h5py.Dataset) -> str:
    """Return a dataset's name in its own file.

    `dset.name` is the path by which it was opened: with links, it may begin in another file, and be that of another
    dataset here.
    """
    file = dset.file
    try:
        if file[dset.name] == dset:
            return dset.name
    except (KeyError, ValueError, TypeError):
        pass
    return file[dset.ref].name
