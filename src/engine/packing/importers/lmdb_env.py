"""LMDB. Keys <field><number> of several fields make samples of these; else each key is a sample, the field `value`."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from engine.errors import ConfigError
from engine.extras import need
from engine.packing.importers.base import BadSample
from engine.packing.importers.values import EncodedSource
from engine.packing.options import PackOptions

NOT_SAMPLES = re.compile(rb"__.*__|num[-_]?samples|length|len|keys|meta.*", re.IGNORECASE)
NUMBERED = re.compile(rb"(?P<field>.*?)[-_:/ ]*(?P<number>\d+)")


class LmdbSource(EncodedSource):
    def __init__(self, path: Path, options: PackOptions) -> None:
        need("lmdb", f"reading {path}", "lmdb", "lmdb")
        self.path = path
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

    def _list_keys(self) -> tuple[list[bytes], list[str]]:
        """(keys, sample by sample and field by field; names of the fields)"""
        with self._open().begin() as txn:
            keys = [bytes(k) for k in txn.cursor().iternext(values=False) if not NOT_SAMPLES.fullmatch(bytes(k))]
        matches = [NUMBERED.fullmatch(k) for k in keys]
        if not keys or not all(matches):
            return keys, ["value"]
        by_field: dict[bytes, dict[int, bytes]] = {}
        for key, m in zip(keys, matches, strict=True):
            by_field.setdefault(m["field"], {})[int(m["number"])] = key  # type: ignore[index]
        numbers = [sorted(found) for found in by_field.values()]
        if sum(map(len, numbers)) < len(keys) or any(n != numbers[0] for n in numbers):
            return keys, ["value"]
        names = [field.decode("utf-8", "backslashreplace") or "value" for field in by_field]
        return [by_field[f][n] for n in numbers[0] for f in by_field], names

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
        return f"key {self._keys[row * len(self._names)].decode('utf-8', 'replace')!r}"

    def raw(self, row: int) -> dict[str, Any]:
        keys = self._keys[row * len(self._names) : (row + 1) * len(self._names)]
        with self._open().begin() as txn:
            values = [txn.get(key) for key in keys]
        if None in values:
            raise BadSample(self.name_of(row), "has gone since the keys were listed")
        return dict(zip(self._names, values, strict=True))

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_env": None}

    def identity(self) -> Any:
        file = self.path / "data.mdb" if self.path.is_dir() else self.path
        return [str(self.path.resolve()), file.stat().st_size, file.stat().st_mtime_ns, len(self._keys)]


def open_lmdb(path: Path, options: PackOptions) -> LmdbSource:
    return LmdbSource(path, options)
