"""A set as shards at an address or in a folder, with an index of them.

    bucket/set/index.json             the shards: their names, sizes, SHA-256, rows; what each row holds. Written last
    bucket/set/00000-1f3a….h5         a shard; the digest is in its name, so nothing is ever written over

A reader of index.json sees the set of before or of after. A pack that was killed leaves shards that no index names; the
same command finds them and sends what is missing; --overwrite removes all that its index does not name. Shards are made
one at a time: the disk needs room for one.
"""

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
import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line, need, pip_install, report
from h5rows.packing.file import flush
from h5rows.program import calling
from h5rows.reading.finding import stated_classes
from h5rows.reading.folders import is_remote, shown
from h5rows.reading.listed import INDEX, digest_of, forget, shards_in
from h5rows.reading.sources import told
from h5rows.reading.texts import name_of

SHARD = re.compile(r"\d{5,}-[0-9a-f]{12}\.h5")
Make = Callable[[str, tuple[int, int]], Account]  # (a local file, (i, n)): writes the i-th of n shares into it


def pack_shards(make: Make, out: str, count: int, append: bool, overwrite: bool) -> Account:
    """Write `count` shards and their index at `out`, an address or a folder. append: to the set that is there.

    Returns the account of the shard of which most was left out."""
    place = Place(out)
    try:
        return _packed_at(place, make, out, count, append, overwrite)
    except BaseException:
        place.leave()
        raise


def _packed_at(place: Place, make: Make, out: str, count: int, append: bool, overwrite: bool) -> Account:
    before, name = place.read_index(), shown(out)
    if before is not None and not (append or overwrite):
        raise ConfigError(f"{name}: a set is there; append=True adds to it, overwrite=True begins another")
    if before is None and append:
        raise ConfigError(f"{name}: no {INDEX} is there to add to; leave append=True out")
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
                raise ConfigError(f"{name}: {difference(kept, fields)}; a set has one kind of rows")
            digest, size = digest_of(file), file.stat().st_size
            if digest in there:
                raise ConfigError(
                    f"{name}: {there[digest]} of the set is the same as shard {i + 1} of {count} of what is added, so "
                    "rows would be there twice; the set is as it was - pack new rows alone with append=True, or all "
                    "anew with overwrite=True"
                )
            shard = f"{len(shards):05}-{digest[:12]}.h5"
            sent = place.send(file, shard)
            print(f"{i + 1} of {count}: {shard}, {size / 1e6:,.1f} MB" + ("" if sent else ", was there"))
            shards.append({"file": shard, "bytes": size, "sha256": digest, "rows": rows})
            file.unlink()
    if append and place.read_index() != before:
        raise ConfigError(f"{name}: another command has changed {INDEX} meanwhile; the same command again adds this")
    place.write_index({"h5rows": 1, "fields": kept, "shards": shards})
    if overwrite and not append:
        place.remove_all_but({one["file"] for one in shards})
    index = place.shown(INDEX)
    report(f"{index}: {len(shards)} shard{'s' * (len(shards) > 1)}\n{calling.reading(index, *fields_of(kept))}")
    return max(accounts, key=lambda one: (one.exit_status, sum(one.lost.values())))


def described(file: Path) -> tuple[dict[str, Any], dict[str, int]]:
    """({dataset: [type, shape of a row, classes]}, {dataset: rows})."""
    fields: dict[str, Any] = {}
    rows: dict[str, int] = {}

    def visit(name: str, item: Any) -> None:
        if isinstance(item, h5py.Dataset) and item.shape:
            fields[name] = [str(item.dtype), list(item.shape[1:]), classes_of(item)]
            rows[name] = len(item)

    with h5py.File(file, "r") as opened:
        opened.visititems(visit)
    return fields, rows


def classes_of(item: h5py.Dataset) -> int | list[str] | None:
    """How many classes the dataset says it has, or which."""
    found = stated_classes(item)
    return None if found is None else int(found) if np.ndim(found) == 0 else [name_of(one) for one in found]


