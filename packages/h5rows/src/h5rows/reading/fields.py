"""Fields of one shard: select the reader that a field needs, and return its samples as arrays.

    numbers, all samples of one shape    -> (B, *sample)                      read into the caller's buffer
    samples of different length          -> list of (length, ...) arrays      stored flat + offsets, or HDF5 vlen
    strings                              -> list of str                       flat UTF-8 + offsets, fixed, or HDF5 vlen

uint32 and uint64 become int64, because torch cannot compute with them; a value above its range is an error.

Flat + offsets is a group with `values` (total, ...) and `offsets` (N + 1,): sample i is
values[offsets[i]:offsets[i + 1]]. It contains strings if the group, or `values`, has the attribute encoding = "utf-8"
and the values are uint8.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any, cast

import h5py
import numpy as np

from h5rows.errors import ConfigError, missing
from h5rows.reading.filters import check_filters, missing_filter
from h5rows.reading.finding import check_type, find
from h5rows.reading.layout import Layout, plan
from h5rows.reading.memory import CHEAP, COPIES, check_declared, check_memory, check_size
from h5rows.reading.opening import is_remote, named
from h5rows.reading.raw import ChunkCache
from h5rows.reading.readers import Chunks, Mapped, MappedShards, Ranged, ThroughH5py
from h5rows.reading.stored import Identity, file_name
from h5rows.reading.texts import UTF_8, decoded

_DRAWN = (0.64, 0.27)  # the rows that are compared with HDF5 in addition to the ends, as shares; drawn at random once


def torch_dtype(dtype: np.dtype) -> np.dtype:
    """Return the type that a batch has for a stored type, in native byte order."""
    return np.dtype(np.int64) if dtype.kind == "u" and dtype.itemsize >= 4 else dtype.newbyteorder("=")


def for_torch(values: np.ndarray, where: str) -> np.ndarray:
    """Convert values to a type that torch supports. Raise ConfigError if a uint64 exceeds int64. where: for the
    message."""
    if values.dtype == np.uint64 and values.size and values.max() > np.iinfo(np.int64).max:
        raise ConfigError(f"{where} contains {values.max()}, which is too large for int64; store it as another type")
    return values.astype(torch_dtype(values.dtype), copy=False)


def is_readable(dtype: np.dtype) -> bool:
    """Return True if a tensor, or strings, can represent values of this stored type."""
    base = (dtype.subdtype or (dtype,))[0]
    return base.kind in "biufcS" and base.char not in "gG"  # g: long double


def _by_hdf5(dset: h5py.Dataset, rows: np.ndarray) -> np.ndarray:
    """Return rows (B, *sample) of a dataset, in one read of HDF5. rows: ascending."""
    out, sample, space = np.empty((len(rows), *dset.shape[1:]), dset.dtype), dset.shape[1:], dset.id.get_space()
    space.select_none()
    for row in rows.tolist():
        space.select_hyperslab((row, *(0 for _ in sample)), (1, *sample), op=h5py.h5s.SELECT_OR)
    dset.id.read(h5py.h5s.create_simple(out.shape), space, out)
    return out


class Field:
    """Samples by row number.

    shape: (N, *sample), or (-1, ...) if the samples differ in length. dtype: of a batch. text: the samples are str.
    way, reason: how they are read and why. file: after use, check that it has not changed.
    """

    text, way, reason, chunk_rows = False, "held", "in memory", 1
    by_offset = False  # read without HDF5
    shape: tuple[int, ...]
    dtype: np.dtype

    def __len__(self) -> int:
        """Return the number of samples."""
        return self.shape[0]

    @property
    def file(self) -> Any:
        """Return the file to check after use; None if there is none."""
        return None

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one sample of a fixed shape."""
        return math.prod(self.shape[1:]) * self.dtype.itemsize

    def nbytes(self, rows: np.ndarray | None) -> int:
        """Return the bytes of these rows, or of all, for samples of a fixed shape."""
        return (len(self) if rows is None else len(rows)) * self.row_bytes

    def read(self, rows: np.ndarray) -> Any:
        """Return samples (B, *sample) in new memory, or a list of B samples."""
        raise NotImplementedError

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Copy sample rows[k] to out[k], or to out[at[k]]. The caller must check `file` afterwards."""
        out[slice(len(rows)) if at is None else at] = self.read(rows)

    def advise(self, rows: np.ndarray) -> None:
        """Load these rows in the background, if possible."""

    def column(self) -> np.ndarray:
        """Return all samples (N, *sample); for samples that differ in length, the lengths (N,) int64."""
        check_memory(self.nbytes(None), f"all {len(self):,} rows of a field")
        whole: np.ndarray = self.read(np.arange(len(self)))
        return whole


class Fixed(Field):
    """Samples of one shape. where: file and name of the dataset, for messages. `_stored`: its type in native byte
    order."""

    def __init__(self, dset: h5py.Dataset, member: str | None, cache: ChunkCache, swmr: bool) -> None:
        self.where = where = f"{file_name(dset)}: {dset.name}"
        dtype = dset.dtype if member is None else dset.dtype[member]
        if dtype.names and member is not None:
            raise ConfigError(f"{where}/{member} is a nested compound type, which is not supported; write it flat")
        if dtype.names:
            fit = [name for name in dtype.names if (dtype[name].subdtype or (dtype[name],))[0].kind in "biufc"]
            remedy = f"choose a member: {dset.name}/{fit[0]}" if fit else "none of its members can be a tensor"
            raise ConfigError(f"{where} has a compound type; {remedy} (of {dtype.names})")
        base, inner = dtype.subdtype or (dtype, ())
        strings = base.kind == "S" and (member is not None or inner)  # strings in a plain dataset become str
        if base.subdtype or not is_readable(base) or strings:  # an array of arrays has one shape in two parts
            raise ConfigError(f"{where} has the type {dtype}, which no tensor supports; write it as another type")
        if not dset.shape:
            raise ConfigError(f"{where} is a single value without rows; a field needs a dataset of shape (rows, ...)")
        check_declared(dset)
        self.shape, self.dtype, self._stored = (*dset.shape, *inner), torch_dtype(base), base.newbyteorder("=")
        self.chunk_rows = dset.chunks[0] if dset.chunks else 1
        if swmr or member is not None:
            way, layout, self.reason = "h5py", None, "being written (SWMR)" if swmr else "a member of a compound type"
        else:
            way, self.reason, layout = plan(dset)
        self.way, self.layout, self.by_offset = way, layout, layout is not None
        if layout is not None and way == "mapped" and is_remote(layout.path):
            self.way = "ranges"
        self.reader: Mapped | Ranged | Chunks | ThroughH5py
        if layout is None:
            check_filters(dset)
            self.reader = ThroughH5py(dset, member, swmr)
        else:
            self.reader = self._reader_of(layout, cache)
        if len(self) and getattr(self.file, "compared", True):
            self._verify(dset)

    def _reader_of(self, layout: Layout, cache: ChunkCache) -> Mapped | Ranged | Chunks:
        if self.way == "chunks":
            return Chunks(layout, cache)
        return Mapped(layout) if self.way == "mapped" else Ranged(layout)

    def closed(self) -> Fixed | None:
        """Return this field without open files, for `of_file`; None if HDF5 reads it."""
        return None if self.layout is None else self.at(self.layout)

    def at(self, layout: Layout) -> Fixed:
        """Return this field without open files, with another number of rows and other positions."""
        made = object.__new__(Fixed)  # `copy` takes several times as long
        made.__dict__.update(self.__dict__, layout=layout, shape=layout.shape, where=f"{layout.path}: {layout.name}")
        made.__dict__.pop("reader", None)
        return made

    def of_file(self, path: str, identity: Identity, cache: ChunkCache) -> Fixed:
        """Return a closed field opened, in its own file or in another one with the same fields at the same places."""
        layout = self.layout
        assert layout is not None
        if (layout.path, layout.identity) != (path, identity):
            layout = dataclasses.replace(layout, path=path, identity=identity)
        made = self.at(layout)
        made.reader = made._reader_of(layout, cache)
        return made

    def check_written(self) -> None:
        """Raise ConfigError if the file is too small for all rows, so reading them would take time for fill values."""
        assert self.layout is not None
        check_size(self.where, self.nbytes(None), self.layout.identity[2], f"{len(self):,} rows")

    @property
    def table_bytes(self) -> int:
        """Return the bytes of the table of its chunks."""
        return 0 if self.layout is None else 3 * self.layout.offset.nbytes

    def _verify(self, dset: h5py.Dataset) -> None:
        """Compare some rows with those that h5py reads, because a wrong assumption about the format must stop the
        run."""
        some = [0, len(self) - 1]  # enough for a contiguous dataset, which has one position
        if self.reason != "contiguous":
            some += [int(share * len(self)) for share in _DRAWN]
        rows = np.array(sorted(set(some)))
        if is_remote(file_name(dset)) or len(rows) * self.row_bytes > CHEAP:  # each row is a request, or large
            rows = rows[:1]
        self.reader.advise(rows)
        ours = self.read(rows)
        if isinstance(self.reader, ThroughH5py):
            return
        if missing_filter(dset) is not None:
            self.reason += f"; {missing('not compared with HDF5, which', 'hdf5plugin')}"
        elif _by_hdf5(dset, rows).astype(self.dtype).tobytes() != ours.tobytes():
            problem = f"{self.where}: {self.way} reads other values than h5py"
            raise ConfigError(f"{problem}; please report this file's layout (h5dump -pH); a repacked file may work")

    def read(self, rows: np.ndarray) -> np.ndarray:
        """Return samples (B, *sample) in new memory, and check the file."""
        out = np.empty((len(rows), *self.shape[1:]), dtype=self.dtype)
        try:
            self.gather_into(rows, out)
        finally:
            self.check()
        return out

    def gather_into(self, rows: np.ndarray, out: np.ndarray, at: np.ndarray | None = None) -> None:
        """Copy samples to `out`, converted to a type that torch supports."""
        if self._stored == self.dtype:
            self.reader.gather_into(rows, out, at)
        else:
            stored = np.empty((len(rows), *self.shape[1:]), dtype=self._stored)
            self.reader.gather_into(rows, stored)
            out[slice(len(rows)) if at is None else at] = for_torch(stored, self.where)

    @staticmethod
    def together(shards: Sequence[Field], starts: np.ndarray) -> MappedShards | None:
        """Return one reader for all shards of a field; None if they need one each. starts: as in MappedShards."""
        readers = [shard.reader for shard in shards if isinstance(shard, Fixed) and shard._stored == shard.dtype]
        alike = all(isinstance(reader, Mapped) and reader.layout.row_bytes for reader in readers)
        alike = alike and len(readers) == len(shards) > 1
        return MappedShards(cast("list[Mapped]", readers), starts) if alike else None

    def advise(self, rows: np.ndarray, count: int = 1) -> None:
        """Load rows in the background. count: number of consecutive rows to load from each on."""
        if isinstance(self.reader, (Mapped, Ranged)):
            self.reader.advise(rows, count)
        else:
            self.reader.advise(rows)

    @property
    def mapped(self) -> np.ndarray | None:
        """Return all rows in the file's type as a read-only view, valid until `check`; None if they are not
        contiguous."""
        if isinstance(self.reader, Mapped) and self.reader.contiguous:
            return self.reader.view(0, len(self))
        return None

    def view(self, start: int, stop: int) -> np.ndarray:
        """Return samples start..stop; a view if they are contiguous in the file and have the type of a batch."""
        if isinstance(self.reader, Mapped) and self.reader.contiguous and self._stored == self.dtype:
            return self.reader.view(start, stop)
        return self.read(np.arange(start, stop))

    @property
    def file(self) -> Any:
        """Return the reader's file."""
        return self.reader.file

    def check(self) -> None:
        """Raise ConfigError if the file has changed."""
        if self.file is not None:
            self.file.check()


