"""Samples in memory, or from a generator, as a source of the writer.

The samples are iterated once, and only one is in memory at a time: their values are spooled to unnamed temporary files,
from which rows are read by number. The operating system removes these files when the process ends.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, printable
from h5rows.importers.values import TEXT, to_numpy
from h5rows.packing.file import written
from h5rows.packing.plan import bad_text, is_name
from h5rows.reading.fields import is_readable
from h5rows.source import Bad, Field, Rows, Source

BUFFER = 1 << 20  # bytes of a field to write to its file at a time
GIVE = "give an array or a tensor of numbers, a number, or a str"
ALIKE = "use the same type in all samples"
NUMBERS = (np.ndarray, np.generic, bool, int, float, complex, list, tuple)
Samples = Iterable[Mapping[str, Any]]


class SpooledSource(Source):
    """Samples of all splits. variable: fields that may vary in the first dimension. folder: for the temporary files."""

    origin = "samples"

    def __init__(self, samples: Samples | Mapping[str, Samples], variable: Sequence[str], folder: Path) -> None:
        self.fields, self.splits = {}, {}
        self._variable, self._folder, self._size = tuple(variable), folder, 0
        self._columns: dict[str, Column] = {}
        self._widened: set[str] = set()  # types that NumPy does not have
        for split, own in splits_of(samples).items():
            begin, at = self._size, f" of {split}" * bool(split)
            for number, sample in enumerate(own):
                self._add(sample, f"sample {number}{at}")
            if self._size == begin:
                raise ConfigError(f"samples: no samples{at}")
            self.splits[split] = range(begin, self._size)
        for column in self._columns.values():
            column.finish()
        self.account.notes += [f"{kind} becomes float32, which has the same values" for kind in sorted(self._widened)]

    def _add(self, sample: Mapping[str, Any], name: str) -> None:
        if not isinstance(sample, Mapping):
            what = f"{name} is a {type(sample).__name__}"
            raise ConfigError(f"{what}; give dicts of fields, such as {{'x': image, 'y': label}}")
        values = {field: self._value(value, f"{name}: {field}") for field, value in sample.items()}
        if not self._columns:
            self._begin(values, sample, name)
        if values.keys() != self._columns.keys():
            here, first = sorted(map(str, values)), sorted(self._columns)
            raise ConfigError(f"{name} has the fields {here}, but the first sample has {first}; use the same in all")
        for field, value in values.items():
            if isinstance(sample[field], str) != self._columns[field].text:
                raise ConfigError(f"{name}: {field} is {said(sample[field])}, but the first sample's is not; {ALIKE}")
            self._columns[field].add(value, f"{name}: {field}")
        self._size += 1

    def _begin(self, values: Mapping[str, np.ndarray], sample: Mapping[str, Any], name: str) -> None:
        """Create the fields from the first sample, whose types and shapes all samples must have."""
        for field in values:
            if not is_name(field):
                raise ConfigError(f"{name}: a field cannot be named {field!r}; rename it")
            if below := next((other for other in values if other.startswith(f"{field}/")), None):
                raise ConfigError(f"{name}: fields cannot be named both {field!r} and {below!r}; rename one")
        if not values:
            raise ConfigError(f"{name} has no fields")
        if unknown := sorted(set(self._variable) - set(values)):
            raise ConfigError(f"variable={list(self._variable)}: {name} has no field {unknown[0]!r}")
        for field, value in values.items():
            text = isinstance(sample[field], str)
            if field in self._variable and (text or not value.ndim):
                what = "texts, which may always vary in length" if text else "single numbers"
                raise ConfigError(f"variable={list(self._variable)}: {field} has {what}; remove it")
            side = (None,) if text or field in self._variable else value.shape[:1]
            self.fields[field] = Field((*side, *value.shape[1:]), value.dtype, TEXT if text else {})
            self._columns[field] = Column(self.fields[field], self._folder)

    def _value(self, value: Any, where: str) -> np.ndarray:
        if isinstance(value, str):
            if bad_text(value):
                raise ConfigError(f"{where} is a text that HDF5 cannot store: {printable(value)[:60]!r}")
            return np.frombuffer(value.encode(), np.uint8)
        if hasattr(value, "detach"):
            try:
                found = to_numpy(value if value.is_meta else value.cpu())
            except ValueError as error:
                raise ConfigError(f"{where} {error}") from None
            self._widened |= {str(value.dtype).removeprefix("torch.")} - {found.dtype.name}
            return found
        if not isinstance(value, NUMBERS) or isinstance(value, np.ma.MaskedArray):
            raise ConfigError(f"{where} is a {type(value).__name__}; {GIVE}")
        try:
            found = np.asarray(value)
        except ValueError as error:  # lists of different length
            raise ConfigError(f"{where} is not an array: {error}") from None
        if isinstance(value, int) and found.dtype == object:
            raise ConfigError(f"{where} is {value}, too large for int64 and uint64; give a float or a str")
        if not is_readable(found.dtype) or found.dtype.kind == "S" or found.dtype.subdtype:
            raise ConfigError(f"{where} is {said(value)}; {GIVE}")
        return found.astype(found.dtype.newbyteorder("="), copy=False)

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        """Return the values of these rows; all can be read."""
        return {field: self._columns[field].read(np.asarray(rows)) for field in fields}, []

    def measure(self, rows: Rows, name: str) -> np.ndarray:
        """Return the shapes of a variable field in these rows, (rows, dims)."""
        return self._columns[name].shapes(np.asarray(rows))


def said(value: Any) -> str:
    """Return the type of a value as text, for messages."""
    if isinstance(value, str):
        return "a text"
    kind = getattr(value, "dtype", None)
    return f"a {type(value).__name__}" + f" of {kind}" * (kind is not None)


def splits_of(samples: Any) -> dict[str, Samples]:
    """Return {split: samples}; one split "" if `samples` has no splits. Raise ConfigError for other types."""
    if isinstance(samples, (str, os.PathLike)):
        raise ConfigError(f"samples={os.fspath(samples)!r}: is a path; to read files, use h5rows.pack")
    splits = dict(samples) if isinstance(samples, Mapping) else {"": samples}
    for split, own in splits.items():
        if isinstance(samples, Mapping) and (not is_name(split) or "/" in split):
            raise ConfigError(f"samples: {split!r} is not a valid name of a split, such as 'train'")
        by_number = hasattr(own, "__getitem__") and hasattr(own, "__len__")
        if by_number and not hasattr(own, "__iter__"):  # a map-style Dataset of PyTorch
            splits[split] = (own[row] for row in range(len(own)))
        elif not isinstance(own, Iterable) or isinstance(own, (str, bytes, Mapping)):
            what = f"samples{f'[{split!r}]' if split else ''} is a {type(own).__name__}"
            raise ConfigError(f"{what}; give an iterable of dicts, or a dict of them by split")
    if not splits:
        raise ConfigError("samples: is an empty dict; give an iterable of dicts, or a dict of them by split")
    return splits


class Column:
    """The values of one field, concatenated in an unnamed temporary file."""

    def __init__(self, field: Field, folder: Path) -> None:
        self.field, self.text, self._folder = field, bool(field.attrs), folder
        with written(folder):
            self._file = tempfile.TemporaryFile(dir=folder)  # noqa: SIM115 - open until this is deleted
        self._pending: list[bytes] = []
        self._bytes = 0
        self._lengths: list[int] | None = [] if field.ragged else None
        self._values, self._starts = np.empty(0, field.dtype), np.zeros(1, np.int64)

    def add(self, value: np.ndarray, where: str) -> None:
        """Append a value. Raise ConfigError if its type or shape differs from the first sample's."""
        want = self.field
        if value.dtype != want.dtype:
            raise ConfigError(f"{where} is {value.dtype}, but the first sample's is {want.dtype}; {ALIKE}")
        inner = want.shape[1:] if want.ragged else want.shape
        if value.ndim != len(want.shape) or (value.shape[1:] if want.ragged else value.shape) != inner:
            first = tuple("any" if side is None else side for side in want.shape)
            how = "pad them, or add the field to variable= if only the first dimension varies"
            raise ConfigError(f"{where} has shape {value.shape}, but the first sample's is {first}; {how}")
        if self._lengths is not None:
            self._lengths.append(len(value))
        self._pending.append(value.tobytes())
        self._bytes += value.nbytes
        if self._bytes >= BUFFER:
            self._flush()

    def _flush(self) -> None:
        with written(self._folder):
            self._file.write(b"".join(self._pending))
            self._file.flush()
        self._pending, self._bytes = [], 0

    def finish(self) -> None:
        """Flush the file. Afterwards rows can be read."""
        self._flush()
        inner = [side for side in self.field.shape if side is not None]
        if os.fstat(self._file.fileno()).st_size:
            self._values = np.memmap(self._file, self.field.dtype, "r").reshape(-1, *inner)
        if self._lengths is not None:
            self._starts = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)])

    def read(self, rows: np.ndarray) -> Any:
        """Return the values of these rows: an array (B, ...), or a list of arrays for a variable field."""
        if self._lengths is None:
            shape: Any = (len(rows), *self.field.shape)
            return np.asarray(self._values[rows]) if len(self._values) else np.empty(shape, self.field.dtype)
        inner: Any = self.field.shape[1:]
        bounds = zip(self._starts[rows].tolist(), self._starts[rows + 1].tolist(), strict=True)
        return [self._values[begin:end].reshape(end - begin, *inner) for begin, end in bounds]

    def shapes(self, rows: np.ndarray) -> np.ndarray:
        """Return the shapes of samples of a variable field, (B, dims) int64."""
        lengths = np.diff(self._starts)[rows]
        inner = np.broadcast_to(np.array(self.field.shape[1:], np.int64), (len(rows), len(self.field.shape) - 1))
        return np.concatenate([lengths[:, None], inner], axis=1)
