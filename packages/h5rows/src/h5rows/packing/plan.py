"""Plan which rows of the source go where: splits, shares, order, shard, and the blocks for the workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import Any

import h5py
import numpy as np
from tqdm import tqdm

from h5rows.errors import ConfigError, clean, printable
from h5rows.options import PackOptions
from h5rows.packing.file import Column
from h5rows.packing.pool import measure_rows
from h5rows.reading.fields import is_readable
from h5rows.source import Field, Rows, Source, select

BLOCK_BYTES = 4 << 20  # written by a worker at a time; limits its memory
MOST_DIMENSIONS = 32  # of a dataset in HDF5, rows included
PROCESS_ROWS = 512  # most rows per block if reading runs Python code: progress is visible and workers end together


@dataclass
class Part:
    """A group of the file. rows: of the source, in written order. paths: field in the source -> path in the file."""

    rows: Rows
    paths: dict[str, str]
    shapes: dict[str, np.ndarray] = field(default_factory=dict)  # of ragged fields: (rows, dims), measured
    attrs: dict[str, Mapping[str, Any]] = field(default_factory=dict)  # of fields, in this part only

    def elements(self, name: str) -> np.ndarray:
        """Return the begin of each sample of a ragged field in its flat values, (rows + 1,) int64."""
        lengths = self.shapes[name].prod(axis=1)
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths, dtype=np.int64)])


@dataclass(frozen=True)
class Block:
    """Rows begin to end - 1 of a part, written by one worker. places: field -> (dataset, first byte in it)."""

    part: Part
    begin: int
    end: int
    places: dict[str, tuple[str, int]]


def split_rows(source: Source, options: PackOptions) -> dict[str, Rows]:
    """Return {split: rows in written order}: the splits of the source and of options.split, cut to this shard."""
    splits = dict(source.splits)
    if options.split:
        splits = take_shares(splits, options, source.ordered)
    if options.shuffle:
        if source.ordered:
            raise ConfigError("shuffle=True: would destroy the order of tokens, which is the text; remove it")
        if source.slow_random:
            raise ConfigError(
                "shuffle=True: this format is slow to read in random order; remove it, and shuffle during training"
            )
        splits = {
            name: np.random.default_rng([options.seed, k + 1]).permutation(np.asarray(rows))
            for k, (name, rows) in enumerate(splits.items())
        }
    i, n = options.shard
    return {name: rows[len(rows) * i // n : len(rows) * (i + 1) // n] for name, rows in splits.items()}


def take_shares(splits: dict[str, Rows], options: PackOptions, ordered: bool) -> dict[str, Rows]:
    """Return the splits with shares of train moved to the splits of options.split."""
    whole = "" if "" in splits else "train"
    if whole not in splits:
        raise ConfigError(f"split= takes shares of the split train, which is missing; the source has {sorted(splits)}")
    for name in options.split:
        if not is_name(name) or "/" in name:
            raise ConfigError(f"split={name!r}: is not a valid name of a split, such as 'val'")
        if name in splits or name == "train":
            raise ConfigError(f"split={name!r}: is already in the source ({sorted(splits) if whole else 'train'})")
    if not 0 < sum(options.split.values()) < 1 or min(options.split.values()) <= 0:
        raise ConfigError(f"split={dict(options.split)}: each share must be > 0, and their sum < 1")
    rows = splits.pop(whole)
    counts = {name: round(len(rows) * share) for name, share in options.split.items()}
    if 0 in counts.values() or sum(counts.values()) >= len(rows):
        raise ConfigError(f"split={dict(options.split)} of {len(rows)} rows leaves a split empty")
    left = len(rows) - sum(counts.values())
    drawn: Rows = rows if ordered else np.random.default_rng([options.seed, 0]).permutation(np.asarray(rows))
    shares: dict[str, Rows] = {"train": drawn[:left]}
    for name, count in counts.items():
        shares[name] = drawn[left : left + count]
        left += count
    if not ordered:  # chosen at random, but in the order of the source, which is faster to read
        shares = {name: np.sort(part) for name, part in shares.items()}
    return shares | splits


def plan_parts(source: Source, options: PackOptions) -> list[Part]:
    """Return one part per split, with the fields of options.fields. Raise ConfigError if HDF5 cannot store a field."""
    names = select(source, options.fields, source.origin)
    check_storable(source, names)
    parts = []
    for split, rows in split_rows(source, options).items():
        origin = split if split in source.splits else "" if "" in source.splits else "train"
        attrs = {name: source.field_attrs.get((origin, name), {}) for name in names}
        parts.append(Part(rows, {n: f"{split}/{new}" if split else new for n, new in names.items()}, attrs=attrs))
    return parts


def place_groups(source: Source, parts: list[Part], own: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return {path in the file: attributes of this group}. own: root attributes of the file; their names are taken."""
    paths = [path for part in parts for path in part.paths.values()]
    splits = {"", *(path.partition("/")[0] for path in paths)}
    placed: dict[str, dict[str, Any]] = {}
    for group, attrs in source.group_attrs.items():
        if not group:
            placed[""] = {f"source_{name}" if name in own else name: value for name, value in attrs.items()}
            continue
        there = [f"{split}/{group}".strip("/") for split in splits]
        there = [path for path in there if any(other.startswith(f"{path}/") for other in paths)]
        placed |= {path: dict(attrs) for path in there}
        if not there:
            for name in attrs:
                source.account.leave("attributes", f"{group}: {name}", "the file does not have this group")
    return placed