class FlatOffsets(Field):
    """Samples of different length, stored one after the other."""

    def __init__(self, group: h5py.Group, cache: ChunkCache, swmr: bool, external: str, encoding: str) -> None:
        self._encoding = encoding
        self._where = f"{group.file.filename}: {group.name}"
        both = ("values", "offsets")
        values, offsets = (find(group.file, group.name, name, f"{group.name}/{name}", external)[0] for name in both)
        self.values = Fixed(values, None, cache, swmr)
        marked = str(group.attrs.get("encoding", values.attrs.get("encoding", "")))
        self.text = marked.lower() in ("utf-8", "utf8", "ascii")
        self.way, self.reason = self.values.way, f"flat + offsets, values {self.values.reason}"
        self.shape, self.dtype = (-1, *self.values.shape[1:]), self.values.dtype
        if offsets.ndim != 1 or offsets.dtype.kind not in "iu" or offsets.shape[0] == 0:
            raise ConfigError(f"{self._where}/offsets must be N + 1 integers, got {offsets.shape} {offsets.dtype}")
        check_memory(2 * offsets.nbytes, f"{self._where}/offsets")
        self.offsets = offsets[:].astype(np.int64)
        if (np.diff(self.offsets) < 0).any() or self.offsets[0] < 0 or self.offsets[-1] > len(self.values):
            raise ConfigError(f"{self._where}/offsets must not decrease, and must be in 0 to {len(self.values)}")
        longest = self.values.row_bytes * int(np.diff(self.offsets).max(initial=0))
        check_memory(COPIES * longest, f"{self._where}: {COPIES} copies of its longest row")
        if self.text and (self.dtype != np.uint8 or len(self.shape) != 1):
            raise ConfigError(f"{self._where}: values of text must be (n,) uint8, got {self.values.shape} {self.dtype}")

    def __len__(self) -> int:
        """Return the number of samples."""
        return len(self.offsets) - 1

    def nbytes(self, rows: np.ndarray | None) -> int:
        """Return the bytes of these samples, or of all."""
        lengths = self.offsets[-1] - self.offsets[0] if rows is None else self.offsets[rows + 1] - self.offsets[rows]
        return int(np.sum(lengths)) * self.values.row_bytes

    def read(self, rows: np.ndarray) -> list[Any]:
        """Return a list of arrays (length, ...), which may be views, or of str."""
        if isinstance(self.values.reader, Ranged):
            self.advise(rows)  # requests all of them concurrently
        bounds = zip(self.offsets[rows].tolist(), self.offsets[rows + 1].tolist(), strict=True)
        samples: list[Any] = [self.values.view(a, b) for a, b in bounds]
        if self.text:
            samples = [s.tobytes() for s in samples]
            self.values.check()
            return [decoded(s, self._where, self._encoding) for s in samples]
        return samples

    @property
    def file(self) -> Any:
        """Return the file of the values; `read` may return views of it."""
        return self.values.file

    def advise(self, rows: np.ndarray) -> None:
        """Load these samples in the background."""
        begin, end = self.offsets[rows], self.offsets[rows + 1]
        if isinstance(self.values.reader, (Mapped, Ranged)):
            self.values.reader.advise(begin[end > begin], (end - begin)[end > begin])

    def column(self) -> np.ndarray:
        """Return the lengths (N,) int64."""
        return np.diff(self.offsets)


