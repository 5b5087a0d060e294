"""The commands as functions: `pack`, `repack` and `inspect`; and `write`, for samples in memory."""

from __future__ import annotations

import json
import numbers
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import datetime, timezone
from functools import cache
from glob import glob
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

import h5py

from h5rows.account import Account
from h5rows.checks import check_options
from h5rows.errors import ConfigError, printable
from h5rows.importers import open_source
from h5rows.importers.folders import lies_in
from h5rows.options import PackOptions, RepackOptions, above
from h5rows.packing.inspect import inspect_file
from h5rows.packing.repack import repack_file
from h5rows.packing.samples import Samples, SpooledSource
from h5rows.packing.shards import pack_shards
from h5rows.packing.write import pack as pack_source
from h5rows.reading.opening import is_remote
from h5rows.source import Source


def pack(
    source: str | os.PathLike[str],
    out: str | os.PathLike[str],
    command: str = "",
    shards: int | None = None,
    append: bool = False,
    **options: Any,
) -> Account:
    """Convert a known format to one HDF5 file. Return an account of what was written and what was left out.

    options: fields of PackOptions, such as size=(224, 224), split={"val": 0.1}. shards: write this many files and their
    index to `out`, a folder or a URL; append: add them to the set that is there. command: recorded in the file. The
    account's exit_status is 0 if nothing was left out. After an exception or a kill `out` does not exist; call it again
    to start from the beginning."""
    source, out = os.fspath(source), os.fspath(out)
    check_options(get_type_hints(pack), {"command": command, "shards": shards, "append": append})
    read = map(os.path.realpath, (source, *glob(source)))
    leaves_out = os.path.isdir(source) and out.endswith((".h5", ".hdf5"))  # such files of a folder are not read
    if os.path.isfile(out) and not (leaves_out or h5py.is_hdf5(out)) and any(lies_in(out, one) for one in read):
        raise ConfigError(f"{out} is a file of SOURCE, {source}, and would be replaced; give another file")
    return _packed(lambda packing: open_source(source, packing), source, out, command, shards, append, options)


def write(
    samples: Samples | Mapping[str, Samples],
    out: str | os.PathLike[str],
    split: Mapping[str, float] | None = None,
    shards: int | None = None,
    append: bool = False,
    variable: Sequence[str] = (),
    shuffle: bool = False,
    seed: int = 0,
    overwrite: bool = False,
    quiet: bool = False,
) -> Account:
    """Write samples of this program, such as {"x": image, "y": 3}, to one HDF5 file. Return the account, as `pack`
    does.

    samples: an iterable of dicts, which is iterated once and need not fit into memory; or one iterable per split,
    {"train": ..., "val": ...}. Values are arrays, tensors, numbers or str; a field has the same shape and type in all
    samples. A Python int becomes int64, a float float64. variable: fields whose samples differ in the first dimension.
    split, shards, append, shuffle, seed: as in `pack`. After an exception or a kill `out` does not exist."""
    out = os.fspath(out)
    own = {"shards": shards, "append": append, "variable": variable}
    check_options({name: hint for name, hint in get_type_hints(write).items() if name in own}, own)
    folder = Path(tempfile.gettempdir() if is_remote(out) else os.path.dirname(os.path.abspath(out)))

    @cache  # all shards of a set use the same samples
    def source() -> SpooledSource:
        return SpooledSource(samples, variable, folder if folder.is_dir() else Path(tempfile.gettempdir()))

    options = {"split": split or {}, "shuffle": shuffle, "seed": seed, "overwrite": overwrite, "quiet": quiet}
    return _packed(lambda _: source, "samples", out, "", shards, append, options)


def _packed(
    opened: Callable[[PackOptions], Source | Callable[[], Source]],
    origin: str,
    out: str,
    command: str,
    shards: int | None,
    append: bool,
    options: Mapping[str, Any],
) -> Account:
    """Pack one file or shards. opened: returns the source for these options, or a function that returns one for all."""
    above(shards=shards)
    checked = PackOptions(**options)

    def make(file: str, packing: PackOptions, dated: bool = True) -> Account:
        record = _provenance(origin, command, packing)
        if not dated:
            del record["created"]
        source = opened(packing)
        pack_source(source, file, packing, record)
        return (source if isinstance(source, Source) else source()).account

    if shards is not None or is_remote(out):

        def make_share(file: str, share: tuple[int, int]) -> Account:
            own = replace(checked, overwrite=True, quiet=True, shard=share)
            return make(file, own, dated=False)  # so that a repeated pack gives the same bytes

        return pack_shards(make_share, out, shards or 1, append, checked.overwrite)
    if append:
        raise ConfigError("append=True: has an effect only for sets of shards; add shards=N")
    return make(out, checked)


def repack(source: str | os.PathLike[str], out: str | os.PathLike[str], command: str = "", **options: Any) -> Account:
    """Copy an HDF5 file with another layout: contiguous, or in chunks with a codec (gzip, zstd). Return the account, as
    `pack` does. options: fields of RepackOptions, such as codec="gzip". command: recorded in the file."""
    return repack_file(os.fspath(source), os.fspath(out), RepackOptions(**options), f"{_now()} {printable(command)}")


def inspect(path: str | os.PathLike[str]) -> None:
    """Print how a file is laid out and read, and what to change. For an index of shards: its first shard."""
    inspect_file(os.fspath(path))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _provenance(source: str, command: str, options: PackOptions) -> dict[str, Any]:
    """Return the root attributes of a packed file."""
    versions = [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("h5py", "numpy"))]
    return {
        "source": printable(source),
        "command": printable(command),
        "created": _now(),
        "versions": ", ".join(versions),
        "options": json.dumps(options.of_bytes(), default=_plain),
    }


def _plain(number: numbers.Real) -> int | float:
    """Return a number of NumPy, which an option may be, as a number of Python."""
    return int(number) if isinstance(number, numbers.Integral) else float(number)
