"""A folder of Parquet files as a data set, without packing. Requires the extra `parquet`.

    files, sorted by name  -> row groups of all files, one after the other  -> rows of the split  -> fields

A row group is the smallest part that can be decoded. `row_groups` shuffles so that each is decoded about once per
epoch; decoded ones are kept in a cache of `cache_mb`.
"""

from __future__ import annotations

import functools
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from fnmatch import fnmatch
from glob import glob
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lab.datasets.columns import (
    Columns,
    TableRows,
    extremes_of,
    flattened,
    joined_values,
    leaves,
    missing_rule,
    missing_values,
    rows_of_split,
    sorted_classes,
)
from samebits.data import ChunkWindows, shuffled
from samebits.errors import ConfigError, RunFailed
from samebits.extras import need, pip_install
from samebits.files import amount, in_words
from samebits.schema import Count, NotNegativeInt

WINDOW, LEAST_GROUPS = 256 << 20, 4  # row groups to shuffle together: so many decoded bytes, but at least 4 groups
HIDDEN = re.compile("/[._]")  # as for Spark and Arrow, whose jobs write to _temporary/
TRIES = 3  # how often a read from a server is tried


class Parquet(TableRows):
    """A `BatchDataset` of the rows of Parquet files.

    path: a folder (all *.parquet below it), a file, a pattern or a list of them; also https:// or s3://, by fsspec.
    fields, missing: see lab.datasets.columns. splits: {split: {rows: [BEGIN, END] or null, by: random, blocks or a
    column, whose equal values stay together; files: a pattern of names, or null}}. folds, fold, fold_repeat,
    stratify_by: see h5rows.Dataset; stratify_by is a column. cache_mb: MB per process for decoded row groups.
    """

    def __init__(
        self,
        path: str | Sequence[str],
        fields: Mapping[str, str | Sequence[str] | None],
        splits: Mapping[str, Mapping[str, Any] | None],
        split: str,
        missing: Literal["refuse", "nan"] = "refuse",
        cache_mb: NotNegativeInt = 2048,
        folds: int | None = None,
        fold: int | None = None,
        fold_repeat: NotNegativeInt = 0,
        stratify_by: str | None = None,
    ) -> None:
        self.files = files = open_files(path)
        self._origin = files.names
        self.columns = columns = files.columns(fields, missing_rule(missing))
        self.spec, self.class_names = columns.spec, columns.class_names
        self._rows = self._rows_of(splits, split, (folds, fold, fold_repeat, stratify_by))
        self.cache_bytes = cache_mb << 20
        self._forget()

    def _rows_of(self, splits: Mapping[str, Mapping[str, Any] | None], split: str, folding: tuple[Any, ...]) -> Any:
        entry, key, files = splits[split] or {}, f"data.splits.{split}", self.files
        if unknown := set(entry) - {"rows", "by", "files", "fold"}:
            raise ConfigError(f"{key} has {sorted(unknown)[0]!r}; allowed: rows, by and files")
        rows = np.arange(files.rows)
        if (pattern := entry.get("files")) is not None:
            chosen = np.array([fnmatch(name, pattern) for name in files.short_names])
            if not chosen.any():
                raise ConfigError(f"{key}.files={pattern}: matches no file; there are {files.short_names[:5]}")
            rows = rows[np.repeat(chosen[files.file_of], files.sizes)]
        if (share := entry.get("rows")) is not None:
            others = [other or {} for name, other in splits.items() if name != split]
            # the parts of a fold divide the same share
            same = [e for e in others if e.get("files") == pattern and not (entry.get("fold") and e.get("fold"))]
            if pattern is not None and not same:
                raise ConfigError(
                    f"{key}.rows={share}: uses only a share of the rows of files={pattern} - set {key}.rows=null "
                    f"{key}.by=null for all rows, or give the same files to another split"
                )
        elif entry.get("by") is not None and entry.get("fold") is None:
            raise ConfigError(
                f"{key}.by={entry['by']}: has no effect without {key}.rows - remove it, or give rows: [0, 0.9]"
            )
        rows = rows_of_split(rows, entry, key, files.whole_column, *folding)
        if not len(rows):
            raise ConfigError(f"{key}: is empty in {files.where}; give a larger range, or null")
        return rows

    @functools.cached_property
    def chunk_rows(self) -> int:
        """Return how many rows of this split a row group has on average."""
        touched = np.unique(self.files.group_of(self._rows))
        return int(-(-len(self) // len(touched)))

    def where(self, row: int) -> str:
        """Return a text for messages: the file of a row of the split, and the row's number in that file."""
        files, number = self.files, self._rows[row]
        file = files.file_of[files.group_of(number)]
        return f"row {number - files.begins[files.file_of == file][0]} of {files.names[file]}"

    def describe(self) -> list[str]:
        """Return lines for the log: number of files and row groups, how they are read; shards that are missing."""
        files, group = self.files, int(self.files.sizes.max()) * self.row_bytes
        cache = f"up to {in_words(self.cache_bytes)} of decoded row groups are kept"
        sizes = f"{amount(files.rows, 'row')} in {amount(len(files.sizes), 'row group')} of up to {in_words(group)}"
        whole = f"{files.where}: {amount(len(files.names), 'Parquet file')}, {sizes}; {cache}"
        return [whole, *missing_shards(files.names)]

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Write sample rows[i] into out[field][i] and return out. rows: (B,) int64. Thread-safe."""
        if out is None:
            out = {field: torch.empty((len(rows), *shape), dtype=dtype) for field, (shape, dtype) in self.spec.items()}
        targets = {field: out[field].numpy() for field in self.spec}
        where = self._rows[rows]
        of = self.files.group_of(where)
        order = np.argsort(of, kind="stable")
        for at in np.split(order, np.flatnonzero(np.diff(of[order])) + 1):
            if len(at):
                group = int(of[at[0]])
                local = where[at] - self.files.begins[group]
                for field, values in self._group(group).items():
                    targets[field][at] = values[local]
        return out

    def _group(self, group: int) -> dict[str, np.ndarray]:
        """Return a decoded row group. If several threads need it, the first decodes it and the others wait."""
        with self._lock:
            if group in self._cache:
                self._cache.move_to_end(group)
                return self._cache[group]
            busy = self._busy.setdefault(group, threading.Lock())
        with busy:
            with self._lock:
                if group in self._cache:
                    return self._cache[group]
            found = self.columns.arrays(self.files.read(group, self.columns.names), self.files.name_of(group))
            size = sum(values.nbytes for values in found.values())
            with self._lock:
                self._busy.pop(group, None)
                while self._cache and self._cached + size > self.cache_bytes:
                    _, old = self._cache.popitem(last=False)
                    self._cached -= sum(values.nbytes for values in old.values())
                if size <= self.cache_bytes:
                    self._cache[group] = found
                    self._cached += size
        return found

    def _forget(self) -> None:
        self._cache: OrderedDict[int, dict[str, np.ndarray]] = OrderedDict()
        self._busy: dict[int, threading.Lock] = {}
        self._lock, self._cached = threading.Lock(), 0

    def __getstate__(self) -> dict[str, Any]:
        return {k: v for k, v in self.__dict__.items() if k not in ("_cache", "_busy", "_lock", "_cached")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._forget()


def row_groups(dataset: Any, seed: int, batch_size: Count, window: Count | None = None) -> Any:
    """Return an order that shuffles a few random row groups at a time; all rows, if they have at most 256 MB.

    window: row groups that are shuffled together; None: as many as have 256 MB decoded, at least 4. Raise ConfigError
    if they do not fit into data.cache_mb."""
    if not isinstance(dataset, Parquet):
        raise ConfigError("data.order: row_groups is for data=parquet - use data/order=shuffled")
    rows = dataset.chunk_rows
    size = int(dataset.files.sizes.max()) * dataset.row_bytes
    if window is None and dataset.files.rows * dataset.row_bytes <= WINDOW:
        return shuffled(dataset, seed)
    count = min(window or max(LEAST_GROUPS, WINDOW // max(1, size)), -(-len(dataset) // rows))
    if (count + 1) * size > dataset.cache_bytes:
        raise ConfigError(
            f"data.cache_mb={dataset.cache_bytes >> 20}: {count} row groups of {in_words(size)} are shuffled together "
            f"- give data.cache_mb={((count + 1) * size >> 20) + 1}, a smaller data.order.window, or smaller row groups"
        )
    return ChunkWindows(len(dataset), rows, count, batch_size, seed)


class Files:
    """The row groups of Parquet files with one schema.

    names: (files,) paths or URLs. sizes, begins, file_of, number_of: each row group's rows, first row, file and number
    in the file.
    """

    def __init__(self, names: list[str], where: str) -> None:
        pq = need("pyarrow.parquet", f"data.path={where}", "pyarrow", "parquet")
        self.names, self.where = names, where
        folders = [f"{name.rpartition('/')[0]}/" for name in names]
        # not commonpath, which changes URLs
        top = os.path.commonprefix(folders).rpartition("/")[0]  # noqa: RUF071
        self.short_names = [name[len(top) :].lstrip("/") if name.startswith(top) else name for name in names]
        self._stamps, self._meta = [], []
        for name in names:
            try:
                self._stamps.append(stamp(name))
                with opened(name) as file:
                    self._meta.append(pq.read_metadata(file))
            except ConfigError:
                raise
            except Exception as error:  # pyarrow and fsspec raise OSError and their own errors
                raise ConfigError(f"data.path: {name} cannot be read as Parquet: {_line(error)}") from None
        self.schema = arrow_schema(self._meta[0])
        groups = [(k, g, meta.row_group(g).num_rows) for k, meta in enumerate(self._meta)
                  for g in range(meta.num_row_groups)]  # fmt: skip
        self.file_of, self.number_of, self.sizes = np.array(groups, dtype=np.int64).reshape(-1, 3).T
        ends = np.cumsum(self.sizes)
        self.begins, self.rows = ends - self.sizes, int(self.sizes.sum())
        self._ends = ends
        if not self.rows:
            raise ConfigError(f"data.path: {where} has no rows")

    def group_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the row group of each row, (B,) int64."""
        return np.searchsorted(self._ends, rows, side="right")

    def name_of(self, group: int) -> str:
        """Return file and number of a row group, for messages."""
        return f"{self.names[self.file_of[group]]}, row group {self.number_of[group]}"

    def columns(self, fields: Mapping[str, Any], missing: str) -> Columns:
        """Return the fields. Raise ConfigError if a file has other types, or if `missing` does not allow a null."""
        if not isinstance(fields, Mapping):
            raise ConfigError(f"data.fields={fields}: must be a mapping, such as {{x: [a, b, c], y: label}}")

        def first(name: str) -> Any:
            group = int(np.flatnonzero(self.sizes)[0])
            return self.read(group, [name]).column(0).slice(0, 1).combine_chunks()

        def classes(name: str) -> list[str]:
            found = set().union(*(self.read(g, [name]).column(0).unique().to_pylist() for g in range(len(self.sizes))))
            return sorted_classes(found, self.rows, f"data.fields: {self.where}: column {name!r}")

        made = Columns(fields, self.schema, self.where, missing, first, functools.cache(classes))
        for name, meta in zip(self.names, self._meta):
            there = arrow_schema(meta)
            for column in made.names:
                kind = self.schema.field(column).type
                if column not in there.names or there.field(column).type != kind:
                    other = there.field(column).type if column in there.names else "no such column"
                    raise ConfigError(f"data.path: column {column!r} is {kind} in {self.names[0]}, {other} in {name}")
        for column, lacking in self._statistics(made.names, "null_count", sum).items():
            is_float = "float" in str(self.schema.field(column).type) or "double" in str(self.schema.field(column).type)
            if lacking and not (is_float and missing == "nan"):
                raise ConfigError(f"data.fields: {self.where}: column {column!r}: {missing_values(lacking, is_float)}")
        return made

    def extremes(self, name: str) -> tuple[int, int]:
        """Return the smallest and the largest value of a column of integers."""
        low, high = (self._statistics([name], what, how) for what, how in (("min", min), ("max", max)))
        if name in low and name in high:
            return int(low[name]), int(high[name])
        return extremes_of(flattened(self.read(group, [name]).column(0)) for group in range(len(self.sizes)))

    def whole_column(self, name: str, key: str) -> np.ndarray:
        """Return a column of numbers or strings, (rows,)."""
        if name not in self.schema.names:
            raise ConfigError(f"{key}={name}: {self.where} has no such column; it has {self.schema.names}")
        parts = [self.read(group, [name]).column(0) for group in range(len(self.sizes))]
        return joined_values(parts, f"{key}={name}: {self.where}")

    def _statistics(self, names: Sequence[str], what: str, reduce: Any) -> dict[str, Any]:
        """Return {column: statistic, reduced over row groups}, for the columns that have it in all row groups."""
        found: dict[str, list[Any]] = {name: [] for name in names}
        for meta in self._meta:
            # by position, not by path: a column of lists has the path NAME.list.element, and a name may contain dots
            of = [field.name for field in meta.schema.to_arrow_schema() for _ in range(leaves(field.type))]
            if len(of) != len(meta.schema):
                return {}
            for j, name in enumerate(of):
                for g in range(meta.num_row_groups if name in found else 0):
                    known = meta.row_group(g).column(j).statistics
                    there = known is not None and (known.has_null_count if what == "null_count" else known.has_min_max)
                    found[name].append(getattr(known, what) if there else None)
        return {name: reduce(values) for name, values in found.items() if values and None not in values}

    def read(self, group: int, columns: Sequence[str]) -> Any:
        """Return these columns of a row group as an arrow table. Raise RunFailed if the file has changed."""
        import pyarrow.parquet as pq

        k = int(self.file_of[group])
        name = self.names[k]
        for attempt in range(TRIES):
            try:
                if stamp(name) != self._stamps[k]:
                    raise RunFailed(f"data: {name} has changed since it was opened - start again")
                with (
                    opened(name) as file,
                    pq.ParquetFile(
                        file, metadata=self._meta[k], pre_buffer=is_remote(name), page_checksum_verification=True
                    ) as parquet,
                ):
                    number = int(self.number_of[group])
                    return without_views(parquet.read_row_group(number, columns=list(columns), use_threads=False))
            except (RunFailed, ConfigError):
                raise
            except Exception as error:
                if attempt == TRIES - 1 or not is_remote(name):
                    raise RunFailed(f"data: {self.name_of(group)} cannot be read: {_line(error)}") from None
        raise AssertionError


def arrow_schema(meta: Any) -> Any:
    """Return the arrow schema of the tables that `Files.read` returns. meta: a file's metadata."""
    return without_views(meta.schema.to_arrow_schema().empty_table()).schema


def without_views(table: Any) -> Any:
    """Return an arrow table with large strings in place of string views, for which pyarrow lacks some functions."""
    import pyarrow as pa

    for k, field in enumerate(table.schema):
        if str(field.type) == "string_view":
            kind = pa.large_string()
            table = table.set_column(k, field.with_type(kind), table.column(k).cast(kind))
    return table


def open_files(path: str | Sequence[str]) -> Files:
    """Return the row groups of a path. Files that have not changed are opened once per process."""
    given = [path] if isinstance(path, str) else list(path)
    names = [name for entry in given for name in listed(str(entry))]
    if twice := [name for name in set(names) if names.count(name) > 1]:
        raise ConfigError(f"data.path: {sorted(twice)[0]} is named twice - each file's rows would be in the set twice")
    return _open(tuple(names), ", ".join(map(str, given)), tuple(map(stamp, names)))


@functools.lru_cache(maxsize=4)  # called for each split, input_shape and num_outputs
def _open(names: tuple[str, ...], where: str, stamps: tuple[Any, ...]) -> Files:
    return Files(list(names), where)


def listed(path: str) -> list[str]:
    """Return the Parquet files of a folder, without HIDDEN ones, a pattern, a file or a URL of one of these, sorted."""
    if is_remote(path):
        system, inner = _system(path)
        try:
            if any(c in inner for c in "*?["):
                found = system.glob(inner)
            else:
                below = [inner] if inner.endswith(".parquet") else system.find(inner)
                found = [name for name in below if not HIDDEN.search(f"/{name.removeprefix(inner)}")]
        except Exception as error:
            raise ConfigError(f"data.path={path}: cannot be listed: {_line(error)}") from None
        found = [system.unstrip_protocol(name) for name in found]
    elif Path(path).is_dir():
        found = [str(file) for file in Path(path).rglob("*.parquet") if not HIDDEN.search(f"/{file.relative_to(path)}")]
    else:
        found = [path] if Path(path).is_file() else glob(path, recursive=True)
    if not (found := sorted(name for name in found if name.endswith(".parquet") or name == path)):
        raise ConfigError(f"data.path={path}: no Parquet file found (the current directory is {Path.cwd()})")
    return found


def missing_shards(names: Sequence[str]) -> list[str]:
    """Return a line for each set of files, named train-00000-of-00005.parquet and so on, that is not whole."""
    found: dict[tuple[str, str], set[int]] = {}
    for name in names:
        if shard := re.match(r"(.*\D)(\d+)-of-(\d+)(?!\d)", name):
            found.setdefault((shard[1], shard[3]), set()).add(int(shard[2]))
    first = {key: next((k for k in range(int(key[1])) if k not in numbers), None) for key, numbers in found.items()}
    return [
        f"{begin}*-of-{total}: has {len(found[begin, total]):,} of {int(total):,} shards, without number {number}"
        for (begin, total), number in first.items()
        if number is not None
    ]


def is_remote(name: str) -> bool:
    """Return True for a URL."""
    return "://" in name


def stamp(name: str) -> tuple[Any, ...]:
    """Return inode, size and time of a local file, which change if it is replaced; () for a remote file."""
    if is_remote(name):
        return ()
    found = os.stat(name)
    return found.st_ino, found.st_size, found.st_mtime_ns


def opened(name: str) -> Any:
    """Return a file for reading bytes."""
    if not is_remote(name):
        return open(name, "rb")
    system, inner = _system(name)
    return system.open(inner, "rb")


def _system(url: str) -> tuple[Any, str]:
    """Return (the file system of a URL, the path in it)."""
    fsspec = need("fsspec.core", f"data.path={url}", "fsspec", "remote")
    try:
        return fsspec.url_to_fs(url)  # type: ignore[no-any-return]
    except ImportError as error:
        package = {"s3": "s3fs", "http": "aiohttp requests", "https": "aiohttp requests"}.get(url.partition("://")[0])
        remedy = f" - {pip_install(package)}" if package else ""
        raise ConfigError(f"data.path={url}: {_line(error)}{remedy}") from None
    except ValueError as error:  # an unknown protocol
        raise ConfigError(f"data.path={url}: {_line(error)}") from None


def _line(error: BaseException) -> str:
    return " ".join(str(error).split())[:300] or type(error).__name__
