"""The commands as functions, `pack`, `repack`, `inspect`, and `write`, for what a program has in memory."""

from __future__ import annotations

import json
import os
import platform
import tempfile
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any, get_type_hints

from h5rows.account import Account
from h5rows.checks import check_options
from h5rows.errors import ConfigError, printable
from h5rows.importers import open_source
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
    """Write any known format into one HDF5 file. options: of PackOptions, such as size=(224, 224), split={"val": 0.1}.
    shards: so many files, and an index of them, in the folder or at the address `out`; append: to the set there.
    command: noted in the file. Returns what was taken and what was left out; its exit_status is 0 where nothing was.
    Where it raises, as after a kill, there is no `out`, and the same call begins anew."""
    source, out = os.fspath(source), os.fspath(out)
    check_options(get_type_hints(pack), {"command": command, "shards": shards, "append": append})
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
    """Write samples that this program has or makes, such as {"x": image, "y": 3}, into one HDF5 file.

    samples: an iterable of dicts, which is gone through once and need not fit into memory; or a dict of them by split,
    {"train": ..., "val": ...}. Values are arrays, tensors, numbers or str, in each sample of one shape and type. A
    Python int is int64, a float float64. variable: fields whose samples differ in their first side. split, shards,
    append, shuffle, seed: as those of `pack`. Where it raises, as after a kill, there is no `out`."""
    out = os.fspath(out)
    own = {"shards": shards, "append": append, "variable": variable}
    check_options({name: hint for name, hint in get_type_hints(write).items() if name in own}, own)
    folder = Path(tempfile.gettempdir() if is_remote(out) else os.path.dirname(os.path.abspath(out)))

    @cache  # the shards of a set are of the same samples
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
    """opened: gives the source for these options, or what gives the one source of all calls."""
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
        own = {**options, "overwrite": True, "quiet": True}

        def make_share(file: str, share: tuple[int, int]) -> Account:  # without a date: the same bytes again
            return make(file, PackOptions(**{**own, "shard": share}), dated=False)

        return pack_shards(make_share, out, shards or 1, append, checked.overwrite)
    if append:
        raise ConfigError("append=True adds to a set of shards: give shards=N too")
    return make(out, checked)


def repack(source: str | os.PathLike[str], out: str | os.PathLike[str], command: str = "", **options: Any) -> Account:
    """Write all that an HDF5 file holds in another layout: contiguous, or in chunks of a codec (gzip, zstd). options:
    of RepackOptions, such as codec="gzip". command: noted in the file. Returns what was left out, as `pack`."""
    return repack_file(os.fspath(source), os.fspath(out), RepackOptions(**options), f"{_now()} {printable(command)}")


def inspect(path: str | os.PathLike[str]) -> None:
    """Print how a file is laid out and read, and what to change; of an index of shards, its first one."""
    inspect_file(os.fspath(path))


def _now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds")


def _provenance(source: str, command: str, options: PackOptions) -> dict[str, Any]:
    """The file's own attributes."""
    versions = [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("h5py", "numpy"))]
    return {
        "source": printable(source),
        "command": printable(command),
        "created": _now(),
        "versions": ", ".join(versions),
        "options": json.dumps(options.of_bytes()),
    }
