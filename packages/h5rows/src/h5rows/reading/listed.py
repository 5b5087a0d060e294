"""Read the index of a set of shards (packing/shards.py): path="https://host/set/index.json". No torch."""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any

from h5rows.errors import ConfigError, argument
from h5rows.reading.folders import folder_of, is_remote, once

INDEX = "index.json"
ASKED_S = 60.0  # time before a process checks again if the index on a server has changed

# (process, index) -> (time of reading, content of a local index, its shards)
_known: dict[tuple[int, str], tuple[float, bytes | None, list[str]]] = {}
EXPECTED: dict[str, tuple[int, str]] = {}  # address or file of a shard -> its bytes, its SHA-256


def is_index(name: str) -> bool:
    """Return True if the name is that of an index."""
    return name.partition("?")[0].endswith(".json")


def listed(name: str) -> list[str]:
    """Return the shards that an index names, in its order. Raise ConfigError if a local shard is missing or has another
    size."""
    at, last, found = _known.get((os.getpid(), name), (-ASKED_S, None, []))
    local = None if is_remote(name) else _read(name)
    if time.monotonic() - at < ASKED_S and local == last:
        return found
    text = _told(name) if local is None else local
    base, found = name.partition("?")[0].rpartition("/")[0], []
    for one in shards_in(text, name):
        shard = f"{base}/{one['file']}"
        if not is_remote(name) and (size := os.stat(shard).st_size if os.path.exists(shard) else -1) != one["bytes"]:
            what = "is missing" if size < 0 else f"has {size:,} bytes, expected {one['bytes']:,}"
            raise ConfigError(f"{shard}: {what}; it is listed in {name}")
        EXPECTED[shard] = one["bytes"], one["sha256"]
        found.append(shard)
    _known[os.getpid(), name] = time.monotonic(), local, found
    return found


def forget(name: str) -> None:
    """Forget an index, because this process has written a new one."""
    _known.pop((os.getpid(), name), None)


def _read(name: str) -> bytes:
    try:
        return Path(name).read_bytes()
    except OSError as error:
        raise ConfigError(f"{argument('path')}={name}: {error.strerror}") from None


def _told(url: str) -> bytes:
    """Return the index from the server; if it cannot be reached, its last known content."""
    from h5rows.reading.sources import TRIES, Failed, read, source_of  # imports the network code only if needed

    kept = folder_of(url) / "last"
    try:
        source = source_of(url, 1 if kept.exists() else TRIES)
        text = read(source, 0, source.size)
    except ConfigError as error:
        if not (kept.exists() and isinstance(error.__cause__, Failed)):
            raise
        once(f"{error}; using its last known content, {kept}")
        return kept.read_bytes()
    kept.parent.mkdir(parents=True, exist_ok=True)
    part = kept.with_name(f"last.{os.getpid()}")
    part.write_bytes(text)
    part.replace(kept)
    return text


def shards_in(text: bytes, name: str) -> list[dict[str, Any]]:
    """Return the entries of an index. name: for the message. Raise ConfigError if it is not an index."""
    try:
        shards = json.loads(text)["shards"]
        right = shards and all(
            isinstance(one["bytes"], int) and isinstance(one["sha256"], str) and one["file"] == Path(one["file"]).name
            for one in shards
        )
    except (ValueError, LookupError, TypeError):
        right = False
    if not right:
        raise ConfigError(f"{name}: is not an index of shards, as `h5 pack SOURCE OUT --shards N` writes it")
    return list(shards)


def digest_of(file: str | Path) -> str:
    """Return the SHA-256 of a file."""
    found = hashlib.sha256()
    with open(file, "rb") as opened:
        while piece := opened.read(1 << 22):
            found.update(piece)
    return found.hexdigest()
