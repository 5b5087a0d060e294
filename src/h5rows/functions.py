"""The commands as functions: `pack`, `repack`, `inspect`."""

from __future__ import annotations

import json
import os
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any, get_type_hints

from h5rows.account import Account
from h5rows.checks import check_options
from h5rows.errors import ConfigError, printable
from h5rows.importers import open_source
from h5rows.options import PackOptions, RepackOptions, above
from h5rows.packing.inspect import inspect_file
from h5rows.packing.repack import repack_file
from h5rows.packing.shards import pack_shards
from h5rows.packing.write import pack as write
from h5rows.reading.opening import is_remote


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
    above(shards=shards)
    checked = PackOptions(**options)
    if shards is not None or is_remote(out):
        own = {**options, "overwrite": True, "quiet": True}

        def make(file: str, share: tuple[int, int]) -> Account:  # without a date: the same bytes again
            return _packed(source, file, command, PackOptions(**{**own, "shard": share}), dated=False)

        return pack_shards(make, out, shards or 1, append, checked.overwrite)
    if append:
        raise ConfigError("--append adds to a set of shards: give --shards N too")
    return _packed(source, out, command, checked, dated=True)


def _packed(source: str, out: str, command: str, packing: PackOptions, dated: bool) -> Account:
    opened, record = open_source(source, packing), _provenance(source, command, packing)
    write(opened, out, packing, record if dated else {name: held for name, held in record.items() if name != "created"})
    return opened.account


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
