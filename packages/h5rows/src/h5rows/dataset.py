"""Read any HDF5 file as batches of named fields, at memory speed if its layout allows.

path (a file, or shards) -> split (a group, some of its rows) -> fields -> gather(rows, out) -> a batch
"""

from __future__ import annotations

import operator
import os
import warnings
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise
from typing import Annotated, Any, Literal, get_type_hints

import h5py
import numpy as np
import torch
from torch import Tensor

from h5rows.checks import check_options
from h5rows.conventions.choice import choose
from h5rows.conventions.described import groups_of_files
from h5rows.conventions.opening import How, Opened, how, lost_share, parts_of
from h5rows.errors import ConfigError, argument, as_typed, override
from h5rows.reading.copies import files_of, open_file, ranged
from h5rows.reading.external import items_below
from h5rows.reading.fields import Field, Fixed
from h5rows.reading.finding import find
from h5rows.reading.memory import check_memory
from h5rows.reading.opening import groups_of, named, names_of, split_of
from h5rows.reading.raw import ChunkCache
from h5rows.reading.readers import MappedShards
from h5rows.reading.shared import coded, kept, once
from h5rows.reading.stored import cached_property
from h5rows.row_sets import Block, RowSet, count_below, count_shared, rows_of_shards, rows_within
from h5rows.selection import check_folds, fold_rows, groups_in_share, share_of_rows

_LOOKED_AT, _ROWS_AT_ONCE = 256 << 20, 1 << 20  # bytes; row numbers
# (name in the file, name of the argument) -> distinct values, and the index in them of each row
_Column = Callable[[str, str], tuple[np.ndarray, np.ndarray]]
EXAMPLE = {"x": "image", "y": "label"}


