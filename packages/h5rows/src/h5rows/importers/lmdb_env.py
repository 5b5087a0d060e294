"""Read LMDB. Keys of the form <field><number> are the fields of numbered samples; otherwise each key is a sample with
the fields `value` and `key`.

Keys such as `__...__`, and num-samples among numbered keys, are not samples. They are left out by name, unless their
value is the number of samples as text.
"""

from __future__ import annotations

import itertools
import re
import signal
import subprocess
import sys
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
NAMED_BYTES = 48  # of the record of a named database
READ_ALL = """
import lmdb, os, sys
with lmdb.open(sys.argv[1], subdir=os.path.isdir(sys.argv[1]), readonly=True, lock=False) as env:
    for value in env.begin(buffers=True).cursor().iternext(keys=False):
        bytes(value[-1:])
"""
NUMBERED = re.compile(rb"(?P<field>.*?)[-_:/ ]*(?P<number>\d+)", re.DOTALL)


class LmdbSource(EncodedSource):
    """The samples of an LMDB environment."""

    def __init__(self, path: Path, options: PackOptions) -> None:
        need("lmdb", f"reading {path}", "lmdb")
        self.path = path
        for _ in walk(path, options.external) if path.is_dir() else ():
            pass  # raises if a file is outside of it
        self._env: Any = None
        self._check_length()
        self._keys, names = self._list_keys()
        self._names = names
        size = len(self._keys) // max(1, len(names))
        self.splits = {"": range(size)}
        self._close()  # an LMDB environment must not be used after a fork
        try:
            self.learn(size, options, path)
        finally:
            self._close()
        # keys that are not only numbers have information, such as the class
        if names == ["value"] and "key" not in self.fields and not all(key.isdigit() for key in self._keys):
            self.fields["key"] = Field((None,), np.dtype(np.uint8), key_attrs(self._keys))

    def _check_length(self) -> None:
        """Raise ConfigError if the file is cut off: reading beyond its end would end this process by SIGBUS."""
        info, page = self._open().info(), self._env.stat()["psize"]
        size = (self.path / "data.mdb" if self.path.is_dir() else self.path).stat().st_size
        # a whole file may lack its last pages too, if nothing uses them, so another process reads everything
        if size < page * (info["last_pgno"] + 1):
            ended = subprocess.run([sys.executable, "-c", READ_ALL, self.path], stderr=subprocess.DEVNULL, check=False)
            if ended.returncode == -signal.SIGBUS:
                raise ConfigError(f"{self.path} is cut off at byte {size:,}; copy or write it again")

    def _list_keys(self) -> tuple[list[bytes], list[str]]:
        """Return (keys ordered by sample and field, names of the fields)."""
        with self._open().begin(buffers=True) as txn:  # values are not copied
            keys = [bytes(k) for k in txn.cursor().iternext(values=False)]
            if twice := next((a for a, b in itertools.pairwise(keys) if a == b), None):
                raise ConfigError(f"{self.path}: key {twice!r} has several values; use one key per value")
            if inner := next(
                (key for key in keys if len(txn.get(key)) == NAMED_BYTES and self._is_named(key, txn)), None
            ):
                what = f"{self.path}: key {inner!r} is a named database, and only the main one is read"
                raise ConfigError(f"{what}; copy its keys to an environment of their own")
            others = [key for key in keys if not RESERVED.fullmatch(key) and not COUNTS.fullmatch(key)]
            if not others or not all(map(NUMBERED.fullmatch, others)):  # if a key has no number, all keys are samples
                others = [key for key in keys if not RESERVED.fullmatch(key)]
            kept, names = arrange(others)
            self.account.held["keys"], self.account.taken["keys"] = len(keys), len(kept)
            for key in sorted(set(keys) - set(kept)):
                if (value := bytes(txn.get(key))).strip() == b"%d" % (len(kept) // max(1, len(names))):
                    self.account.taken["keys"] += 1  # the file has this many rows anyway
                else:
                    self.account.leave("keys", repr(key)[1:], f"{len(value):,} bytes that belong to no sample")
        return kept, names

    def _is_named(self, key: bytes, txn: Any) -> bool:
        """Return True if a key of the main database is the name of another database, whose record LMDB would return."""
        import lmdb

        try:
            self._open().open_db(key, txn=txn, create=False)
        except lmdb.Error:
            return False
        return True

    def _open(self) -> Any:
        if self._env is None:
            import lmdb

            try:
                place = str(self.path)
                how: dict[str, Any] = {"readonly": True, "lock": False, "readahead": False, "max_dbs": 1}
                self._env = lmdb.open(place, subdir=self.path.is_dir(), **how)
            except lmdb.Error as error:
                raise ConfigError(f"{self.path} cannot be opened as LMDB: {error}") from None
        return self._env

    def _close(self) -> None:
        if self._env is not None:
            self._env.close()
            self._env = None

    def name_of(self, row: int) -> str:
        """Return the first key of a sample, for messages."""
        return f"{self.path.name}: key {self._keys[row * len(self._names)].decode('utf-8', 'replace')!r}"

    def raw(self, row: int) -> dict[str, Any]:
        """Return {field: bytes} of a sample."""
        keys = self._keys[row * len(self._names) : (row + 1) * len(self._names)]
        with self._open().begin() as txn:
            values = [txn.get(key) for key in keys]
        if None in values:
            raise BadSample(self.name_of(row), "was deleted after the keys were listed")
        found = dict(zip(self._names, values, strict=True))
        return found | {"key": np.frombuffer(keys[0], np.uint8)} if "key" in self.fields else found

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_env": None}


def arrange(keys: list[bytes]) -> tuple[list[bytes], list[str]]:
    """Return (keys ordered by sample and field, names of the fields)."""
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
    """Return the attributes of the field `key`: UTF-8 if all keys are."""
    try:
        b"\n".join(keys).decode()
    except UnicodeDecodeError:
        return {}
    return TEXT
