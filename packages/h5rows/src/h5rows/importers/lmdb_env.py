"""LMDB. Keys <field><number> of several fields make samples of these; else each key is a sample, the fields `value` and
`key`.

No samples are `__...__`, and names such as num-samples beside numbered keys. Those that are not the number of the
samples, written as text, are left out by name.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, need
from h5rows.importers.folders import walk
from h5rows.importers.values import TEXT, EncodedSource
from h5rows.options import PackOptions
from h5rows.source import BadSample, Field

RESERVED = re.compile(rb"__.*__", re.DOTALL)
COUNTS = re.compile(rb"num[-_ ]?samples|length|len|size|count", re.IGNORECASE)
NUMBERED = re.compile(rb"(?P<field>.*?)[-_:/ ]*(?P<number>\d+)", re.DOTALL)


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
            others = [key for key in keys if not RESERVED.fullmatch(key) and not COUNTS.fullmatch(key)]
            if not others or not all(map(NUMBERED.fullmatch, others)):  # a plain name beside others is a sample
                others = [key for key in keys if not RESERVED.fullmatch(key)]
            kept, names = arrange(others)
            self.account.held["keys"], self.account.taken["keys"] = len(keys), len(kept)
            for key in sorted(set(keys) - set(kept)):
                if (value := bytes(txn.get(key))).strip() == b"%d" % (len(kept) // max(1, len(names))):
                    self.account.taken["keys"] += 1  # the file's rows say the same
                else:
                    self.account.leave("keys", repr(key)[1:], f"{len(value):,} bytes that are no sample's")
        return kept, names

    def _open(self) -> Any:
        if self._env is None:
            import lmdb

            try:
                place, how = str(self.path), {"readonly": True, "lock": False, "readahead": False}
                self._env = lmdb.open(place, subdir=self.path.is_dir(), **how)
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


def key_attrs(keys: list[bytes]) -> dict[str, Any]:
    try:
        b"\n".join(keys).decode()
    except UnicodeDecodeError:
        return {}
    return TEXT