def check_storable(source: Source, names: Mapping[str, str]) -> None:
    """Raise ConfigError if HDF5 cannot store a field with its type and name."""
    where = printable(source.origin)
    groups = {new[:end] for new in names.values() for end, sign in enumerate(new) if sign == "/"}
    for name, new in names.items():
        what = source.fields[name]
        if not is_name(new):
            remedy = "fields={'NAME': 'OTHER'} renames it" if name else "fields= can exclude it, such as pandas' index"
            raise ConfigError(f"{where}: a field cannot be named {new!r}; {remedy}")
        if new in groups:
            beside = next(n for n in names.values() if n.startswith(f"{new}/"))
            raise ConfigError(
                f"field {new!r} and {beside!r} cannot both be in a file; fields={{{new!r}: 'OTHER'}} renames one"
            )
        if len(what.shape) >= MOST_DIMENSIONS:
            dimensions = f"field {name!r} has {len(what.shape) + 1} dimensions, but HDF5 has at most {MOST_DIMENSIONS}"
            raise ConfigError(f"{where}: {dimensions}; reshape it, or leave the field out (fields=)")
        if column := next(filter(bad_text, what.dtype.names or ()), None):
            raise ConfigError(f"{where}: field {name!r}: a column cannot be named {column!r}; rename it")
        try:
            members = [what.dtype[n] for n in what.dtype.names] if what.dtype.names else [what.dtype]
            plain = any(map(is_readable, members)) and not what.dtype.hasobject
            h5py.h5t.py_create(what.dtype, logical=True)
        except (TypeError, ValueError):  # ValueError: bytes of no length, as tensorstore has for zarr's strings
            plain = False
        if not plain:
            problem = f"{where}: field {name!r} is of type {what.dtype}, but only numbers can be stored"
            kinds = {"V": "save bfloat16 as float32", "f": "save it as float64", "c": "save it as complex128"}
            remedy = kinds.get(what.dtype.kind, "encode strings and times as numbers")
            raise ConfigError(f"{problem}: {remedy}, or leave the field out (fields=)")
        for key, value in what.attrs.items():
            if wrong := next((v for v in value if bad_text(v)), None) if isinstance(value, list) else None:
                raise ConfigError(f"{where}: {key} of field {name!r}: HDF5 cannot store the name {wrong!r}; rename it")


def is_name(text: object) -> bool:
    """Return True for a str that can be the path of a dataset or group in HDF5."""
    return isinstance(text, str) and not bad_text(text) and all(part.strip(".") for part in text.split("/"))


def bad_text(text: object) -> bool:
    """Return True for a str that HDF5 cannot store: with NUL, or not valid Unicode."""
    return isinstance(text, str) and ("\0" in text or printable(text) != text)


def columns(part: Part, fields: Mapping[str, Field]) -> list[Column]:
    """Return the datasets of a part."""
    rows, made = len(part.rows), []
    for name, path in part.paths.items():
        what = fields[name]
        attrs = {**what.attrs, **part.attrs.get(name, {})}
        if not what.ragged:
            made.append(Column(path, (rows, *what.shape), what.dtype, attrs))  # type: ignore[arg-type]
            continue
        total = int(part.elements(name)[-1]) // math.prod(what.unit)
        made.append(Column(f"{path}/values", (total, *what.unit), what.dtype, attrs))
        made.append(Column(f"{path}/offsets", (rows + 1,), np.dtype(np.int64)))
        if len(what.unit) + 1 < len(what.shape):  # more than one dimension varies
            made.append(Column(f"{path}/shapes", (rows, len(what.shape)), np.dtype(np.int64)))
    return made


def cut_blocks(parts: list[Part], source: Source) -> list[Block]:
    """Return the blocks of all parts, in written order."""
    blocks = []
    for part in parts:
        rows, fields = len(part.rows), {name: source.fields[name] for name in part.paths}
        starts = {name: part.elements(name) for name, what in fields.items() if what.ragged}
        row_bytes = sum(what.row_bytes for what in fields.values() if not what.ragged)
        row_bytes += sum(int(s[-1]) * fields[name].dtype.itemsize for name, s in starts.items()) // max(1, rows)
        step = max(1, BLOCK_BYTES // max(1, row_bytes))
        step = min(step, PROCESS_ROWS) if source.processes else step
        for begin in range(0, rows, step):
            places = {
                name: (f"{path}/values", int(starts[name][begin]) * fields[name].dtype.itemsize)
                if name in starts
                else (path, begin * fields[name].row_bytes)
                for name, path in part.paths.items()
            }
            blocks.append(Block(part, begin, min(begin + step, rows), places))
    return blocks


def measure(parts: list[Part], source: Source, pool: Executor, quiet: bool) -> None:
    """Set the shapes of ragged fields. The workers measure them, because this may open a file per sample."""
    for part in parts:
        for name in part.paths:
            if source.fields[name].ragged:
                pieces = [part.rows[b : b + PROCESS_ROWS] for b in range(0, len(part.rows), PROCESS_ROWS)]
                each = pool.map(measure_rows, pieces, [name] * len(pieces))
                found = list(
                    tqdm(each, desc=f"measure {clean(name)}", total=len(pieces), unit=" blocks", disable=quiet)
                )
                none = np.zeros((0, len(source.fields[name].shape)), np.int64)
                part.shapes[name] = np.concatenate([none, *found])
