"""Open each file of a set once, and remember in this process how its fields are stored. No torch.

The probe of a config, all splits and all data sets of a process, and processes forked from it, use the same
descriptions. A file is opened again if its device, inode, size or times have changed. A file that changed in the last
seconds is not remembered, because another change could leave its times and size equal.

The shards of a set often have one size. HDF5 opens the first of them. The others are compared with it: if all bytes
except the values of datasets are equal, HDF5 would find the same fields at the same offsets, so it need not open them.
"""

from __future__ import annotations

import io
import os
import pickle
import stat
import time
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.cf import packing_of
from h5rows.conventions.detect import is_plain_like, kind_of
from h5rows.conventions.opening import How, Names, Opened
from h5rows.errors import ConfigError, argument
from h5rows.reading.copies import open_file
from h5rows.reading.external import REFUSE_EXTERNAL, items_below
from h5rows.reading.fields import Field, Fixed
from h5rows.reading.finding import UNREADABLE, find
from h5rows.reading.layout import extents
from h5rows.reading.opening import is_remote
from h5rows.reading.raw import ChunkCache, RawFile, raw_file
from h5rows.reading.shared import kept
from h5rows.reading.similar import Similar
from h5rows.reading.stored import File, Identity, identity, state_of

_RECENT_NS = 2 * 10**9  # the coarsest times of a file system
_MOST_BYTES = 64 << 20  # remembered tables and arrays of all files
_MOST_COMPARED = 1 << 20  # bytes of a file outside of its values
_MOST_ALIKE_BYTES = 16 << 20  # of all reference files that are kept
_DAMAGED = (ConfigError, OSError, RuntimeError, LookupError, ValueError, TypeError, MemoryError)  # errors of h5py


@dataclass
class Group:
    """The fields of one group of a file.

    fields: name in the batch -> (field, names of its classes). lacks: as `Opened.rows_without_value`. fills: as in
    Opened. num_classes: field -> number in the attribute `classes`, None if there is none; a field is missing if the
    attribute cannot be read.
    """

    fields: dict[str, tuple[Any, Names]]
    lacks: np.ndarray | None
    fills: dict[str, float | str]
    num_classes: dict[str, int | None]


@dataclass
class _File:
    """What is remembered of a file: its state, and its groups. Their fields are without open files (`_Closed`)."""

    state: tuple[int, ...]
    groups: dict[str, Group]
    nbytes: int = 0


@dataclass
class _Alike:
    """The reference for files of one size. parts: (offset, bytes) of everything except the values of datasets."""

    groups: dict[str, Group]
    parts: list[tuple[int, bytes]]

    @property
    def nbytes(self) -> int:
        """Return the memory of its bytes and of its tables."""
        tables = sum(map(_nbytes, self.groups.values()))
        return 1024 + tables + sum(len(part) for _, part in self.parts)


class _Remembered(OrderedDict[tuple[str, How], _File]):
    """The files that were described, at most _MOST_BYTES of them; the first remembered are dropped first.

    A file that alone is larger is kept in `reading_once` only, for the other splits of its data set."""

    nbytes = 0

    def find(self, path: str, how: How) -> _File | None:
        """Return what is remembered of a file."""
        return self.get((path, how)) or (kept() or dict[Any, Any]()).get((path, how))

    def put(self, path: str, how: How, known: _File, nbytes: int) -> None:
        """Remember a file, unless it changed recently. nbytes: the memory of its tables and arrays."""
        now, times = time.time_ns(), known.state[3:5]  # a copy may keep the old mtime; its ctime is new
        if any(abs(now - changed) < _RECENT_NS for changed in times):
            return
        self.drop((path, how))
        known.nbytes = nbytes + 1024
        if known.nbytes > _MOST_BYTES:
            if (block := kept()) is not None:
                block[path, how] = known
            return
        self[path, how] = known
        self.nbytes += known.nbytes
        while self.nbytes > _MOST_BYTES:
            self.drop(next(iter(self)))

    def drop(self, key: tuple[str, How]) -> None:
        """Forget a file."""
        self.nbytes -= known.nbytes if (known := self.pop(key, None)) is not None else 0


class _References(OrderedDict[tuple[int, How], _Alike]):
    """(Size of the file, arguments) -> the reference. The first added are dropped until the others have at most
    _MOST_ALIKE_BYTES; the last one is kept."""

    nbytes = 0

    def put(self, size: int, how: How, alike: _Alike) -> None:
        """Keep a reference for files of a size that has none."""
        self[size, how] = alike
        self.nbytes += alike.nbytes
        while self.nbytes > _MOST_ALIKE_BYTES and len(self) > 1:
            self.nbytes -= self.popitem(last=False)[1].nbytes