class Objects(Field):
    """Strings, also in a column of a table, and HDF5's variable-length samples."""

    def __init__(self, dset: h5py.Dataset, member: str | None, cache: ChunkCache, swmr: bool, encoding: str) -> None:
        self._encoding = encoding
        self._where = f"{dset.file.filename}: {dset.name}" + ("" if member is None else f"/{member}")
        dtype = dset.dtype if member is None else dset.dtype[member]
        if dset.ndim != 1:
            raise ConfigError(f"{self._where} has the shape {dset.shape}; strings and vlen samples must be (rows,)")
        string, vlen = h5py.check_string_dtype(dtype), h5py.check_vlen_dtype(dtype)
        if string is None and (vlen is None or np.dtype(vlen).kind not in "biuf"):
            raise ConfigError(f"{self._where} has the type {dtype}, which no tensor supports; write it as another type")
        self._rows, self.text = dset.shape[0], string is not None
        self.shape, self.dtype = (-1,), torch_dtype(np.dtype(np.uint8 if self.text else vlen))
        whole = member is None and string is not None and string.length is not None
        self._fixed = Fixed(dset, None, cache, swmr) if whole else None
        check_filters(dset)
        self._reader = None if self._fixed else ThroughH5py(dset, member, swmr)
        self._column = dtype if dtype.kind == "S" else np.dtype(object)
        why = "variable length" if dtype.kind == "O" else "a member of a compound type"
        self.way, self.reason = (self._fixed.way, self._fixed.reason) if self._fixed else ("h5py", why)
        self._bytes_a_row = dtype.itemsize
        self.read(np.arange(min(1, self._rows)))  # raises an error now if it is damaged

    def __len__(self) -> int:
        """Return the number of samples."""
        return self._rows

    def nbytes(self, rows: np.ndarray | None) -> int:
        """Return the bytes of these rows in the dataset, without the values of variable length."""
        return (self._rows if rows is None else len(rows)) * self._bytes_a_row

    def read(self, rows: np.ndarray) -> list[Any]:
        """Return a list of str, or of arrays (length,)."""
        if self._fixed is not None:
            return [decoded(raw, self._where, self._encoding) for raw in self._fixed.read(rows).tolist()]
        assert self._reader is not None
        out = np.empty(len(rows), dtype=self._column)
        self._reader.gather_into(rows, out)
        if self.text:
            return [decoded(raw, self._where, self._encoding) for raw in out.tolist()]
        return [for_torch(np.asarray(sample), self._where) for sample in out]

    def advise(self, rows: np.ndarray) -> None:
        """Load strings of fixed length in the background."""
        if self._fixed is not None:
            self._fixed.advise(rows)

    def column(self) -> np.ndarray:
        """Return the lengths (N,) int64."""
        rows = np.arange(len(self))
        return np.array([len(s) for k in range(0, len(rows), 4096) for s in self.read(rows[k : k + 4096])], np.int64)