class Dataset:
    """Named fields of one HDF5 file, or of several files (shards) one after the other.

    path: a file, a pattern with *, or a list of them. A remote file (https://..., s3://...) is copied to this machine
    first, see `cache_gb`.

    fields: name in the batch -> name of the dataset in the file, relative to the split's group; null removes the field.
    A name may be a nested path, a member of a compound type, or a group that contains `values` and `offsets`.

    split: the group to read, "/" for the root; if `splits` is given, one of its names.

    splits: name of a split -> its entry; null if there is no such split. Only `group` is required in an entry:

        group: NAME            the group of its datasets; "/" for the root
        index: NAME            a dataset of row numbers: read only these rows
        rows: [BEGIN, END]     read this share of the rows: [0, 0.9], [0.9, 1]
        by: random             shuffle, always in the same way (the default)
        by: blocks             do not shuffle: a share is one block of the file
        by: NAME               shuffle; equal values of this dataset stay together
        seed: INTEGER          use another shuffle than that of seed 0
        fold: train or val     with `folds`: the rows of fold number `fold` (val), or all others (train)

    folds, fold: cross-validation: divide the rows of an entry into `folds` parts, as `by` says. stratify_by: the name
    of a dataset of classes, which all folds have in equal shares. fold_repeat: each number is another division.

    swmr: another program appends to the file, in HDF5's mode SWMR (single writer, multiple readers); only the rows that
    exist when the file is opened are read.

    cache_mb: memory for decoded chunks in MB, used if a compressed chunk contains several samples or if all chunks fit.

    external: refuse or allow datasets whose bytes are in other files (h5rows.reading.external).

    decode: false returns the numbers as stored. true applies the conventions of the program that wrote the file
    (h5rows.conventions): it unpacks CF's packed data, reverses MATLAB's axes, makes sparse rows dense and returns the
    names of categories.

    missing: what replaces a missing value if `decode` is true: a number, nan, or drop, which removes such rows. One for
    all fields, or field -> replacement (nan for the other fields).

    encoding: of strings that are not UTF-8, such as gb18030 or latin-1. It overrides what the file declares.

    cache_gb: null downloads whole remote files and keeps them. A number downloads only the blocks that are needed, into
    a folder of at most this size (10**9 bytes) that all processes share (h5rows.reading.ranges).

    Fields that differ from the file: samples of different lengths have the shape (-1, ...) in `spec`; their batch is
    padded with zeros to its longest sample, and `<field>_length` (B,) int64 is added to it. Strings have the spec
    ((-1,), uint8), and their batch is a list of str. uint32 and uint64 become int64, because torch cannot compute with
    them.
    """

    takes_remote = True  # `path` may be remote files, which are downloaded before the run starts

    def __init__(
        self,
        path: str | Sequence[str],
        fields: Mapping[str, str | None],
        split: str = "/",
        splits: Mapping[str, Mapping[str, Any] | None] | None = None,
        swmr: bool = False,
        cache_mb: Annotated[int, {"at_least": 0}] = 64,
        external: Literal["refuse", "allow"] = "refuse",
        decode: bool = False,
        missing: float | str | Mapping[str, float | str] = "nan",
        cache_gb: float | None = None,
        encoding: str = "utf-8",
        folds: int | None = None,
        fold: int | None = None,
        fold_repeat: Annotated[int, {"at_least": 0}] = 0,
        stratify_by: str | None = None,
    ) -> None:
        given = {"split": split, "swmr": swmr, "cache_mb": cache_mb, "external": external, "decode": decode}
        check_options(_HINTS, {**given, "missing": missing, "encoding": encoding})
        check_folds(folds, fold, fold_repeat, stratify_by)
        if cache_mb < 0:
            raise ConfigError(f"{argument('cache_mb')}={cache_mb}: must be at least 0")
        if not isinstance(fields, Mapping):
            raise ConfigError(f"{argument('fields')}={fields}: expected a mapping, such as {as_typed(EXAMPLE)}")
        entry = split_of({split: {"group": split}} if splits is None else splits, split)
        if folds is not None and not any((one or {}).get("fold") for one in (splits or {}).values()):
            what = f"{argument('folds', folds)}: has no effect, because no entry of {argument('splits')} has `fold`"
            raise ConfigError(
                f"{what}; write {as_typed({'train': {'group': '/', 'fold': 'train'}})}, and val in the same way"
            )
        cache = ChunkCache(cache_mb << 20)
        named = {field: name for field, name in fields.items() if name is not None}
        self._open: dict[str, list[Field]] | None = {field: [] for field in named}
        self.class_names: dict[str, list[str]] = {}  # only fields whose classes have names in the file
        index: list[np.ndarray | range] = []  # selected rows of each shard
        starts, dropped, lacking = [0], 0, ""
        if not named:
            raise ConfigError(f"{argument('fields')} is empty: give at least one, such as {as_typed(EXAMPLE)}")
        self._files = files = files_of(path) if cache_gb is None else names_of(path)
        self._ranged = ranged(files, cache_gb, external)
        groups = [entry["group"]] if splits is None else groups_of(splits)
        if len(files) > 1 and (made := [name for name in named.values() if parts_of(name)[1] == "classes"]):
            raise ConfigError(
                f"{argument('fields')}: {made[0]} of {len(files)} files: their classes may differ; write integers"
            )
        more = {"external": external, "encoding": encoding, "cache_gb": cache_gb}
        reading = how(named, groups, missing, swmr=swmr, decode=decode, **more)
        described = groups_of_files(files, entry["group"], reading, cache)
        for file_name, opened in zip(files, described, strict=True):
            for field, (found, names) in opened.fields.items():
                self._fields[field].append(found)
                if names:
                    self._join_names(field, names, named[field], file_name)
                    if found.dtype.kind == "f" and (lost := lost_share(found)):
                        what = f"{file_name}: {named[field]}: {lost:.2%} of its rows have no class"
                        remedy = "to remove such rows, or a number, such as -1, to replace the class"
                        raise ConfigError(f"{what}: set {override('missing', {field: 'drop'})} {remedy}")
            rows = self._common_length(file_name, swmr, (file_name, entry["group"], named))
            chosen: np.ndarray | range = range(rows)
            if entry.get("index") is not None:
                key = argument(f"splits.{split}.index")
                with open_file(file_name, swmr, cache_gb) as file:
                    chosen = read_index(file, entry["group"], entry["index"], rows, key, external)
            if (lacks := opened.lacks) is not None and lacks.any():
                before = len(chosen)
                chosen = np.flatnonzero(~lacks) if isinstance(chosen, range) else chosen[~lacks[chosen]]
                dropped += before - len(chosen)
                lacking = " or ".join(field for field in named if opened.fills.get(field) == "drop")
            index.append(chosen)
            starts.append(starts[-1] + rows)
        self._starts = np.asarray(starts, dtype=np.int64)
        self.spec = {field: self._spec(field, shards) for field, shards in self._fields.items()}
        # rows[positions] are rows of the files; None: all
        self._rows: RowSet | np.ndarray | None = rows_of_shards(index, starts[:-1])

        column = partial(self._column, group=entry["group"], reading=reading)
        self._choose_share(entry, split, column)
        self._choose_fold(entry, split, column, folds, fold, fold_repeat, stratify_by)
        self._size = starts[-1] if self._rows is None else len(self._rows)
        self._in_order = entry.get("index") is None  # rows ascend, and none is there twice
        self._sources = {_absolute(entry["group"], parts_of(name)[0]) for name in named.values()}
        if self._size == 0:
            remedy = f"set it to {as_typed(None)} if there is no such split"
            if dropped:
                what = f"{argument('missing', 'drop')} removes {dropped:,} rows without a value of {lacking}"
                remedy = f"{what}; to keep them, set a number or nan"
            elif splits is None:
                raise ConfigError(f"{path}: {split} has no rows to read")
            raise ConfigError(f"{argument(f'splits.{split}')} has no rows in {path}; {remedy}")
        self._cache_bytes = cache.max_bytes

    def _join_names(self, field: str, names: Sequence[str], name: str, file: str) -> None:
        """Keep the names of a field's classes in a file. Raise ConfigError if an earlier file names a class
        differently, because equal labels would mean two classes."""
        known = self.class_names.get(field, [])
        for number, (here, before) in enumerate(zip(names, known)):
            if here != before:
                what = f"{file}: {name} ({argument(f'fields.{field}')}): class {number} is {here!r}"
                raise ConfigError(
                    f"{what}, but {before!r} in the files before it; number the classes alike in all files"
                )
        self.class_names[field] = max(known, list(names), key=len)

    def _choose_share(self, entry: Mapping[str, Any], split: str, column: _Column) -> None:
        """Keep the share `rows` of an entry of `splits`."""
        if entry.get("rows") is None:
            return
        by, seed, key = entry.get("by") or "random", entry.get("seed") or 0, argument(f"splits.{split}")
        size = int(self._starts[-1]) if self._rows is None else len(self._rows)
        if by not in ("random", "blocks"):
            share: RowSet | np.ndarray = groups_in_share(column(by, f"{key}.by")[1], entry["rows"], f"{key}.rows", seed)
        else:
            share = share_of_rows(size, entry["rows"], f"{key}.rows", by, seed)
        self._rows = share if self._rows is None else rows_within(self._rows, share)

    def _choose_fold(
        self,
        entry: Mapping[str, Any],
        split: str,
        column: _Column,
        folds: int | None,
        fold: int | None,
        repeat: int,
        stratify_by: str | None,
    ) -> None:
        """Keep the rows of one fold, or of all other folds, if an entry of `splits` has `fold`."""
        size = int(self._starts[-1]) if self._rows is None else len(self._rows)
        if (part := entry.get("fold")) is None or not size:
            return
        by, key = entry.get("by") or "random", argument(f"splits.{split}")
        if folds is None or fold is None:
            raise ConfigError(
                f"{key}.fold={part}: has no effect without {argument('folds')}; set {argument('folds')} and "
                f"{argument('fold')}"
            )
        pool = None if self._rows is None else np.asarray(self._rows)
        if pool is not None and len(np.unique(pool)) < len(pool):
            what = f"{argument('folds', folds)}: {argument(f'splits.{split}.index')} has the same row twice"
            raise ConfigError(f"{what}, which could be in two folds; remove it there")
        kinds = None if by in ("random", "blocks") else column(by, f"{key}.by")[1]
        names, of_class = (None, None) if stratify_by is None else column(stratify_by, argument("stratify_by"))
        classes = None if names is None else names[of_class]
        of = fold_rows(size, folds, repeat, by, kinds, classes, stratify_by or "")
        inside = np.flatnonzero((of == fold) == (part == "val"))
        self._rows = inside if pool is None else pool[inside]

    def _column(self, name: str, key: str, group: str, reading: How) -> tuple[np.ndarray, np.ndarray]:
        """Return (distinct values, the index in them of each row that is chosen so far) of a dataset in the file.

        key: the name of the argument in messages.
        """

        def read() -> Sequence[np.ndarray]:
            parts, sizes = [], np.diff(self._starts)
            for file, rows in zip(self._files, sizes):
                values = column_of(file, group, name, key, reading)
                values = values[:rows] if reading.swmr else values  # the file may grow meanwhile
                if len(values) != rows:
                    what = f"{key}={name}: has {len(values):,} values in {file}"
                    raise ConfigError(f"{what}, but there are {rows:,} rows")
                parts.append(values)
            return coded(np.concatenate(parts))

        known = ("column", group, name, reading.encoding)
        distinct, codes = once(self._files, known, read, reading.swmr, reading.external)
        return distinct, codes if self._rows is None else codes[np.asarray(self._rows)]

    def _common_length(self, path: str, swmr: bool, key: object) -> int:
        rows = {field: len(shards[-1]) for field, shards in self._fields.items()}
        if swmr:  # a writer appends to one field after the other, and while other splits and processes open the file
            found, block = [np.array(min(rows.values()))], kept()
            return int((found if block is None else block.find(repr(key), lambda: found))[0])
        if len(set(rows.values())) > 1:
            raise ConfigError(f"{path}: fields have different numbers of rows: {rows}; they must be equal in a split")
        return next(iter(rows.values()))

    def _spec(self, field: str, shards: list[Any]) -> tuple[tuple[int, ...], torch.dtype]:
        kinds = {((-1, *s.shape[1:]) if s.shape[0] == -1 else tuple(s.shape[1:]), s.dtype, s.text) for s in shards}
        if len(kinds) > 1:
            raise ConfigError(
                f"{argument(f'fields.{field}')} differs between files: {sorted(map(str, kinds))}; they must agree"
            )
        shape, dtype, _ = kinds.pop()
        return shape, torch.from_numpy(np.empty(0, dtype=dtype)).dtype

    def __len__(self) -> int:
        """Return the number of rows of the split."""
        return self._size

    @property
    def _fields(self) -> dict[str, list[Field]]:
        """Return field -> one reader per shard."""
        if self._open is None:
            raise ValueError(f"{self._files[0]} is closed: open it again")
        return self._open

    def close(self) -> None:
        """Close the files of this data set in this process. Batches stay valid; later reads raise ValueError."""
        self._open, self._ranged = None, []
        self.__dict__.pop("_together", None)
        self.__dict__.pop("_shard_files", None)

    def __enter__(self) -> Dataset:
        return self

    def __exit__(self, *raised: object) -> None:
        self.close()

    @property
    def nbytes(self) -> int:
        """Return the bytes of all rows of this split, decoded."""
        return sum(self._bytes_of(field, shards) for field, shards in self._fields.items())

    def _bytes_of(self, field: str, shards: list[Field]) -> int:
        if self._rows is None:
            return sum(shard.nbytes(None) for shard in shards)
        if not shards[0].text and -1 not in self.spec[field][0]:
            return self._size * shards[0].row_bytes
        total = 0
        for begin in range(0, self._size, _ROWS_AT_ONCE):
            rows = np.arange(begin, min(begin + _ROWS_AT_ONCE, self._size))
            total += sum(shards[k].nbytes(local) for k, local, _ in self._part(rows).by_shard)
        return total

    @property
    def ahead_bytes(self) -> int:
        """Return how many bytes to request with `advise` before `gather` reads them; 0 if a few batches are enough."""
        return self._ranged[0].ahead_bytes if self._ranged else 0

    @property
    def kept_bytes(self) -> int:
        """Return the limit of the disk cache for remote files in bytes; 0: no limit."""
        return self._ranged[0].limit if self._ranged else 0

    @property
    def chunk_rows(self) -> int | None:
        """Return how many consecutive rows a shuffle should keep together; None if reading single rows is cheap.

        These are the rows of a chunk if reading one row decodes a whole chunk and the decoded chunks exceed the cache.
        For remote files that are read by blocks, they are as many rows as one request should read.
        """
        if self._ranged:
            widest = max(1, self.nbytes // self._size)
            stored = (s.chunk_rows for shards in self._fields.values() for s in shards)
            return max(1, self._ranged[0].stretch // widest, *stored)
        costly = [
            max(s.chunk_rows for s in shards)
            for shards in self._fields.values()
            if any(s.way != "mapped" and s.chunk_rows > 1 for s in shards)
            and sum(s.nbytes(None) for s in shards) > self._cache_bytes
        ]
        return max(costly, default=None)

    def describe(self) -> list[str]:
        """Return one line per field: how it is read, and why."""
        lines = []
        for field, shards in self._fields.items():
            ways = dict.fromkeys(f"{s.way} ({s.reason})" for s in shards)
            shown = "; ".join(list(ways)[:3]) + ("; ..." if len(ways) > 3 else "")
            shape, dtype = self.spec[field]
            kind = "strings" if shards[0].text else f"{shape} {str(dtype).removeprefix('torch.')}"
            lost = lost_share(shards[0])
            shown += f"; {lost:.2%} of its values are missing" * (lost > 0)
            unread = sum(map(len, shards)) - int(self._starts[-1])  # with swmr
            shown += f"; {unread} rows are not read, because another field has fewer" * (unread > 0)
            lines.append(f"{field}: {kind}, {shown}" + (f", {len(shards)} files" if len(shards) > 1 else ""))
        return lines + [file.described(self.nbytes) for file in self._ranged[:1]]

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Return the batch of `rows` (B,) int64 of the split, in the first B rows of the buffers `out`, or in new
        memory.

        Fields without a fixed shape are always in new memory. Safe to call from several threads.
        """
        return self._gather(rows, out, None)

    def gather_at(self, rows: np.ndarray, out: dict[str, Tensor], at: np.ndarray) -> None:
        """Copy sample rows[i] to `out[field][at[i]]`, like `gather`. All fields must have a fixed shape."""
        self._gather(rows, out, at)

    def _gather(self, rows: np.ndarray, out: dict[str, Tensor] | None, among: np.ndarray | None) -> dict[str, Tensor]:
        """Return a batch. among: positions in `out`; None: the first ones."""
        part = self._part(rows)
        if self._ranged:
            with self._ranged[0].in_haste():
                self._advise(part)
        batch: dict[str, Any] = {}
        try:
            for field, shards in self._fields.items():
                if shards[0].text or -1 in self.spec[field][0]:
                    batch |= self._of_any_length(field, part)
                else:
                    size = len(rows) if among is None else len(out[field])  # type: ignore[index]
                    batch[field] = self._of_fixed_shape(field, size, part, out, among)
            return batch
        finally:  # once per file and batch; also after an error, because a changed file may be its reason
            files = self._shard_files
            for k in part.touched:
                for file in files[k]:
                    file.check()

    @cached_property
    def _together(self) -> dict[str, MappedShards]:
        """Return the reader of all shards of a field, for fields that can be read in this way."""
        made = {field: Fixed.together(shards, self._starts) for field, shards in self._fields.items()}
        return {field: reader for field, reader in made.items() if reader is not None}

    @cached_property
    def _shard_files(self) -> list[list[Any]]:
        """Return the files to check after use, for each shard."""
        shards = zip(*self._fields.values(), strict=True)
        return [list({field.file: None for field in fields if field.file is not None}) for fields in shards]

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_together", "_shard_files")}

    def _of_any_length(self, field: str, part: _ShardRows) -> dict[str, Any]:
        samples: list[Any] = [None] * len(part.rows)
        for shard, local, at in part.by_shard:
            read = self._fields[field][shard].read(local)
            for k, sample in zip(range(len(samples)) if at is None else at.tolist(), read, strict=True):
                samples[k] = sample
        if self._fields[field][0].text:
            return {field: samples}
        return _padded(field, samples, *self.spec[field])

    def _of_fixed_shape(
        self, field: str, size: int, part: _ShardRows, out: dict[str, Tensor] | None, among: np.ndarray | None
    ) -> Tensor:
        shape, dtype = self.spec[field]
        target = _new_batch(size, shape, dtype) if out is None else out[field][:size]
        if tuple(target.shape) != (size, *shape) or target.dtype != dtype or not target.is_contiguous():
            raise ValueError(f"the buffer of {field!r} must be contiguous, ({size} or more, *{shape}) {dtype}")
        if field in self._together:
            self._together[field].gather_into(part.rows, part.of, target.numpy(), among)
            return target
        for k, local, at in part.by_shard:
            to = at if among is None else among if at is None else among[at]
            self._fields[field][k].gather_into(local, target.numpy(), to)
        return target

    def advise(self, rows: np.ndarray) -> None:
        """Ask the operating system to read these rows into memory in the background, unless they are there."""
        self._advise(self._part(rows))

    def _advise(self, part: _ShardRows) -> None:
        for field, shards in self._fields.items():
            if field in self._together and self._together[field].in_memory(part.rows, part.of):
                continue
            for k, local, _ in part.by_shard:
                shards[k].advise(local)

    def where(self, row: int) -> str:
        """Return the row number in the file, and the file, of a row of the split, as text for messages."""
        ((shard, local, _),) = self._part(np.array([row])).by_shard
        return f"row {int(local[0])} of {self._files[shard]}"

    def shared_rows(self, other: Dataset) -> int:
        """Return how many rows of the files both data sets read: 0 if they read no dataset in common.

        Two splits with shared rows are not independent. Shares of one shuffling, and blocks, are compared without a
        look at their rows. A row that `index` contains twice is counted once.
        """
        if self._sources.isdisjoint(other._sources):
            return 0
        files, others = ([os.path.realpath(file) for file in one._files] for one in (self, other))
        if files == others and len(set(files)) == len(files) and np.array_equal(self._starts[:-1], other._starts[:-1]):
            return count_shared(self._ascending(), other._ascending())
        rows, other_rows = self._rows_by_file(files), other._rows_by_file(others)
        return sum(
            len(np.intersect1d(rows(file), other_rows(file), assume_unique=True)) for file in set(files) & set(others)
        )

    def _ascending(self) -> RowSet | np.ndarray:
        """Return the rows in ascending order, each of them once."""
        if self._rows is None:
            return Block(0, self._size)
        return self._rows if self._in_order else np.unique(np.asarray(self._rows))

    def _rows_by_file(self, files: Sequence[str]) -> Callable[[str], np.ndarray]:
        """Return a function of a file that returns its rows here, in ascending order, each of them once.

        files: the paths of this set's files without links, so that a file that is listed twice has one path."""
        rows, shards = self._ascending(), defaultdict(list)
        for shard, file in enumerate(files):
            shards[file].append(shard)

        def rows_of(file: str) -> np.ndarray:
            found = []
            for shard in shards[file]:
                bounds = self._starts[shard : shard + 2]
                begin, end = count_below(rows, bounds)
                found.append(rows[np.arange(begin, end)] - bounds[0])
            return np.unique(np.concatenate(found))

        return rows_of

    def find_non_finite(self) -> str | None:
        """Return field, row and file of the first inf or NaN, as text; None if the first 256 MB contain none."""
        found = first_non_finite(self)
        remedy = f"; {argument('missing')} sets the replacement of missing values"
        return found + remedy if found is not None and found.endswith("nan") else found

    def column(self, field: str) -> np.ndarray:
        """Return all values of a field, by row. For strings and samples that differ in length, return the lengths."""
        sizes = np.diff(self._starts)
        values = np.concatenate([shard.column()[:rows] for shard, rows in zip(self._fields[field], sizes, strict=True)])
        return values if self._rows is None else values[np.asarray(self._rows)]

    def __getitem__(self, index: Any) -> dict[str, Any]:
        """Return one sample in its own length, or the batch of several rows, like `gather`.

        index: a row number returns a sample. A slice, a list, an array or a tensor (B,) of row numbers, or a mask
        (rows,) of bool, returns a batch. Negative numbers count from the end. PyTorch's `DataLoader(data,
        batch_size=None, sampler=BatchSampler(...))` requests whole batches, which need no stacking.
        """
        if not isinstance(index, (slice, tuple)) and np.ndim(index) == 0:
            return self.__getitems__([operator.index(index)])[0]
        rows = self._chosen(index)
        self.advise(rows)
        return self.gather(rows)

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        """Return the samples of a batch, read at once. PyTorch's `DataLoader(data, batch_size=...)` stacks them."""
        rows = self._chosen(indices)
        self.advise(rows)
        batch = self.gather(rows)
        columns = [self._apart(batch, field) for field in self._fields]
        return [dict(zip(self._fields, sample, strict=True)) for sample in zip(*columns, strict=True)]

    def _chosen(self, index: Any) -> np.ndarray:
        """Return row numbers (B,) from 0, selected as in NumPy."""
        if isinstance(index, slice):
            return np.arange(*index.indices(self._size))
        if isinstance(index, tuple):
            raise TypeError(f"data[{index!r}]: give a row number, or a list of them, such as data[[0, 3]]")
        rows = np.asarray(index)
        if rows.dtype == bool and rows.ndim == 1:
            if len(rows) != self._size:
                raise IndexError(f"a mask of {len(rows)} rows does not fit a split of {self._size}")
            return np.flatnonzero(rows)
        rows = self._row_numbers(rows, -self._size, "row numbers must be (B,) integers, or a mask of (rows,) bool")
        return np.where(rows < 0, rows + self._size, rows)

    def _apart(self, batch: dict[str, Any], field: str) -> Sequence[Any]:
        """Return the samples of one field, each in its own length."""
        if isinstance(batch[field], list):  # strings
            return batch[field]
        samples = batch[field].unbind()
        if -1 not in self.spec[field][0]:
            return samples
        return [sample[:size] for sample, size in zip(samples, batch[f"{field}_length"].tolist(), strict=True)]

    def _row_numbers(self, rows: np.ndarray, lowest: int, wanted: str) -> np.ndarray:
        if rows.ndim != 1 or (rows.dtype.kind not in "iu" and len(rows)):
            raise TypeError(f"{wanted}, got {rows.shape} {rows.dtype}")
        if len(rows) and (rows.min() < lowest or rows.max() >= self._size):
            raise IndexError(f"row numbers {rows.min()} to {rows.max()} are out of range for {self._size} rows")
        return rows.astype(np.int64, copy=False)

    def _part(self, rows: np.ndarray) -> _ShardRows:
        rows = self._row_numbers(np.asarray(rows), 0, "rows must be row numbers, (B,) integers")
        return _ShardRows(rows if self._rows is None else self._rows[rows], self._starts)


class _ShardRows:
    """Rows of all files, divided by shard. rows: (B,) int64 numbers. starts: (shards + 1,) number of each shard's first
    row."""

    def __init__(self, rows: np.ndarray, starts: np.ndarray) -> None:
        self.rows, self._starts = rows, starts

    @cached_property
    def of(self) -> np.ndarray:
        """Return the shard of each row, (B,) int64."""
        return np.searchsorted(self._starts, self.rows, side="right") - 1

    @cached_property
    def touched(self) -> list[int]:
        """Return the shards that have some of the rows."""
        return [0] if len(self._starts) == 2 else np.flatnonzero(np.bincount(self.of)).tolist()

    @cached_property
    def by_shard(self) -> list[tuple[int, np.ndarray, np.ndarray | None]]:
        """Return (shard, rows in it, their positions in the batch or None for all) for each touched shard."""
        if len(self._starts) == 2:
            return [(0, self.rows, None)]
        order = np.argsort(self.of, kind="stable")
        of = self.of[order]
        local = self.rows[order] - self._starts[of]
        cuts = [*np.flatnonzero(np.diff(of, prepend=-1)).tolist(), len(of)]
        return [(k, local[a:b], order[a:b]) for k, (a, b) in zip(self.touched, pairwise(cuts), strict=True)]


_HINTS = get_type_hints(Dataset.__init__)


def _absolute(group: str, name: str) -> str:
    """Return the path of a dataset from the root. name: relative to the group, or to the root if it begins with /."""
    return "/".join(step for step in (name if name.startswith("/") else f"{group}/{name}").split("/") if step)


def open(
    path: str | os.PathLike[str] | Sequence[str],
    fields: Mapping[str, str] | None = None,
    split: str | None = None,
    **options: Any,
) -> Dataset:
    """Open a file, or shards, for a plain PyTorch loop.

    fields: name in the batch -> name in the file. None: all fields of the split's group under their own names, if they
    have the same number of rows; otherwise `x` and `y`, as suggested by `inspect`, decoded. split: the group, or a name
    of `splits`; None: `train` if there is such a group or split, otherwise the root. options: arguments of Dataset.
    """
    names, options = names_of(path), _translate_options(options)
    splits = options.get("splits")
    if fields is None or split is None:
        with open_file(names[0], bool(options.get("swmr")), options.get("cache_gb")) as file:
            if split is None:
                split = "train" if "train" in (set(file) if splits is None else splits) else "/"
            if fields is None:
                entry = split_of({split: {"group": split}} if splits is None else splits, split)
                fields, meant = _found(file, entry["group"])
                options = {**meant, **options}
    return Dataset(names, fields, split, **options)


def _translate_options(options: dict[str, Any]) -> dict[str, Any]:
    """Translate the options of 0.2, `values` and `masked`, with a warning."""
    options = dict(options)
    if "values" in options:
        options["decode"] = options.pop("values") == "meant"
        warnings.warn(
            f"values= is deprecated since 0.3, use decode={options['decode']}", DeprecationWarning, stacklevel=3
        )
    if "masked" in options:
        options["missing"] = options.pop("masked")
        warnings.warn("masked= is deprecated since 0.3, use missing=", DeprecationWarning, stacklevel=3)
    return options


def _found(file: h5py.File, group: str) -> tuple[dict[str, str], dict[str, Any]]:
    """Return (fields of a group, name in the batch -> name in the file; the options of Dataset that they need)."""
    below = {name.rpartition("/")[::2]: item for name, item in items_below(file)}
    own = {name: _rows(item) for (above, name), item in below.items() if above == group.strip("/")}
    rows = {name: count for name, count in own.items() if count is not None}
    if len(set(rows.values())) == 1:
        return {name: name for name in rows}, {}
    choice = choose(file)
    if choice is None:
        what = f"have different numbers of rows: {rows}" if rows else "have no rows"
        raise ConfigError(f"{file.filename}: the fields of {group} {what}; give fields={as_typed({'x': 'NAME'})}")
    settings = choice.settings
    fields = {key.removeprefix("fields."): name for key, name in settings.items() if key.startswith("fields.") and name}
    return fields, {"decode": True, **({"missing": settings["missing"]} if "missing" in settings else {})}


def _rows(item: Any) -> int | None:
    """Return the number of rows of a field; None if the object is not a field."""
    if isinstance(item, h5py.Group) and {"values", "offsets"} <= set(item):
        return len(item["offsets"]) - 1
    return int(item.shape[0]) if isinstance(item, h5py.Dataset) and item.shape else None


def _new_batch(size: int, shape: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """Return uninitialized memory (size, *shape). NumPy requests huge pages for it, and torch does not: the page faults
    of 4 KB pages take longer than the copy of the rows."""
    return torch.from_numpy(np.empty((size, *shape), dtype=torch.empty(0, dtype=dtype).numpy().dtype))


def _padded(field: str, samples: list[np.ndarray], shape: tuple[int, ...], dtype: torch.dtype) -> dict[str, Tensor]:
    lengths = torch.tensor([len(sample) for sample in samples], dtype=torch.int64)
    longest = max(map(len, samples), default=0)
    # with numpy, because torch would use its own threads, which hang in a forked process
    values = np.zeros((len(samples), longest, *shape[1:]), dtype=torch.empty(0, dtype=dtype).numpy().dtype)
    for k, sample in enumerate(samples):
        values[k, : len(sample)] = sample
    return {field: torch.from_numpy(values), f"{field}_length": lengths}


def first_non_finite(data: Any) -> str | None:
    """Return field and row of the first inf or NaN, as text; None if the first 256 MB contain none.

    data: has a length, `nbytes`, `gather`, and `where`, which describes a row."""
    rows = min(len(data), max(1, _LOOKED_AT // max(1, data.nbytes // len(data))))
    for begin in range(0, rows, 256):
        for field, values in data.gather(np.arange(begin, min(begin + 256, rows))).items():
            if isinstance(values, Tensor) and values.is_floating_point():
                flat = values.reshape(len(values), -1)
                bad = ~flat.isfinite()
                if bad.any():
                    row = int(bad.any(1).nonzero()[0])
                    return f"{field} of {data.where(begin + row)} contains {float(flat[row][bad[row]][0])}"
    return None


def read_index(file: h5py.File, group: str, name: str, size: int, key: str, external: str) -> np.ndarray:
    """Return the row numbers (n,) int64 in a 1-D integer dataset.

    size: number of rows. key: the name of the argument in messages. Raise ConfigError if the dataset does not contain
    integers, or a number is not in 0..size - 1.
    """
    dset, _ = find(file, group, name, key, external)
    if not isinstance(dset, h5py.Dataset) or dset.ndim != 1 or dset.dtype.kind not in "iu":
        raise ConfigError(f"{key}={name}: must be a 1-D dataset of integers in {file.filename}, got {dset}")
    check_memory(2 * dset.nbytes, f"{file.filename}: {name} ({key}): its row numbers")
    with named(f"{file.filename}: {name} ({key})"):
        rows = dset[:].astype(np.int64)
    if len(rows) and (rows.min() < 0 or rows.max() >= size):
        raise ConfigError(f"{key}={name}: has row numbers from {rows.min()} to {rows.max()}, but there are {size} rows")
    return rows


def column_of(path: str, group: str, name: str, key: str, reading: How) -> np.ndarray:
    """Return all values of a dataset (N,) of numbers or strings. key: the name of the argument in messages."""
    with open_file(path, reading.swmr, reading.cache_gb) as file:
        own = key.removeprefix(ConfigError.group)
        alone = replace(reading, fields=((own, name),), groups=(), decode=True, missing="nan")
        try:
            field, _ = Opened(file, group, ChunkCache(0), alone).field(own)
        except ConfigError as error:
            raise ConfigError(str(error).replace(f"fields.{own}", own)) from None
        if field.text:
            return np.asarray(field.read(np.arange(len(field))), dtype=object)
        if len(field.shape) != 1 or field.shape[0] == -1:
            raise ConfigError(f"{key}={name}: has rows of the shape {field.shape[1:]}; must have one value per row")
        return field.column()
