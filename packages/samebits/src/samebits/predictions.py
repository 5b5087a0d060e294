"""Write arrays of predictions, one row per sample, from several ranks to one file, in the order of the samples.

Each rank appends its batches to a `Part`; `assemble` merges the parts to .h5, .npz or .parquet. data=h5 can read the
.h5 file: contiguous datasets, one row per sample.
"""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from samebits.errors import ConfigError, RunFailed
from samebits.extras import check_installed

FORMATS = (".h5", ".hdf5", ".npz", ".parquet")
ROW = "row"  # (N,) int64: the sample's row in the split
Spec = dict[str, tuple[tuple[int, ...], str]]  # {field: (shape, dtype)}
BLOCK = 1 << 24  # bytes of the largest field per merged block
RESERVE = 1 << 23  # bytes that HDF5 may write later: its chunk caches and metadata


class Part:
    """The predictions of one rank, in a separate file."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with _written(path):
            _check_space(path, np.zeros(0))
            self._file = h5py.File(path, "w", locking=False)  # some file systems have no locks

    def append(self, rows: np.ndarray, fields: Mapping[str, Any]) -> None:
        """Append a batch. rows: (B,) int64. fields: {name: array (B, ...) or list of B
        texts}.

        Raise ConfigError if the shapes do not match.
        """
        for name, values in {ROW: rows, **fields}.items():
            array = np.asarray(values, dtype=object) if isinstance(values, list) else np.asarray(values)
            if array.ndim == 0 or len(array) != len(rows):
                raise ConfigError(
                    f"{name}: has the shape {array.shape} for {len(rows)} samples; the first dimension must be the "
                    "samples"
                )
            if name not in self._file:
                kind: Any = h5py.string_dtype() if array.dtype == object else array.dtype
                shape = array.shape[1:]
                self._file.create_dataset(name, (0, *shape), kind, maxshape=(None, *shape))
            held = self._file[name]
            if held.shape[1:] != array.shape[1:]:
                raise ConfigError(
                    f"{name}: has the shape {array.shape[1:]} per sample, but {held.shape[1:]} before; all samples "
                    "must have the same shape - leave a field out of --fields, or pad an output to one shape"
                )
            size = len(held)
            with _written(self._path):
                _check_space(self._path, array)
                held.resize(size + len(array), axis=0)
                held[size:] = array

    def close(self) -> None:
        """Close the file."""
        with _written(self._path):
            self._file.close()


@contextmanager
def _written(part: Path) -> Iterator[None]:
    """Turn an OSError, such as a full disk, into a RunFailed that names the folder of the target."""
    try:
        yield
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error  # HDF5's text has several lines
        raise RunFailed(
            f"predictions cannot be written to {part.parent.parent}: {why} - choose another --out"
        ) from error


def check_target(path: Path, overwrite: bool) -> None:
    """Raise ConfigError if predictions cannot be written to `path`."""
    if path.suffix not in FORMATS:
        raise ConfigError(f"--out {path}: the suffix must be one of {', '.join(FORMATS)}")
    if path.is_dir() or not (path.parent.is_dir() and os.access(path.parent, os.W_OK)):
        raise ConfigError(f"--out {path}: must be a file in an existing folder that you can write to")
    if path.exists() and not overwrite:
        raise ConfigError(f"--out {path}: already exists - add --overwrite to replace it")
    if path.suffix == ".parquet":
        check_installed("pyarrow", f"--out {path}", "tables")


def assemble(parts: Sequence[Path], target: Path, attributes: Mapping[str, Any]) -> Spec:
    """Merge the ranks' parts to `target`, whose rows 0, 1, 2, ... are the rows of the split. The file appears
    atomically.

    attributes: metadata of the file, if the format supports it. Return {field: (shape, dtype)}. Raise RunFailed if the
    file cannot be written.
    """
    temporary = target.with_name(f".{target.name}.tmp")
    files = [h5py.File(part, "r", locking=False) for part in parts]
    try:
        held = [file for file in files if ROW in file]  # a rank without samples has written nothing
        spec = {
            name: ((sum(len(file[name]) for file in held), *first.shape[1:]), _kind(first))
            for name, first in (held[0].items() if held else ())
        }
        write = {".npz": _write_npz, ".parquet": _write_parquet}.get(target.suffix, _write_h5)
        write(temporary, spec, _blocks(held, spec), attributes)
        temporary.replace(target)
    except OSError as error:
        why = os.strerror(error.errno) if error.errno else error
        raise RunFailed(f"{target}: cannot be written: {why}") from error
    finally:
        for file in files:
            file.close()
        temporary.unlink(missing_ok=True)
    return spec


def _kind(dataset: h5py.Dataset) -> str:
    return "text" if h5py.check_string_dtype(dataset.dtype) else str(dataset.dtype)


def _blocks(files: list[h5py.File], spec: Spec) -> Iterator[tuple[int, dict[str, np.ndarray]]]:
    """Yield (first row, {field: rows in order}). In the parts rows may have another order, for example with lanes."""
    widest = max((int(np.prod(shape[1:])) * 8 for shape, _ in spec.values()), default=8)
    size, counts = max(1, BLOCK // widest), [len(file[ROW]) for file in files]
    rows = np.concatenate([np.zeros(0, np.int64), *(file[ROW][()] for file in files)])
    order = np.argsort(rows, kind="stable")
    if not np.array_equal(rows[order], np.arange(len(rows))):
        raise AssertionError(f"the {len(rows)} rows were not each predicted once")
    ends = np.cumsum([0, *counts])
    for begin in range(0, len(rows), size):
        places = np.sort(order[begin : begin + size])  # in the parts, one after the other
        back = np.argsort(rows[places])
        bounds = np.searchsorted(places, ends)
        block = {}
        for name, (_, kind) in spec.items():
            pieces = []
            for k, file in enumerate(files):
                at = places[bounds[k] : bounds[k + 1]] - ends[k]
                stored = file[name].asstr() if kind == "text" else file[name]
                whole = len(at) == 0 or at[-1] - at[0] + 1 == len(at)  # a slice is read faster than single rows
                pieces.append(stored[slice(at[0], at[-1] + 1) if len(at) else slice(0)] if whole else stored[at])
            block[name] = np.concatenate(pieces)[back]
        yield begin, block


def _check_space(file: Path, array: np.ndarray) -> None:
    """Raise OSError if the disk has no room for these values. HDF5 crashes if it cannot write (SIGSEGV with HDF5 1.14
    and 2.0), so this is checked before."""
    size = array.nbytes + (4 * sum(map(len, array)) if array.dtype == object else 0)  # 4 bytes a character, at most
    if shutil.disk_usage(file.parent).free < size + RESERVE:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _write_h5(path: Path, spec: Spec, blocks: Iterator[Any], attributes: Mapping[str, Any]) -> None:
    with h5py.File(path, "w", locking=False) as file:
        for name, (shape, kind) in spec.items():
            file.create_dataset(name, shape, h5py.string_dtype() if kind == "text" else kind)
        for begin, block in blocks:
            for name, array in block.items():
                _check_space(path, array)
                file[name][begin : begin + len(array)] = array
        for name, value in attributes.items():
            file.attrs[name] = value


def _write_npz(path: Path, spec: Spec, blocks: Iterator[Any], attributes: Mapping[str, Any]) -> None:
    arrays = {name: np.empty(shape, object if kind == "text" else kind) for name, (shape, kind) in spec.items()}
    for begin, block in blocks:
        for name, array in block.items():
            arrays[name][begin : begin + len(array)] = array
    texts = {name: array.astype(str) for name, array in arrays.items() if array.dtype == object}
    with open(path, "wb") as file:  # savez would add .npz to a path
        np.savez(file, **(arrays | texts))  # type: ignore[arg-type]


def _write_parquet(path: Path, spec: Spec, blocks: Iterator[Any], attributes: Mapping[str, Any]) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    def column(array: np.ndarray) -> Any:
        """Convert (N, a, b) to lists of a lists of b values."""
        values = pa.array(array.ravel())
        for size in reversed(array.shape[1:]):
            values = pa.FixedSizeListArray.from_arrays(values, size)
        return values

    text = {name: str(value) for name, value in attributes.items()}
    writer = None
    try:
        for _, block in blocks:
            table = pa.table({name: column(array) for name, array in block.items()}).replace_schema_metadata(text)
            writer = writer or parquet.ParquetWriter(path, table.schema)
            writer.write_table(table)
        if writer is None:
            parquet.write_table(pa.table({ROW: pa.array([], pa.int64())}), path)
    finally:
        if writer is not None:
            writer.close()
