"""Open HDF5 files, resolve paths and splits, and convert errors of HDF5 to messages with a remedy. No torch."""

from __future__ import annotations

import os
import re
import resource
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from glob import glob
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import h5py
from h5py._objects import phil  # h5py's lock: a second lock, held while h5py waits for its own, could deadlock

from h5rows.errors import IS_POINTER, LFS_POINTER, ConfigError, argument, as_typed, machine_fault
from h5rows.reading.folders import is_remote
from h5rows.reading.listed import is_index, listed
from h5rows.reading.stored import File, Identity, identity, state_of


def names_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """Return the files of a path, a pattern with *, an index of shards, or a list of these, in this order.

    Local paths become absolute. Raise ConfigError if a local file does not exist.
    """
    names = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    if not all(isinstance(name, (str, os.PathLike)) for name in names):
        raise ConfigError(f"{argument('path')}={path}: expected a file, a pattern or a list of files")
    files: list[str] = []
    for name in map(os.path.expanduser, map(str, names)):
        if is_index(name):
            files += listed(name if is_remote(name) else os.path.abspath(name))
            continue
        if is_remote(name):
            files.append(name)
            continue
        found = [name] if Path(name).exists() else sorted(glob(name))
        if not found:
            raise ConfigError(f"{argument('path')}={name}: no such file (the current directory is {Path.cwd()})")
        files += [os.path.abspath(file) for file in found]
    if not files:
        raise ConfigError(f"{argument('path')} is empty: give a file, a pattern or a list of files")
    return files


def check_same(path: str, was: Identity, now: Identity, growing: bool = False) -> None:
    """Raise ConfigError if a file was replaced, truncated or changed. growing: a SWMR writer may append to it."""
    if now == was:
        return
    if now[:2] != was[:2]:
        raise ConfigError(f"{path} was replaced by another file while this run had it open; start the run again")
    if now[2] < was[2]:
        raise ConfigError(f"{path} has {now[2]} bytes, and had {was[2]} before: it was truncated; write it again")
    if not growing:
        raise ConfigError(f"{path} was changed while this run had it open; start the run again")


@contextmanager
def open_h5(path: str | os.PathLike[str], swmr: bool = False) -> Iterator[File]:
    """Open a file in its current state. Raise ConfigError if it cannot be opened, and for errors of h5py in the
    block."""
    with phil:
        _close_held(None if swmr else os.path.abspath(path))
        file = _open(path, swmr)
    try:
        with named(path):
            yield file
    finally:
        for reader in list(BORROWERS):  # also readers of linked files, which stay open when this file is closed
            reader.give_back()
        BORROWERS.clear()
        file.close()


@contextmanager
def named(what: object) -> Iterator[None]:
    """Convert errors of h5py in this block to a ConfigError of one line about `what`."""
    try:
        yield
    except (ConfigError, BrokenPipeError):  # the pipe of the output is not the file that is read
        raise
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError, MemoryError) as error:  # h5py's
        raise unreadable(what, error) from error


BORROWERS: WeakSet[Any] = WeakSet()  # readers that use a dataset of a file that is open in a block of open_h5


class Held:
    """A handle that this process keeps open as long as this object exists."""

    def __init__(self, path: str, swmr: bool) -> None:
        self.path, self.swmr = path, swmr
        self.users = 0  # threads that read with it
        self.file = _open(path, swmr)
        self.identity, self._state = identity(self.file), state_of(os.stat(self.file.id.get_vfd_handle()))

    def is_outdated(self) -> bool:
        """Return True if the file was rewritten after this handle was opened."""
        try:
            return not self.swmr and self._state != state_of(os.stat(self.path))
        except OSError:  # removed: existing readers may continue
            return False


