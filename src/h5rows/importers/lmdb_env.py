"""LMDB. Keys <field><number> of several fields make samples of these; else each key is a sample, the fields `value` and
`key`.

A key is no sample only where its value proves that it tells of the others: their number, or their list. `__...__` that
proves nothing is left out, with its name.
"""

from __future__ import annotations

import itertools
import json
import pickletools
import re
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import BadSample, Field
from h5rows.importers.folders import walk
from h5rows.importers.values import TEXT, EncodedSource
from h5rows.packing.options import PackOptions

RESERVED = re.compile(rb"__.*__", re.DOTALL)
MAY_TELL = re.compile(rb"__.*__|num[-_ ]?samples|length|len|size|count|keys", re.IGNORECASE | re.DOTALL)
NUMBERED = re.compile(rb"(?P<field>.*?)[-_:/ ]*(?P<number>\d+)", re.DOTALL)
MOST_NAMES = 1 << 26  # bytes of a list of keys that is looked into


class LmdbSource(EncodedSource):
    def __init__(self, path: Path, options: PackOptions) -> None:
        need("lmdb", f"reading {path}", "lmdb")
        self.path = path
        for _ in walk(path, options.external) if path.is_dir() else ():
            pass  # no file of it lies elsewhere
        self._env: Any = None
        self._keys, names = self._list_keys()
        self._names = names
        size = len(self._keys) // max(1, len(names))
        self.splits = {"": range(size)}
        self._close()  # an environment must not cross a fork
        try:
            self.learn(size, options, path)
        finally:
            self._close()
        # keys that are more than a number say something: which sample it is, of what class
        if names == ["value"] and "key" not in self.fields and not all(key.isdigit() for key in self._keys):
            self.fields["key"] = Field((None,), np.dtype(np.uint8), key_attrs(self._keys))

    def _list_keys(self) -> tuple[list[bytes], list[str]]:
        """(keys, sample by sample and field by field; names of the fields)"""
        with self._open().begin() as txn:
            keys = [bytes(k) for k in txn.cursor().iternext(values=False)]
            if twice := next((a for a, b in itertools.pairwise(keys) if a == b), None):
                raise ConfigError(f"{self.path}: key {twice!r} has several values; give each a key of its own")
            about = {k: bytes(txn.get(k)[:MOST_NAMES]) for k in keys if MAY_TELL.fullmatch(k)}
            samples = [key for key in keys if key not in about]
            # a plain name (length) beside others as plain (height) may be a sample, of that number by chance
            number = bool(samples) and isinstance(plain_value(bytes(txn.get(samples[0])[:MOST_NAMES])), int)
        self.account.held["keys"] = len(keys)
        chance = number and not all(map(NUMBERED.fullmatch, samples))
        # the others of these names may be samples as well: what each says is compared with all that is no such key
        kept, names = arrange(samples)
        for key, value in about.items():
            reserved = RESERVED.fullmatch(key)
            if (reserved or not chance) and tells(value, len(kept) // max(1, len(names)), samples):
                self.account.taken["keys"] += 1  # the file's rows say the same
            elif reserved:
                self.account.leave("keys", repr(key)[1:], f"{len(value):,} bytes that are no sample's")
            else:
                samples.append(key)
        kept, names = arrange(sorted(samples))
        self.account.taken["keys"] += len(kept)
        return kept, names

    def _open(self) -> Any:
        if self._env is None:
            import lmdb

            try:
                self._env = lmdb.open(
                    str(self.path), readonly=True, lock=False, readahead=False, subdir=self.path.is_dir()
                )
            except lmdb.Error as error:
                raise ConfigError(f"{self.path} cannot be opened as LMDB: {error}") from None
        return self._env

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def name_of(self, row: int) -> str:
        return f"{self.path.name}: key {self._keys[row * len(self._names)].decode('utf-8', 'replace')!r}"

    def raw(self, row: int) -> dict[str, Any]:
        keys = self._keys[row * len(self._names) : (row + 1) * len(self._names)]
        with self._open().begin() as txn:
            values = [txn.get(key) for key in keys]
        if None in values:
            raise BadSample(self.name_of(row), "has gone since the keys were listed")
        found = dict(zip(self._names, values, strict=True))
        return found | {"key": np.frombuffer(keys[0], np.uint8)} if "key" in self.fields else found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_env": None}

    def identity(self) -> Any:
        file = self.path / "data.mdb" if self.path.is_dir() else self.path
        return [str(self.path.resolve()), file.stat().st_size, file.stat().st_mtime_ns, len(self._keys)]


def arrange(keys: list[bytes]) -> tuple[list[bytes], list[str]]:
    """(keys, sample by sample and field by field; names of the fields)"""
    matches = [NUMBERED.fullmatch(k) for k in keys]
    if not keys or not all(matches):
        return keys, ["value"]
    by_field: dict[bytes, dict[int, bytes]] = {}
    for key, m in zip(keys, matches, strict=True):
        by_field.setdefault(m["field"], {})[int(m["number"])] = key  # type: ignore[index]
    numbers = [sorted(found) for found in by_field.values()]
    names = [field.decode("utf-8", "backslashreplace") or "value" for field in by_field]
    if sum(map(len, numbers)) < len(keys) or any(n != numbers[0] for n in numbers) or len(set(names)) < len(names):
        return keys, ["value"]
    return [by_field[f][n] for n in numbers[0] for f in by_field], names


def tells(value: bytes, samples: int, others: list[bytes]) -> bool:
    """Whether a value is the number of the samples, or of the keys, or the list of the keys."""
    said = plain_value(value)
    if isinstance(said, int):
        return bool(others) and said in (samples, len(others), len(others) + 1)
    return isinstance(said, list) and bool(others) and sorted(said) == sorted(others)


def plain_value(raw: bytes) -> int | list[bytes] | None:
    """A whole number, or a list of names, as text, JSON or a pickle, whose commands are read and not run."""
    if re.fullmatch(rb"\s*\d{1,19}\s*", raw):
        return int(raw)
    try:
        if raw[:1] == b"[":
            listed = json.loads(raw)
            return [name.encode() for name in listed] if all(isinstance(name, str) for name in listed) else None
        found: list[Any] = []
        for command, value, _ in pickletools.genops(raw):
            if command.name in ("INT", "BININT", "BININT1", "BININT2", "LONG1") or "BYTES" in command.name:
                found.append(value)
            elif "UNICODE" in command.name:
                found.append(str(value).encode())
            elif command.name not in PLAIN_COMMANDS:
                return None
    except Exception:  # whatever a value that is none of these raises
        return None
    if len(found) == 1 and isinstance(found[0], int):
        return found[0]
    return found if found and all(isinstance(name, bytes) for name in found) else None


PLAIN_COMMANDS = {"PROTO", "FRAME", "MEMOIZE", "PUT", "BINPUT", "LONG_BINPUT", "EMPTY_LIST", "LIST", "MARK", "APPEND",
                  "APPENDS", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "STOP"}  # fmt: skip


def key_attrs(keys: list[bytes]) -> dict[str, Any]:
    try:
        b"\n".join(keys).decode()
    except UnicodeDecodeError:
        return {}
    return TEXT
