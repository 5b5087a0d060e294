"""What an importer gives to the writer: named fields, splits, and rows by number."""

from __future__ import annotations

import contextlib
import errno
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate
from typing import Any, TypeVar

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, machine_fault, on_one_line, printable

T = TypeVar("T")
Rows = np.ndarray | range
SPLIT_NAMES = {"train": "train", "val": "val", "valid": "val", "validation": "val", "test": "test"}


@dataclass(frozen=True)
class Field:
    """shape: of one sample; None marks a side that differs between samples (stored flat, with offsets)."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> bool:
        return None in self.shape

    @property
    def unit(self) -> tuple[int, ...]:
        """The shape of what a ragged field's offsets count: for (None, 3) rows of 3, for (3, None, None) numbers."""
        rest = self.shape[1:]
        return rest if self.shape[0] is None and None not in rest and 0 not in rest else ()  # type: ignore[return-value]

    @property
    def row_bytes(self) -> int:
        """Of one sample; not of a ragged field."""
        return int(np.prod([side or 0 for side in self.shape], dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be read: its place in the rows asked for, its name, and why."""

    place: int
    name: str
    reason: str


class BadSample(Exception):
    def __init__(self, name: object, reason: object) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = str(name), str(reason)


def bad(name: object, error: BaseException, reason: object) -> Exception:
    """A sample that cannot be read; one that the machine failed to read is not to be left out as a bad one."""
    why = machine_fault(error)
    return ConfigError(f"{name} cannot be read: {why}") if why else BadSample(name, reason)


@contextlib.contextmanager
def one_line(what: object) -> Iterator[None]:
    """Whatever a format's library raises about a source, as one line that names it."""
    try:
        yield
    except BrokenPipeError:
        raise
    except BadSample as error:  # the whole source, not one sample among others
        raise ConfigError(on_one_line(f"{error.name} {error.reason}")) from None
    except ConfigError as error:
        if str(error).isprintable():
            raise
        raise ConfigError(on_one_line(error)) from error  # it quotes a library, or the file
    except Exception as error:
        why = machine_fault(error) or next(iter(str(error).splitlines()), "")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"no room in {tempfile.gettempdir()} for temporary files; make room, or set TMPDIR to another folder"
        raise ConfigError(printable(f"{what} cannot be read: {type(error).__name__}: {why}")) from error


def ranges(sizes: Mapping[str, int]) -> dict[str, Rows]:
    """Splits one after the other."""
    ends = accumulate(sizes.values())
    return {split: range(end - size, end) for (split, size), end in zip(sizes.items(), ends)}


class Source:
    """Rows by number. Picklable where `processes` is true; handles are opened where they are used.

    fields: name -> Field. splits: name -> the source's rows, "" where the source has no splits of its own.
    group_attrs: path of a group in the file, "" of all of it -> attributes. field_attrs: (split, field) -> attributes
    that the field has in this split only.
    processes: reading is Python work, so read in processes; else in threads.
    ordered: rows are a stream (tokens): shares are cut off its end, never drawn.
    slow_random: reading rows out of order decodes whole blocks for single rows.
    """

    fields: dict[str, Field]
    splits: dict[str, Rows]
    origin: object = "the source"  # its path
    group_attrs: Mapping[str, Mapping[str, Any]] = {}
    field_attrs: Mapping[tuple[str, str], Mapping[str, Any]] = {}
    processes = False
    ordered = False
    slow_random = False

    @cached_property
    def account(self) -> Account:
        """What it holds, and what of it is not given."""
        return Account()

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """The readable ones of these rows: field -> (B, *shape) array, or a list of B arrays for a ragged field."""
        raise NotImplementedError

    def measure(self, rows: Rows, name: str) -> np.ndarray:
        """(B, dims) int64: the shapes of a ragged field's samples; zeros where the sample cannot be read."""
        values, bad = self.read(rows, [name])
        shapes = np.zeros((len(rows), len(self.fields[name].shape)), np.int64)
        keep = np.ones(len(rows), bool)
        keep[[b.place for b in bad]] = False
        if len(values[name]):
            shapes[keep] = [v.shape for v in values[name]]
        return shapes


def first_readable(size: int, read: Callable[[int], T], where: object) -> T:
    """What is read of the first sample that can be, of a hundred: it says what all are like. The pack names the bad
    ones."""
    last: BadSample | None = None
    for row in range(min(size, 100)):
        try:
            return read(row)
        except BadSample as error:
            last = error
    why = f"none of the first samples can be read; the last: {last}" if last else "it holds no samples"
    raise ConfigError(f"{where}: {why}")


class SampleSource(Source):
    """A source read one sample at a time."""

    processes = True
    remedy = ""  # for a sample of another shape

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """One value per field; raises BadSample."""
        raise NotImplementedError

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        return self.collect(rows, fields, lambda place: self.sample(int(rows[place]), fields))

    def collect(
        self, rows: Rows, fields: Sequence[str], sample: Callable[[int], dict[str, Any]]
    ) -> tuple[dict[str, Any], list[Bad]]:
        """What `read` returns, of one sample after the other. sample: by its place in these rows."""
        out: dict[str, Any] = {
            f: [] if self.fields[f].ragged else np.empty((len(rows), *self.fields[f].shape), self.fields[f].dtype)  # type: ignore[arg-type]
            for f in fields
        }
        bad, count = [], 0
        for place, row in enumerate(rows):
            try:
                values = sample(place)
                self._check(int(row), values)
            except BadSample as error:
                bad.append(Bad(place, printable(error.name), printable(error.reason)))
                continue
            for f in fields:
                if self.fields[f].ragged:
                    out[f].append(values[f])
                else:
                    out[f][count] = values[f]
            count += 1
        return {f: v[:count] for f, v in out.items()}, bad

    def name_of(self, row: int) -> str:
        return f"sample {row}"

    def _check(self, row: int, values: dict[str, Any]) -> None:
        """All are like the first; numpy would broadcast or round in silence. Never skipped: such a sample is whole."""
        for name, value in values.items():
            want = self.fields[name]
            if value.shape == want.shape and value.dtype == want.dtype:
                continue
            got = np.asarray(value)
            if len(got.shape) != len(want.shape) or any(w not in (None, g) for w, g in zip(want.shape, got.shape)):
                first = f"{self.name_of(0)} is {want.shape}"
                raise ConfigError(f"field {name}: {self.name_of(row)} is {got.shape}, {first}{self.remedy}")
            if got.dtype != want.dtype and not np.can_cast(got.dtype, want.dtype, "safe"):
                first = f"{self.name_of(0)} is {want.dtype}"
                raise ConfigError(f"field {name}: {self.name_of(row)} is {got.dtype}, {first}")


class ArraySource(Source):
    """Splits that are arrays already: split -> field -> anything with shape, dtype and [slice or index array]."""

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        account: Account | None = None,
    ) -> None:
        self._tables, self.fields = tables, {}
        self.account = account or Account()
        for split, table in tables.items():
            where = f"of split {split}" if split else "of this source"
            sizes = {name: len(array) for name, array in table.items()}
            if len(set(sizes.values())) > 1:
                what = f"the fields {where} differ in their number of rows: {shorten(sizes)}"
                raise ConfigError(f"{what}; choose some with fields=, or format='samples' if each file is a sample")
            types = {name: (tuple(array.shape[1:]), np.dtype(array.dtype)) for name, array in table.items()}
            if self.fields and types != {name: (f.shape, f.dtype) for name, f in self.fields.items()}:
                raise ConfigError(f"the fields {where} differ from another split's: {types} and {self.fields}")
            self.fields = {name: Field(*types[name], (attrs or {}).get(name, {})) for name in table}
        self.splits = ranges({split: len(next(iter(table.values()), ())) for split, table in tables.items()})

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        split = next(name for name, own in self.splits.items() if int(rows[0]) in own)
        where: Any = np.asarray(rows) - self.splits[split][0]
        if isinstance(rows, range) or (np.diff(where) == 1).all():
            where = slice(int(where[0]), int(where[-1]) + 1)
        return {f: np.asarray(self._tables[split][f][where]) for f in fields}, []


def shorten(sizes: Mapping[str, int]) -> str:
    shown = ", ".join(f"{name} {size:,}" for name, size in list(sizes.items())[:5])
    return shown + ", ..." * (len(sizes) > 5)


def select(source: Source, wanted: Mapping[str, str], path: object) -> dict[str, str]:
    """Field in the source -> name in the file."""
    if unknown := sorted(set(wanted) - set(source.fields)):
        raise ConfigError(f"fields=: {path} has no field {unknown[0]!r}; it has {sorted(source.fields)}")
    names = dict(wanted) or {name: name for name in source.fields}
    if not names:
        raise ConfigError(f"{path} holds no fields")
    if len(set(names.values())) < len(names):
        what = f"fields=: two fields would have one name in the file: {names}"
        raise ConfigError(f"{what}; columns of a table go into one field together, as fields={{'a,b': 'x'}}")
    return names