def open_field(
    file: h5py.File,
    group: str,
    name: str,
    key: str,
    cache: ChunkCache,
    swmr: bool,
    external: str,
    encoding: str = UTF_8,
    place: tuple[Any, str | None] | None = None,
) -> Field:
    """Open the field `name` in `group`.

    key: the config key for messages. encoding: of its strings. place: as `find` returns it, if it was called. Raise
    ConfigError if the object cannot be a field.
    """
    with named(f"{file.filename}: {name} ({key})"):
        item, member = place or find(file, group, name, key, external)
        if isinstance(item, h5py.Group):
            if not {"values", "offsets"} <= set(item):
                what = f"{file.filename}: {item.name} ({key}) is a group of {sorted(map(str, item))[:20]}"
                remedy = "choose one of its datasets (a group is a field only if it contains `values` and `offsets`)"
                raise ConfigError(f"{what}; {remedy}")
            return FlatOffsets(item, cache, swmr, external, encoding)
        check_type(item, key)
        if item.shape is None:
            raise ConfigError(f"{file.filename}: {item.name} ({key}) is empty: it has no rows and no shape")
        dtype = item.dtype if member is None else item.dtype[member]
        if dtype.kind in "OS" and not dtype.subdtype:
            return Objects(item, member, cache, swmr, encoding)
        return Fixed(item, member, cache, swmr)
