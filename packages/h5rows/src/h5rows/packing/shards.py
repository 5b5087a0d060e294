"""Write a data set as shards and an index of them, at a URL or in a folder.

    bucket/set/index.json             names, sizes, SHA-256 and rows of the shards, and their fields; written last
    bucket/set/00000-1f3a….h5         a shard; its name has the digest, so no shard is ever overwritten

A reader of index.json sees either the old set or the new one. A killed pack leaves shards that are in no index: repeat
the command, which finds them and writes only the missing ones. --overwrite removes all shards that are not in its
index. Shards are made one at a time, so the local disk needs space for only one."""

from __future__ import annotations

import json
import os
import re
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import h5py

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line, need, pip_install, report
from h5rows.packing.file import flush, in_words
from h5rows.program import calling
from h5rows.reading.finding import classes_of
from h5rows.reading.folders import is_remote, shown
from h5rows.reading.listed import INDEX, digest_of, forget, shards_in
from h5rows.reading.sources import told

SHARD = re.compile(r"\d{5,}-[0-9a-f]{12}\.h5")
Make = Callable[[str, tuple[int, int]], Account]  # (a local file, (i, n)): writes share i of n to it


def pack_shards(make: Make, out: str, count: int, append: bool, overwrite: bool) -> Account:
    """Write `count` shards and their index to `out`, a URL or a folder. append: add them to the set that is there.

    Return the account of the shard with the most values left out."""
    place = Place(out)
    try:
        return _packed_at(place, make, out, count, append, overwrite)
    except BaseException:
        place.leave()
        raise


def _packed_at(place: Place, make: Make, out: str, count: int, append: bool, overwrite: bool) -> Account:
    before, name = place.read_index(), shown(out)
    if before is not None and not (append or overwrite):
        raise ConfigError(f"{name}: contains a set already; append=True adds to it, overwrite=True replaces it")
    if before is None and append:
        raise ConfigError(f"{name}: has no {INDEX} to append to; remove append=True")
    held = before if append and before is not None else {"shards": [], "fields": None}
    kept, shards, accounts = held["fields"], list(held["shards"]), []
    there = {one["sha256"]: one["file"] for one in shards}
    with tempfile.TemporaryDirectory(prefix="h5rows-shards-") as folder:
        for i in range(count):
            accounts.append(make(f"{folder}/shard.h5", (i, count)))
            (file,) = Path(folder).glob("*.h5")
            fields, rows = described(file)
            kept = fields if kept is None else kept
            if fields != kept:
                raise ConfigError(f"{name}: {difference(kept, fields)}; all shards of a set must have the same fields")
            digest, size = digest_of(file), file.stat().st_size
            if digest in there:
                raise ConfigError(
                    f"{name}: {there[digest]} of the set is identical to new shard {i + 1} of {count}, so rows would "
                    "be duplicated; the set was not changed - pack only new rows with append=True, or all rows with "
                    "overwrite=True"
                )
            shard = f"{len(shards):05}-{digest[:12]}.h5"
            sent = place.send(file, shard)
            print(f"{i + 1} of {count}: {shard}, {in_words(size)}" + ("" if sent else ", already there"))
            shards.append({"file": shard, "bytes": size, "sha256": digest, "rows": rows})
            file.unlink()
    if append and place.read_index() != before:
        raise ConfigError(f"{name}: another command has changed {INDEX}; repeat the command to add these shards")
    place.write_index({"h5rows": 1, "fields": kept, "shards": shards})
    if overwrite and not append:
        place.remove_all_but({one["file"] for one in shards})
    index = place.shown(INDEX)
    report(f"{index}: {len(shards)} shard{'s' * (len(shards) > 1)}\n{calling.reading(index, *fields_of(kept))}")
    return max(accounts, key=lambda one: (one.exit_status, sum(one.lost.values())))


