"""Open HDF5 files and find what is in them; errors say what there is instead. No torch."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any
from weakref import WeakSet, WeakValueDictionary

import h5py
from h5py._objects import phil  # its lock: a second one, held while h5py waits for its own, could deadlock

from h5rows.errors import ConfigError, as_typed, machine_fault
from h5rows.reading.folders import is_remote
from h5rows.reading.listed import is_index, listed


def names_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """A file, a pattern with *, an index of shards, or a list of these -> the files, in this order; every local one
    exists."""
    names = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    if not all(isinstance(name, (str, os.PathLike)) for name in names):
        raise ConfigError(f"data.path={path}: expected a file, a pattern or a list of files")
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
            raise ConfigError(f"data.path={name}: no such file (the current directory is {Path.cwd()})")
        files += [os.path.abspath(file) for file in found]
    if not files:
        raise ConfigError("data.path is empty: give a file, a pattern or a list of files")
    return files


Identity = tuple[int, int, int, int]  # device, inode, size, time of the last change


def identity(file: h5py.File | str | int) -> Identity:
    """Of the file that a handle has open, whatever its path leads to now; or of a path or a descriptor."""
    if isinstance(file, h5py.File) and is_remote(file.filename):  # of which each answer is checked
        return 0, 0, file.id.get_filesize(), 0
    found = os.stat(file.id.get_vfd_handle() if isinstance(file, h5py.File) else file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def check_same(path: str, was: Identity, now: Identity, growing: bool = False) -> None:
    """growing: by a SWMR writer, which adds to the file."""
    if now == was:
        return
    if now[:2] != was[:2]:
        raise ConfigError(f"{path} was replaced by another file while this run had it open; start the run again")
    if now[2] < was[2]:
        raise ConfigError(f"{path} has {now[2]} bytes, and had {was[2]} before: it was cut short; write it again")
    if not growing:
        raise ConfigError(f"{path} was changed while this run had it open; start the run again")


@contextmanager
def open_h5(path: str | os.PathLike[str], swmr: bool = False) -> Iterator[h5py.File]:
    """The file as it is now. ConfigError where it cannot be opened, or what h5py raises in the block."""
    with phil:
        _close_held(None if swmr else os.path.abspath(path))
        file = _open(path, swmr)
    try:
        with named(path):
            yield file
    finally:
        for reader in list(BORROWERS):  # of what links lead to, too, which closing this file leaves open
            reader.give_back()
        BORROWERS.clear()
        file.close()


@contextmanager
def named(what: object) -> Iterator[None]:
    """What h5py raises in this block becomes one line about `what`."""
    try:
        yield
    except (ConfigError, BrokenPipeError):  # a pipe that we print to is no file that we read
        raise
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError, MemoryError) as error:  # what h5py may raise
        raise unreadable(what, error) from error


BORROWERS: WeakSet[Any] = WeakSet()  # readers by a dataset of a file that is open in a block of open_h5


class Held:
    """A handle of a file that this process keeps open, until nobody has this object any more."""

    def __init__(self, path: str, swmr: bool) -> None:
        self.path, self.swmr = path, swmr
        self.file = _open(path, swmr)
        self.identity = identity(self.file)

    def is_outdated(self) -> bool:
        """It shows a file that was written anew."""
        try:
            return not self.swmr and self.identity != identity(self.path)
        except OSError:  # removed: who holds it may read on
            return False


_held: WeakValueDictionary[tuple[int, str, bool], Held] = WeakValueDictionary()  # by process, path, swmr


def hold(path: str, swmr: bool) -> Held:
    """This process's handle of a file: one for all that read it through h5py. As long as any is open, HDF5 shows the
    file as that one found it: those of files that were written anew are closed, and so are, where a SWMR writer's file
    is opened, all of this process; readers hold theirs again."""
    key = (os.getpid(), os.path.abspath(path), swmr)
    with phil:
        _close_held(key[1])
        held = _held.get(key)
        if held is None or not held.file:
            held = _held[key] = Held(path, swmr)
        return held


def _close_held(path: str | None) -> None:
    """This process's handles of a file that was written anew; None: all of its handles."""
    for (process, of, _), held in list(_held.items()):
        if process == os.getpid() and (path is None or (of == path and held.is_outdated())):
            held.file.close()


def _open_alike(path: str | os.PathLike[str], swmr: bool) -> h5py.File:
    """With the properties of h5py.File, so that the program can open it too: HDF5 wants them alike, also those of files
    that links and virtual datasets lead to. A file that cannot be locked, as on some network file systems, or that is
    open without a lock, is read without."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)  # the default reads 21 bytes for each byte wanted of 3 KB rows
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    try:
        return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
    except OSError as error:
        if "lock" not in str(error):
            raise
    access.set_file_locking(False, True)
    return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))


def check_regular(path: str | os.PathLike[str]) -> None:
    """HDF5 would wait for a pipe. Of a folder it says so itself."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ConfigError(f"{path} is no regular file (a pipe or a device); give an HDF5 file")


