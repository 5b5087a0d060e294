"""The interface between importers and the writer: named fields, splits, and rows by number."""

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
    """The type of a field. shape: of one sample; None for an axis whose size differs between samples (stored flat, with
    offsets). dtype: of the stored values. attrs: attributes of the dataset."""

    shape: tuple[int | None, ...]
    dtype: np.dtype
    attrs: Mapping[str, Any] = field(default_factory=dict)

    @property
    def ragged(self) -> bool:
        """Return True if the shape differs between samples."""
        return None in self.shape

    @property
    def unit(self) -> tuple[int, ...]:
        """Return the shape of one element that a ragged field's offsets count: for (None, 3) rows of 3, for (3, None,
        None) single numbers."""
        rest = self.shape[1:]
        return rest if self.shape[0] is None and None not in rest and 0 not in rest else ()  # type: ignore[return-value]

    @property
    def row_bytes(self) -> int:
        """Return the bytes of one sample. Not defined for a ragged field."""
        return int(np.prod([side or 0 for side in self.shape], dtype=np.int64)) * self.dtype.itemsize


@dataclass(frozen=True)
class Bad:
    """A sample that cannot be read: its position in the requested rows, its name, and the reason."""

    place: int
    name: str
    reason: str


class BadSample(Exception):
    """Raised for a sample that cannot be read. name: of the sample."""

    def __init__(self, name: object, reason: object) -> None:
        super().__init__(f"{name}: {reason}")
        self.name, self.reason = str(name), str(reason)


def bad(name: object, error: BaseException, reason: object) -> Exception:
    """Return the exception for a sample that cannot be read.

    If the machine failed to read it, this is a ConfigError, because the sample must not be skipped as damaged;
    otherwise a BadSample.
    """
    why = machine_fault(error)
    return ConfigError(f"{name} cannot be read: {why}") if why else BadSample(name, reason)


@contextlib.contextmanager
def one_line(what: object) -> Iterator[None]:
    """Convert every exception of a format's library to a ConfigError of one line. what: the source, for the message."""
    try:
        yield
    except BrokenPipeError:
        raise
    except BadSample as error:  # this is the whole source, not one of several samples
        raise ConfigError(on_one_line(f"{error.name} {error.reason}")) from None
    except ConfigError as error:
        if str(error).isprintable():
            raise
        raise ConfigError(on_one_line(error)) from error  # the message quotes a library or the file
    except Exception as error:
        why = machine_fault(error) or next(iter(str(error).splitlines()), "")
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            why = f"no space for temporary files in {tempfile.gettempdir()}; free some, or set TMPDIR to another folder"
        raise ConfigError(printable(f"{what} cannot be read: {type(error).__name__}: {why}")) from error


def ranges(sizes: Mapping[str, int]) -> dict[str, Rows]:
    """Return split -> range of rows, for splits that follow each other. sizes: split -> number of rows."""
    ends = accumulate(sizes.values())
    return {split: range(end - size, end) for (split, size), end in zip(sizes.items(), ends)}


class Source:
    """Rows by number. Picklable if `processes` is true, so file handles are opened where they are used.

    fields: name -> Field. splits: name -> the source's rows; the name is "" if the source has no splits. group_attrs:
    path of a group in the file ("" is the root) -> attributes. field_attrs: (split, field) -> attributes that the field
    has only in this split.

    processes: read in processes, because reading is Python work; otherwise in threads. ordered: the rows are a stream
    (tokens): shares are cut off its end and never drawn at random. slow_random: reading rows out of order decodes whole
    blocks for single rows.
    """

    fields: dict[str, Field]
    splits: dict[str, Rows]
    origin: object = "the source"  # path of the source
    group_attrs: Mapping[str, Mapping[str, Any]] = {}
    field_attrs: Mapping[tuple[str, str], Mapping[str, Any]] = {}
    processes = False
    ordered = False
    slow_random = False

    @cached_property
    def account(self) -> Account:
        """Return the counts of things that the source contains and leaves out."""
        return Account()

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """Read the readable rows of `rows`.

        Return (field -> array (B, *shape), or a list of B arrays for a ragged field; the rows that cannot be read).
        """
        raise NotImplementedError

    def measure(self, rows: Rows, name: str) -> np.ndarray:
        """Return the shapes of a ragged field's samples, (B, dims) int64; zeros if a sample cannot be read."""
        values, bad = self.read(rows, [name])
        shapes = np.zeros((len(rows), len(self.fields[name].shape)), np.int64)
        keep = np.ones(len(rows), bool)
        keep[[b.place for b in bad]] = False
        if len(values[name]):
            shapes[keep] = [v.shape for v in values[name]]
        return shapes