def described(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """Return ({dataset: [type, shape of a row, classes]}, {dataset: rows}) of a file."""
    fields: dict[str, Any] = {}
    rows: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            names, number = classes_of(item)
            fields[name] = [str(item.dtype), list(item.shape[1:]), number if names is None else names]
            rows[name] = len(item)

    with h5py.File(file, "r") as opened:
        opened.visititems(visit)
    return fields, rows


def fields_of(fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """Return (paths of fields, names of the fields of ids with varying length)."""
    paths = [name.removesuffix("/values") for name in fields if not name.endswith(("/offsets", "/shapes"))]
    ids = [one.rpartition("/")[2] for one in paths if fields.get(f"{one}/values", [""])[0].startswith(("int", "uint"))]
    return paths, list(dict.fromkeys(ids))


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    """Return the first difference between the fields of the set and of the new shards, as text."""
    name = next(n for n in {**before, **now} if before.get(n) != now.get(n))
    if name not in now or name not in before:
        return f"/{name} is only in {'the set' if name in before else 'the new shards'}"
    return f"/{name} has rows of {before[name]} in the set, but of {now[name]} in the new shards"


class Place:
    """The place of a set: a folder, or a URL that fsspec can write to."""

    def __init__(self, out: str) -> None:
        self.out = out.rstrip("/")
        need("fsspec", f"{shown(out)}: a set of shards", "fsspec")
        with self._asking():
            from fsspec.core import url_to_fs

            self._files, self._root = url_to_fs(self.out)
            self._is_new = not is_remote(self.out) and not os.path.exists(self.out)
            if is_remote(self.out):
                with suppress(PermissionError):  # users who may write only below some prefix
                    self._check_bucket(re.match(r"/*[^/]*", self._root)[0])  # type: ignore[index]
                    self._files.makedirs(self._root, exist_ok=True)
            elif os.path.isfile(self.out):
                raise ConfigError(f"{self.out} is a file; give a folder for a set of shards")
            else:
                os.makedirs(self.out, exist_ok=True)

    def _check_bucket(self, bucket: str) -> None:
        """Raise FileNotFoundError if the bucket (or first folder) is missing: makedirs would create a mistyped one."""
        try:
            if not self._files.exists(bucket):
                self._files.ls(bucket)  # exists() is also False without permission; ls() raises the reason
        except FileNotFoundError:
            raise FileNotFoundError(f"{bucket.strip('/')} does not exist; check the name, or create it first") from None

    def shown(self, name: str) -> str:
        """Return the path or URL of a file of the set, for messages."""
        return f"{shown(self.out) if is_remote(self.out) else Path(self.out).absolute()}/{name}"

    def read_index(self) -> dict[str, Any] | None:
        """Return the index; None if there is none."""
        with self._asking():
            self._files.invalidate_cache()
            path = f"{self._root}/{INDEX}"
            text = self._files.cat_file(path) if self._files.exists(path) else None
        if text is None:
            return None
        shards_in(text, self.shown(INDEX))
        found: dict[str, Any] = json.loads(text)
        return found

    def send(self, file: Path, name: str) -> bool:
        """Write a shard. Return False if it was already there."""
        path = f"{self._root}/{name}"
        with self._asking():
            if self._files.exists(path) and self._files.size(path) == file.stat().st_size:
                return False
            self._whole(path, lambda there: self._files.put_file(str(file), there))
        return True

    def write_index(self, index: dict[str, Any]) -> None:
        """Write the index, and forget a cached one."""
        text = json.dumps(index, indent=1).encode()
        with self._asking():
            self._whole(f"{self._root}/{INDEX}", lambda there: self._files.pipe_file(there, text))
        forget(f"{self.out if is_remote(self.out) else os.path.abspath(self.out)}/{INDEX}")

    def leave(self) -> None:
        """Remove the folder if it was created for this set and is empty."""
        if self._is_new:
            with suppress(OSError):  # not empty: the shards in it are found when the command is repeated
                self._files.rmdir(self._root)

    def remove_all_but(self, kept: set[str]) -> None:
        """Remove the shards that are not in `kept`. Readers that still use the old index can no longer read them."""
        left = []
        try:
            for path in self._files.ls(self._root, detail=False):
                if SHARD.fullmatch(name := path.rpartition("/")[2]) and name not in kept:
                    left.append(name)
                    self._files.rm_file(path)
            print(f"removed {len(left)} shards of the old set\n" * bool(left), end="")
        except Exception as error:  # of any library; the new set is complete
            what = f"{self.shown(left[-1] if left else '')}: cannot be removed: {told(error)}"
            report(f"{what}; please remove all shards that are not in {INDEX}")

    def _whole(self, path: str, write: Callable[[str], Any]) -> None:
        """Write an object or file so that readers never see a part of it. A local file is renamed when complete."""
        if is_remote(self.out):
            write(path)
        else:
            part = Path(f"{path}.part")
            try:
                write(str(part))
                flush(part, os.O_RDWR)
                part.replace(path)
            finally:
                part.unlink(missing_ok=True)
            flush(part.parent, os.O_RDONLY)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except ConfigError:
            raise
        except ImportError as error:
            raise ConfigError(f"{shown(self.out)}: {first_line(error)} - {pip_install('fsspec s3fs')}") from None
        except Exception as error:  # of any library
            raise ConfigError(f"{shown(self.out)}: {told(error)}; the set was not changed") from error