def most_open() -> int:
    """Return how many descriptors h5rows keeps open for reading by offset, and how many HDF5: each a quarter of the
    process's limit (`ulimit -n`)."""
    limit, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(8, (1 << 16 if limit == resource.RLIM_INFINITY else limit) // 4)


# (process, path, swmr) -> open handle, the first opened first
_held: WeakValueDictionary[tuple[int, str, bool], Held] = WeakValueDictionary()


def hold(path: str, swmr: bool) -> Held:
    """Return this process's handle of a file, which all readers through h5py share.

    As long as a handle is open, HDF5 shows the file as it was when that handle was opened. So handles of files that
    were rewritten are closed first; and if a SWMR writer's file is opened, all handles of this process are. If more
    than `most_open()` are open, the one that was opened first is closed. Readers then request a new handle.
    """
    key = (os.getpid(), os.path.abspath(path), swmr)
    with phil:
        _close_held(key[1])
        held = _held.get(key)
        if held is None or not held.file:
            _make_room()
            held = _held[key] = Held(path, swmr)
        return held


def _make_room() -> None:
    """Close the handles of this process that were opened first and are not used now, if there are too many."""
    own = [key for key in list(_held) if key[0] == os.getpid()]
    for key in own[: max(0, len(own) + 1 - most_open())]:
        if (first := _held.get(key)) is not None and not first.users:
            _close(key, first)


def _close_held(path: str | None) -> None:
    """Close this process's handles of a file that was rewritten; None: all of its handles."""
    for key, held in list(_held.items()):
        if key[0] == os.getpid() and (path is None or (key[1] == path and held.is_outdated())):
            _close(key, held)


def _close(key: tuple[int, str, bool], held: Held) -> None:
    del _held[key]
    held.file.close()


def _open_alike(path: str | os.PathLike[str], swmr: bool) -> File:
    """Open a file with the access properties of h5py.File, so that the program can open it too.

    HDF5 requires equal properties, also for files that links and virtual datasets lead to. If a file cannot be locked,
    as on some network file systems, or is open without a lock, it is opened without a lock.
    """
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    try:
        return File(h5py.h5f.open(os.fsencode(path), flags, fapl=_access()))
    except OSError as error:
        if "lock" not in str(error):
            raise
    access = _access().copy()
    access.set_file_locking(False, True)
    return File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))


@cache
def _access() -> Any:
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)  # the default reads 21 times as many bytes as requested for rows of 3 KB
    return access


def check_regular(path: str | os.PathLike[str]) -> None:
    """Raise ConfigError for a pipe or a device, because HDF5 would wait for it. For a folder, HDF5 raises an error."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is not a regular file (a pipe or a device); give an HDF5 file")


def _open(path: str | os.PathLike[str], swmr: bool = False) -> File:
    try:
        check_regular(path)
        file = _open_alike(path, swmr)
        if file.id.get_intent() & h5py.h5f.ACC_RDWR and not swmr:
            file.close()
            raise ConfigError(f"{path} is open for writing in this program, so it may be incomplete; close it first")
        return file
    except (OSError, RuntimeError) as error:
        if not Path(path).exists():
            raise ConfigError(f"{path} does not exist (the current directory is {Path.cwd()})") from None
        if Path(path).is_dir():
            raise ConfigError(f"{path} is a directory; give the file") from None
        if "file signature" in str(error):
            with open(path, "rb") as plain:
                begin = plain.read(32)
            if said := next((said for magic, said in OTHERS.items() if begin.startswith(magic)), None):
                raise ConfigError(f"{path} {said}") from None
        raise unreadable(path, error, "opened") from error


OTHERS = {  # the beginning of files that are often given in place of HDF5 -> what they are
    LFS_POINTER: IS_POINTER,
    b"CDF": "is a netCDF-3 file; convert it with `nccopy -k nc4 OLD NEW`",
    b"MATLAB 5.0 MAT-file": "is an older MATLAB file; save it with save(..., '-v7.3')",
}
_HINTS = {  # words in a message of HDF5 -> their meaning
    "(degree|values) do(es)?n't match|not the same for": "this program has it, or a file that leads to it, open with "
    "other properties; open both with the same ones (locking, swmr), or close one",
    "unable to lock": "another program has it open for writing; to read it anyway, set HDF5_USE_FILE_LOCKING=FALSE",
    "doesn't exist|component not found": "the link leads to nothing",
    "too many links": "the link leads to itself",
    "not already open for SWMR": "no SWMR writer has it open; leave out {swmr}",
    "already open for": "it is being written ({swmr} reads a SWMR writer's file), or its writer was killed; then "
    "`h5clear -s FILE` of HDF5's tools may recover what was flushed",
    "truncated": "it is truncated, perhaps because its copy or its writer was interrupted; copy or write it again",
    "file signature": "it is not an HDF5 file, or its beginning is damaged",
    "filter returned failure": "its stored data are damaged; copy or write it again",
    "not registered|open directory|plugin": "it needs a filter that this HDF5 lacks; `inspect` prints its name",
    "version": "its writer was killed before it wrote all, it is damaged there, or it was written by a newer HDF5 than "
    f"{h5py.version.hdf5_version}; write it again",
    "checksum|signature|corrupt|overflow|past end|ran off|EOA|heap|bad |wrong |greater than": "it is damaged there; "
    "copy or write it again",
    "external raw data|can't open file": "a file that contains its values is missing, or may not be read",
}


def unreadable(what: object, error: BaseException, done: str = "read") -> ConfigError:
    """Return a ConfigError with the library's message and its meaning, if known, or with the system's error.

    what: the file or dataset. done: the action that failed, a participle.
    """
    if fault := machine_fault(error):
        return ConfigError(f"{what}: cannot be {done}: {fault}")
    said = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or type(error).__name__
    hint = next((hint for words, hint in _HINTS.items() if re.search(words, said)), "h5dump may print details")
    hint = hint.replace("{swmr}", argument("swmr", True))
    return ConfigError(f"{what}: cannot be {done} ({said.splitlines()[0]}): {hint}")


def split_of(splits: Mapping[str, Mapping[str, Any] | None], split: str, in_table: bool = False) -> Mapping[str, Any]:
    """Return the entry of a split. Raise ConfigError if it is missing, null or invalid. in_table: the group may be
    None, because a table has no groups."""
    if not isinstance(splits, Mapping):
        example = as_typed({"train": {"group": "train"}, "val": None})
        raise ConfigError(f"{argument('splits')}={splits}: expected a mapping, such as {example}")
    if split not in splits:
        raise ConfigError(f"{argument('splits')} has no {split!r}; it has {sorted(splits)}")
    entry, key = splits[split], argument(f"splits.{split}")
    if entry is None:
        raise ConfigError(f"{key} is {as_typed(None)}, so there is no such split; give a group, or shares of the rows")
    if not isinstance(entry, Mapping):
        either = f"{as_typed({'group': 'train'})}, or {as_typed(None)}"
        raise ConfigError(f"{key}={entry}: expected a mapping, such as {either}")
    if unknown := sorted(set(entry) - {"group", "rows", "index", "by", "seed", "fold"}, key=str):
        raise ConfigError(f"{key} has {unknown[0]!r}; allowed: group, rows, index, by, seed and fold")
    rows, index = entry.get("rows"), entry.get("index")
    if rows is not None and not (isinstance(rows, Sequence) and all(isinstance(r, (int, float)) for r in rows)):
        raise ConfigError(f"{key}.rows={rows}: must be two shares, such as [0, 0.9], or {as_typed(None)}")
    if index is not None and not isinstance(index, str):
        raise ConfigError(f"{key}.index={index}: expected the name of a dataset, or {as_typed(None)}")
    if (seed := entry.get("seed")) is not None and not isinstance(seed, int):
        raise ConfigError(f"{key}.seed={seed}: must be a whole number, or {as_typed(None)}")
    if entry.get("fold") not in (None, "train", "val"):
        raise ConfigError(f"{key}.fold={entry['fold']}: must be train, val or {as_typed(None)}")
    if "group" not in entry or not isinstance(group := entry["group"], str | None if in_table else str):
        what = f".group={as_typed(group)}: expected the name of a group" if "group" in entry else " has no group"
        raise ConfigError(f"{key}{what}; for the file's root, write '/'")
    return entry


def groups_of(splits: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Return the groups of the splits, without duplicates, starting with the training split (otherwise the first
    one)."""
    there = sorted((split for split in splits if splits[split] is not None), key=lambda split: split != "train")
    return list(dict.fromkeys(split_of(splits, split)["group"] for split in there or ["train"]))