def first_readable(size: int, read: Callable[[int], T], where: object) -> T:
    """Return the result of `read` for the first sample that can be read, out of at most 100; all samples must be like
    it.

    size: number of samples. where: the source, for the message. Raise ConfigError if none of them can be read. Samples
    that fail here are not reported, because the pack reports them.
    """
    last: BadSample | None = None
    for row in range(min(size, 100)):
        try:
            return read(row)
        except BadSample as error:
            last = error
    why = f"none of the first samples can be read; the last: {last}" if last else "it contains no samples"
    raise ConfigError(f"{where}: {why}")


class SampleSource(Source):
    """A source that is read one sample at a time."""

    processes = True
    remedy = "; variable=True keeps their shapes"  # end of the error about a sample of another shape

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Return field -> value for one row. Raise BadSample if it cannot be read."""
        raise NotImplementedError

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """Read the rows one after the other."""
        return self.collect(rows, fields, lambda place: self.sample(int(rows[place]), fields))

    def collect(
        self, rows: Rows, fields: Sequence[str], sample: Callable[[int], dict[str, Any]]
    ) -> tuple[dict[str, Any], list[Bad]]:
        """Return the result of `read`, one sample after the other. sample: position in `rows` -> field -> value."""
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
        """Return the name of a sample for messages."""
        return f"sample {row}"

    def _check(self, row: int, values: dict[str, Any]) -> None:
        """Raise ConfigError if a sample's shape or type differs from the field's.

        NumPy would broadcast or round silently. Such a sample is never skipped, because it is not damaged.
        """
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
                raise ConfigError(f"field {name}: {self.name_of(row)} is {got.dtype}, {first}; save all as one type")


class ArraySource(Source):
    """Splits that are arrays already: split -> field -> any object with shape, dtype and indexing by a slice or an
    index array."""

    def __init__(
        self,
        tables: Mapping[str, Mapping[str, Any]],
        attrs: Mapping[str, Mapping[str, Any]] | None = None,
        account: Account | None = None,
        origin: object = "the source",
    ) -> None:
        self._tables, self.fields, self.origin = tables, {}, origin
        self.account = account or Account()
        for split, table in tables.items():
            where = f"{origin}: the fields{f' of split {split}' * bool(split)}"
            sizes = {name: len(array) for name, array in table.items()}
            if len(set(sizes.values())) > 1:
                some = [*[f"{name} {size:,}" for name, size in sizes.items()][:5], *["..."] * (len(sizes) > 5)]
                what = f"{where} differ in their number of rows: {', '.join(some)}"
                raise ConfigError(f"{what}; choose some with fields=, or format='samples' if each file is a sample")
            types = {name: (tuple(array.shape[1:]), np.dtype(array.dtype)) for name, array in table.items()}
            known = {name: (f.shape, f.dtype) for name, f in self.fields.items()}
            if known and types != known:
                name = next(n for n in {**known, **types} if known.get(n) != types.get(n))
                here, before = ("rows of {} {}".format(*t[name]) if name in t else "none" for t in (types, known))
                what = f"{where} differ from those of another split: {name!r} has {here} here, and {before} there"
                raise ConfigError(f"{what}; save all splits alike")
            self.fields = {name: Field(*types[name], (attrs or {}).get(name, {})) for name in table}
        self.splits = ranges({split: len(next(iter(table.values()), ())) for split, table in tables.items()})

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """Read rows of one split."""
        split = next(name for name, own in self.splits.items() if int(rows[0]) in own)
        where: Any = np.asarray(rows) - self.splits[split][0]
        if isinstance(rows, range) or (np.diff(where) == 1).all():
            where = slice(int(where[0]), int(where[-1]) + 1)
        return {f: np.asarray(self._tables[split][f][where]) for f in fields}, []


def select(source: Source, wanted: Mapping[str, str], path: object) -> dict[str, str]:
    """Return field in the source -> name in the file.

    wanted: such a mapping; empty selects all fields under their own names. path: the source, for messages. Raise
    ConfigError if a field does not exist or two fields get the same name.
    """
    if unknown := sorted(set(wanted) - set(source.fields)):
        raise ConfigError(f"fields=: {path} has no field {unknown[0]!r}; it has {sorted(source.fields)}")
    names = dict(wanted) or {name: name for name in source.fields}
    if not names:
        raise ConfigError(f"{path} contains no fields")
    if len(set(names.values())) < len(names):
        what = f"fields=: two fields have the same name in the file: {names}"
        raise ConfigError(f"{what}; to combine columns of a table in one field, write fields={{'a,b': 'x'}}")
    return names