_files = _Remembered()
_alike = _References()


def groups_of_files(files: Sequence[str], group: str, how: How, cache: ChunkCache) -> Iterator[Group]:
    """Yield the group of each file, opened. Raise ConfigError if it cannot be opened. cache: of decoded chunks."""
    keeps = not how.swmr and how.external == REFUSE_EXTERNAL and _is_hashable(how)
    sizes = Counter(map(_size, files)) if keeps and len(files) > 1 else Counter()
    similar = _SimilarFiles(group, how) if keeps else None
    for name in files:
        if similar is None or is_remote(name):
            with open_file(name, how.swmr, how.cache_gb) as file:
                yield _group(Opened(file, group, cache, how))
            continue
        found = _remembered(name, group, how, cache)
        yield _described(name, group, how, cache, sizes, similar) if found is None else found


def _is_hashable(how: How) -> bool:
    try:
        hash(how)
    except TypeError:  # an invalid argument; Opened raises the error
        return False
    return True


def _size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:  # opening it raises the error
        return -1


def _remembered(path: str, group: str, how: How, cache: ChunkCache) -> Group | None:
    """Return a group of a file that is remembered or equals its reference; None for other files. Does not use HDF5."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    state, known = state_of(found), _files.find(path, how)
    if known is None or known.state != state:
        alike = _alike.get((found.st_size, how))
        if alike is None or not stat.S_ISREG(found.st_mode) or not _is_alike(path, state[:4], alike):
            return None
        known = _File(state, alike.groups)
        _files.put(path, how, known, 0)
    kept = known.groups.get(group)
    return None if kept is None else _opened(kept, path, state[:4], cache)


def _is_alike(path: str, identity: Identity, alike: _Alike) -> bool:
    """Return True if a file has the same bytes as another one outside of the values, among them HDF5's mark of a file
    that is open for writing."""
    try:
        file = raw_file(path, identity)
        if any(file.read(len(part), offset) != part for offset, part in alike.parts):
            return False
        file.check()
    except (ConfigError, OSError):  # HDF5 raises the error
        return False
    return True


class _SimilarFiles:
    """The files of a set that were described in full, to describe others from them."""

    def __init__(self, group: str, how: How) -> None:
        names = {(of, field): name for of in (group, *how.groups) for field, name in how.fields}
        self._how, self._fields = how, Similar(names, how.decode)
        self._fills: dict[str, float | str] = {}
        self._names: list[str] = []  # in the root of a plain file

    def add(self, file: File, groups: dict[str, Group]) -> None:
        """Add a file. groups: its groups, without open files."""
        for name, group in groups.items():
            self._fills = group.fills
            for field, (closed, names) in group.fields.items():
                plain = group.lacks is None and names is None and group.num_classes.get(field, UNREADABLE) is None
                if plain and closed.fixed is not None:
                    self._names = self._names or list(file)
                    self._fields.add(file, (name, field), closed.fixed)

    def groups(self, file: File, path: str, identity: Identity) -> dict[str, Group] | None:
        """Return all groups of a file, without open files; None if it must be described in full."""
        found = self._fields.fields(file, path, identity)
        if found is None:
            return None
        if self._how.decode and not is_plain_like(file, self._names) and kind_of(file) != "plain":
            return None
        fields: dict[str, dict[str, tuple[Any, Names]]] = defaultdict(dict)
        for (group, name), field in found.items():
            fields[group][name] = _Closed(field), None
        return {name: Group(held, None, self._fills, dict.fromkeys(held)) for name, held in fields.items()}


def _described(
    path: str, group: str, how: How, cache: ChunkCache, sizes: Mapping[int, int], similar: _SimilarFiles
) -> Group:
    """Open a file; return its group, and add it to the remembered groups of this file."""
    made = None
    with open_file(path) as file:
        state = state_of(os.stat(file.id.get_vfd_handle()))
        groups = similar.groups(file, path, state[:4])
        if groups is None:
            opened = Opened(file, group, cache, how)
            made = _group(opened)
            before = _files.find(path, how)
            groups = dict(before.groups) if before is not None and before.state == state else {}
            with suppress(*_DAMAGED):
                groups[group] = _closed(made)
            for other in how.groups:
                with suppress(*_DAMAGED):  # the error is raised when that split is opened
                    if other not in groups and (plain := _plain_group(file, other, how, opened.kind)) is not None:
                        groups[other] = _closed(plain)
            similar.add(file, groups)
        if groups:
            _files.put(path, how, _File(state, groups), sum(map(_nbytes, groups.values())))
        if sizes.get(state[2], 0) > 1 and (state[2], how) not in _alike and set(how.groups) <= set(groups):
            with suppress(*_DAMAGED):
                if (alike := _alike_to(file, groups)) is not None:
                    _alike.put(state[2], how, alike)
    return _opened(groups[group], path, state[:4], cache) if made is None else made


def _group(opened: Opened) -> Group:
    fields = {name: opened.field(name) for name in opened.names}
    return Group(fields, opened.rows_without_value(), opened.fills, opened.num_classes)


def _plain_group(file: h5py.File, group: str, how: How, kind: str) -> Group | None:
    """Return a group if all its fields are datasets of numbers, whose description reads no values; otherwise None."""
    opened, places = Opened(file, group, ChunkCache(0), how, kind), {}
    if kind != "plain" or any(fill == fill for fill in opened.fills.values()):
        return None
    for field, name in how.fields:
        item, member = places[field] = find(file, group, name, argument(f"fields.{field}"), how.external)
        if not isinstance(item, h5py.Dataset) or member is not None or item.dtype.kind not in "biufc":
            return None
        if how.decode and (packing_of(item, False) is not None or "categories" in item.attrs):
            return None
    fields = {field: opened.field(field, place) for field, place in places.items()}
    return Group(fields, None, opened.fills, opened.num_classes)


def _alike_to(file: h5py.File, groups: Mapping[str, Group]) -> _Alike | None:
    """Return what to compare other files with; None if some field is not mapped (compressed files differ in the sizes
    of their chunks), or if comparing would take long."""
    if any(one.way != "mapped" for group in groups.values() for one, _ in group.fields.values()):
        return None
    values: list[tuple[int, int]] = []
    for _, item in items_below(file):
        if item is None:
            return None
        if isinstance(item, h5py.Dataset):
            values += extents(item)
    parts, end, size = [], 0, identity(file)[2]
    for begin, stop in [*sorted(values), (size, size)]:
        if begin > end:
            parts.append((end, begin - end))
        end = max(end, stop)
    if sum(length for _, length in parts) > _MOST_COMPARED:
        return None
    whole = raw_file(file.filename, identity(file))
    return _Alike(dict(groups), [(begin, whole.read(length, begin)) for begin, length in parts])


class _Closed:
    """A field without open files: a Fixed, or the pickle of another field and its arrays."""

    def __init__(self, field: Field) -> None:
        self.fixed = field.closed() if isinstance(field, Fixed) else None
        self.way = field.way if self.fixed is not None else "pickled"
        self.buffers: list[pickle.PickleBuffer] = []
        self.nbytes = 0 if self.fixed is None else self.fixed.table_bytes
        if self.fixed is None:
            out = io.BytesIO()
            _Pickler(out, protocol=5, buffer_callback=self.buffers.append).dump(field)
            self.pickled = out.getvalue()
            self.nbytes = len(self.pickled) + sum(buffer.raw().nbytes for buffer in self.buffers)

    def opened(self, path: str, identity: Identity, cache: ChunkCache) -> Field:
        """Return the field of a file that was described or equals its reference."""
        if self.fixed is not None:
            return self.fixed.of_file(path, identity, cache)
        unpickler = _Unpickler(io.BytesIO(self.pickled), buffers=self.buffers)
        unpickler.cache = cache
        found: Field = unpickler.load()
        return found


class _Pickler(pickle.Pickler):
    """Pickle a field without its cache and without its files."""

    def persistent_id(self, thing: Any) -> tuple[Any, ...] | None:
        if isinstance(thing, RawFile):
            return thing.path, thing.identity
        return () if isinstance(thing, ChunkCache) else None


class _Unpickler(pickle.Unpickler):
    cache: ChunkCache

    def persistent_load(self, place: tuple[Any, ...]) -> Any:
        return raw_file(*place) if place else self.cache


def _closed(group: Group) -> Group:
    fields = {name: (_Closed(field), names) for name, (field, names) in group.fields.items()}
    return replace(group, fields=fields)


def _opened(group: Group, path: str, identity: Identity, cache: ChunkCache) -> Group:
    fields = {name: (closed.opened(path, identity, cache), names) for name, (closed, names) in group.fields.items()}
    return replace(group, fields=fields)


def _nbytes(group: Group) -> int:
    lacks = 0 if group.lacks is None else group.lacks.nbytes
    return lacks + sum(closed.nbytes + 1024 for closed, _ in group.fields.values())