def shares_of(text: str, by: str | None, key: str, folds: int | None = None) -> dict[str, dict[str, Any] | None]:
    """Return the splits train, val and test for shares in percent, such as 80/10/10, of a file without groups for them.

    by: as in the entries of `splits`. key: the name of the argument in messages. folds: of a cross-validation, whose
    validation split is a part of train; then the share of val must be 0, and that of test may be 0.
    """
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        raise ConfigError(f"{key}={text}: must be percentages of train, val and test, such as 80/10/10 or 80/20")
    sizes = [float(part) for part in parts]
    if folds is not None and (len(sizes) < 3 or sizes[1] or not sizes[0] or abs(sum(sizes) - 100) > 1e-9):
        what = f"{key}={text}: with {argument('folds', folds)} each fold is the validation split of a run"
        raise ConfigError(f"{what}; write 80/0/20 for 20 % test rows that are in no fold, or 100/0/0")
    if abs(sum(sizes) - 100) > 1e-9 or not (folds or all(sizes)):
        raise ConfigError(
            f"{key}={text}: each percentage must be > 0, and their sum must be 100; 80/0/20 is for {argument('folds')}"
        )
    ends = [0.0, *(round(sum(sizes[: k + 1]) / 100, 10) for k in range(len(sizes)))]
    made: dict[str, dict[str, Any] | None] = {"train": None, "val": None, "test": None}
    for name, begin, end in zip(made, ends, ends[1:]):
        if begin < end:
            made[name] = {"group": "/", "rows": [begin, end], "index": None, "by": by}
    return made