def fields_of(fields: dict[str, Any]) -> tuple[list[str], list[str]]:
    """(paths of fields, names of those of ids of different length)."""
    paths = [name.removesuffix("/values") for name in fields if not name.endswith(("/offsets", "/shapes"))]
    ids = [one.rpartition("/")[2] for one in paths if fields.get(f"{one}/values", [""])[0].startswith(("int", "uint"))]
    return paths, list(dict.fromkeys(ids))


def difference(before: dict[str, Any], now: dict[str, Any]) -> str:
    name = next(n for n in {**before, **now} if before.get(n) != now.get(n))
    if name not in now or name not in before:
        return f"/{name} is in {'the set' if name in before else 'what is added'} alone"
    return f"/{name} has rows of {before[name]} in the set, and of {now[name]} in what is added"


class Place:
    """Where a set lies: an address that fsspec can write to, or a folder."""

    def __init__(self, out: str) -> None:
        self.out = out.rstrip("/")
        need("fsspec", f"{shown(out)}: a set of shards", "fsspec")
        with self._asking():
            from fsspec.core import url_to_fs

            self._is_new = False
            self._files, self._root = url_to_fs(self.out)
            with suppress(PermissionError):  # who may write below some prefix alone
                if is_remote(self.out):
                    self._check_bucket(re.match(r"/*[^/]*", self._root)[0])  # type: ignore[index]
                self._is_new = not self._files.exists(self._root)
                self._files.makedirs(self._root, exist_ok=True)

    def _check_bucket(self, bucket: str) -> None:
        """makedirs would make one of a name that was mistyped. bucket: or the first folder, where there are none."""
        try:
            if not self._files.exists(bucket):
                self._files.ls(bucket)  # s3fs says so, too, where nobody may ask: this raises the reason
        except FileNotFoundError:
            raise FileNotFoundError(f"there is no {bucket.strip('/')}, perhaps mistyped; make it first") from None

    def shown(self, name: str) -> str:
        return f"{shown(self.out) if is_remote(self.out) else Path(self.out).absolute()}/{name}"

    def read_index(self) -> dict[str, Any] | None:
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
        """Returns whether it was not there."""
        path = f"{self._root}/{name}"
        with self._asking():
            if self._files.exists(path) and self._files.size(path) == file.stat().st_size:
                return False
            self._whole(path, lambda there: self._files.put_file(str(file), there))
        return True

    def write_index(self, index: dict[str, Any]) -> None:
        text = json.dumps(index, indent=1).encode()
        with self._asking():
            self._whole(f"{self._root}/{INDEX}", lambda there: self._files.pipe_file(there, text))
        forget(f"{self.out if is_remote(self.out) else os.path.abspath(self.out)}/{INDEX}")

    def leave(self) -> None:
        """Remove the folder that was made for a set, if nothing came of it."""
        if self._is_new and not is_remote(self.out):
            with suppress(OSError):  # it holds shards, which the same command finds
                self._files.rmdir(self._root)

    def remove_all_but(self, kept: set[str]) -> None:
        """Shards that no index names any more; who holds the index of before can no longer read them."""
        left = []
        try:
            for path in self._files.ls(self._root, detail=False):
                if SHARD.fullmatch(name := path.rpartition("/")[2]) and name not in kept:
                    left.append(name)
                    self._files.rm_file(path)
            print(f"removed {len(left)} shards of the set before\n" * bool(left), end="")
        except Exception as error:  # of any library; the new set is whole
            what = f"{self.shown(left[-1] if left else '')}: cannot be removed: {told(error)}"
            report(f"{what}; remove the shards that {INDEX} does not name yourself")

    def _whole(self, path: str, write: Callable[[str], Any]) -> None:
        """A bucket's objects appear whole; a file gets its name when it is."""
        if is_remote(self.out):
            write(path)
        else:
            write(f"{path}.part")
            flush(Path(f"{path}.part"), os.O_RDWR)
            Path(f"{path}.part").replace(path)
            flush(Path(path).parent, os.O_RDONLY)

    @contextmanager
    def _asking(self) -> Iterator[None]:
        try:
            yield
        except ImportError as error:
            raise ConfigError(f"{shown(self.out)}: {first_line(error)} - {pip_install('fsspec s3fs')}") from None
        except Exception as error:  # of any library
            raise ConfigError(f"{shown(self.out)}: {told(error)}; the set is as it was") from error
