"""The commands as functions: `pack`, `repack`, `inspect`."""

from __future__ import annotations

import json
import platform
from datetime import datetime, timezone
from importlib.metadata import version
from typing import Any

from h5rows.importers import open_source
from h5rows.importers.base import printable
from h5rows.packing.account import Account
from h5rows.packing.encode import Encoding
from h5rows.packing.inspect import inspect_file
from h5rows.packing.options import PackOptions
from h5rows.packing.repack import repack_file
from h5rows.packing.write import pack as write


def pack(source: str, out: str, command: str = "", **options: Any) -> Account:
    """Write any known format into one HDF5 file. options: of PackOptions, such as size=(224, 224), split={"val": 0.1}.

    Returns what of the source was taken and what was left out; its exit_status is 0 where nothing was. command: noted
    in the file. Raises ConfigError; then, as after a kill, there is no `out`, and the same call begins anew.
    """
    packing = PackOptions(**options)
    opened = open_source(source, packing)
    write(opened, out, packing, _provenance(source, command, packing))
    return opened.account


def repack(
    source: str,
    out: str,
    command: str = "",
    codec: str = "none",
    level: int | None = None,
    rows_per_chunk: int | None = None,
    flatten: bool = False,
    external: str = "refuse",
    fixed: bool = False,
    inflate: bool = False,
    overwrite: bool = False,
    quiet: bool = False,
) -> Account:
    """Write all that an HDF5 file holds in another layout: contiguous, or in chunks of a codec (gzip, zstd).

    flatten: variable length and strings into flat values + offsets. fixed: what can grow becomes contiguous too.
    inflate: write a copy of many times the size. Returns what was left out, as `pack`.
    """
    options, encoding = PackOptions(overwrite=overwrite, quiet=quiet), Encoding(codec, level, rows_per_chunk)
    record = _provenance(source, command, options)
    return repack_file(source, out, options, encoding, record, flatten, external, fixed, inflate)


def inspect(path: str) -> None:
    """Print how a file is laid out and read, and what to change."""
    inspect_file(path)


def _provenance(source: str, command: str, options: PackOptions) -> dict[str, Any]:
    """The file's own attributes."""
    versions = [f"python {platform.python_version()}", *(f"{name} {version(name)}" for name in ("h5py", "numpy"))]
    return {
        "source": printable(source),
        "command": printable(command),
        "created": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "versions": ", ".join(versions),
        "options": json.dumps(options.of_bytes()),
    }