def _open(path: str | os.PathLike[str], swmr: bool = False) -> h5py.File:
    try:
        check_regular(path)
        file = _open_alike(path, swmr)
        if file.id.get_intent() & h5py.h5f.ACC_RDWR and not swmr:
            file.close()
            raise ConfigError(f"{path} is open for writing in this program, may not be all in the file yet; close it")
        return file
    except OSError as error:
        if not Path(path).exists():
            raise ConfigError(f"{path} does not exist (the current directory is {Path.cwd()})") from None
        if Path(path).is_dir():
            raise ConfigError(f"{path} is a directory; give the file") from None
        raise unreadable(path, error, "opened") from error


_HINTS = {  # words of HDF5's: what they mean
    "(degree|values) do(es)?n't match|not the same for": "this program has it, or what leads to it, open in another "
    "way; open both alike (locking, swmr), or close one",
    "unable to lock": "another program has it open for writing; HDF5_USE_FILE_LOCKING=FALSE reads it nevertheless",
    "doesn't exist|component not found": "it leads to nothing",
    "too many links": "it leads to itself",
    "already open for": "it is being written (data.swmr=true reads a SWMR writer's file), or its writer was killed "
    "(h5clear -s)",
    "truncated": "it is cut short: was the copy, or the program that wrote it, interrupted? Copy or write it again",
    "file signature": "it is not an HDF5 file, or its beginning is damaged",
    "filter returned failure": "what is stored there is damaged; copy or write it again",
    "not registered|open directory|plugin": "it needs a filter that this HDF5 lacks; `inspect` names it",
    "version": f"it is damaged there, or written by a newer HDF5 than {h5py.version.hdf5_version}",
    "checksum|signature|corrupt|overflow|past end|ran off|EOA|heap|bad |wrong |greater than": "it is damaged there; "
    "copy or write it again",
    "external raw data|can't open file": "a file in which its values lie is missing, or may not be read",
}


def unreadable(what: object, error: BaseException, done: str = "read") -> ConfigError:
    """What the library said, and what that means where it is known; a fault of the machine's as what it is."""
    if fault := machine_fault(error):
        return ConfigError(f"{what}: cannot be {done}: {fault}")
    said = str(error.args[0] if isinstance(error, KeyError) and error.args else error) or type(error).__name__
    hint = next((hint for words, hint in _HINTS.items() if re.search(words, said)), "h5dump may tell more")
    return ConfigError(f"{what}: cannot be {done} ({said.splitlines()[0]}): {hint}")


def split_of(splits: Mapping[str, Mapping[str, Any] | None], split: str) -> Mapping[str, Any]:
    """The entry of a split that is there and not null."""
    if not isinstance(splits, Mapping):
        example = as_typed({"train": {"group": "train"}, "val": None})
        raise ConfigError(f"data.splits={splits}: expected a mapping, such as {example}")
    if split not in splits:
        raise ConfigError(f"data.splits has no {split!r}; it has {sorted(splits)}")
    entry = splits[split]
    if entry is None:
        raise ConfigError(
            f"data.splits.{split} is {as_typed(None)}: there is none such; give a group, or shares of the rows"
        )
    if not isinstance(entry, Mapping):
        either = f"{as_typed({'group': 'train'})}, or {as_typed(None)}"
        raise ConfigError(f"data.splits.{split}={entry}: expected a mapping, such as {either}")
    if unknown := sorted(set(entry) - {"group", "rows", "index", "by", "seed"}, key=str):
        raise ConfigError(f"data.splits.{split} has {unknown[0]!r}; it may have group, rows, index, by and seed")
    rows, index = entry.get("rows"), entry.get("index")
    if rows is not None and not (isinstance(rows, Sequence) and all(isinstance(r, (int, float)) for r in rows)):
        raise ConfigError(f"data.splits.{split}.rows={rows}: must be two shares, such as [0, 0.9], or {as_typed(None)}")
    if index is not None and not isinstance(index, str):
        raise ConfigError(f"data.splits.{split}.index={index}: expected the name of a dataset, or {as_typed(None)}")
    if "group" not in entry:
        raise ConfigError(f"data.splits.{split} names no group; '/' is the file's root")
    return entry


def groups_of(splits: Mapping[str, Mapping[str, Any] | None]) -> list[str]:
    """Where the splits lie, the training split's (else the first one's) first."""
    there = sorted((split for split in splits if splits[split] is not None), key=lambda split: split != "train")
    return list(dict.fromkeys(split_of(splits, split)["group"] for split in there or ["train"]))


def shares_of(text: str, by: str | None, key: str) -> dict[str, dict[str, Any] | None]:
    """80/10/10: the splits of a file that has no groups for them, shares of its rows in per cent: train, val, test."""
    parts = text.split("/")
    if len(parts) not in (2, 3) or not all(re.fullmatch(r"\d+(\.\d+)?", part) for part in parts):
        raise ConfigError(f"{key}={text}: must be shares of train, val and test in per cent, such as 80/10/10 or 80/20")
    sizes = [float(part) for part in parts]
    if abs(sum(sizes) - 100) > 1e-9 or not all(sizes):
        raise ConfigError(f"{key}={text}: each share must be above 0, and together they must be 100")
    ends = [0.0, *(round(sum(sizes[: k + 1]) / 100, 10) for k in range(len(sizes)))]
    made: dict[str, dict[str, Any] | None] = {"train": None, "val": None, "test": None}
    for name, begin, end in zip(made, ends, ends[1:]):
        made[name] = {"group": "/", "rows": [begin, end], "index": None, "by": by}
    return made
