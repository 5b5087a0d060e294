"""Open HDF5 files and find what is in them; errors say what there is instead. No torch."""

from __future__ import annotations

import os
import stat
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import h5py

from lab.errors import ConfigError, machine_fault


def files_of(path: str | os.PathLike[str] | Sequence[str]) -> list[str]:
    """A file, a pattern with *, or a list of both -> the files, in this order; every one exists."""
    names = path if isinstance(path, Sequence) and not isinstance(path, str) else [path]
    if not all(isinstance(name, (str, os.PathLike)) for name in names):
        raise ConfigError(f"data.path={path}: expected a file, a pattern or a list of files")
    files: list[str] = []
    for name in map(os.path.expanduser, map(str, names)):
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
    found = os.stat(file.id.get_vfd_handle() if isinstance(file, h5py.File) else file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def check_same(path: str, was: Identity, now: Identity, growing: bool = False) -> None:
    """growing: by a SWMR writer, which adds to the file."""
    if now == was:
        return
    if now[:2] != was[:2]:
        raise ConfigError(f"{path} was replaced by another file while this run had it open; start the run again")
    if now[2] < was[2]:
        raise ConfigError(
            f"{path} has {now[2]} bytes, and had {was[2]} when this run opened it: it was cut short; write it again"
        )
    if not growing:
        raise ConfigError(f"{path} was changed while this run had it open; start the run again")


@contextmanager
def open_h5(path: str | os.PathLike[str], swmr: bool = False) -> Iterator[h5py.File]:
    held = acquire(path, swmr, pin=True)
    try:
        yield held.file
    except ConfigError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError, MemoryError) as error:  # what h5py may raise
        raise unreadable(path, error, "it is damaged; copy or write it again") from error
    finally:
        release(held, pin=True)


_Key = tuple[int, str, bool]


class Held:
    """An open file. holders: how many use it; pins: those among them who cannot open it anew if it is closed."""

    def __init__(self, key: _Key, file: h5py.File) -> None:
        self.key, self.file, self.holders, self.pins = key, file, 0, 0
        self.identity = identity(file)


_held: dict[_Key, Held] = {}
_locks: dict[int, threading.RLock] = {}  # by process: a forked child must not wait for its parent's thread
_weak: set[int] = set()  # processes in which HDF5 has to open by itself what is held here


def _lock() -> threading.RLock:
    return _locks.setdefault(os.getpid(), threading.RLock())


def acquire(path: str | os.PathLike[str], swmr: bool, pin: bool = False) -> Held:
    """This process's handle of a file, opened if it is not yet; to be given back by release.

    Only one: HDF5 2.0 crashes on closing a file that is open twice and has a virtual dataset of parts of its own, and
    on refreshing what is open twice. So a handle of a file that was written anew is closed, and so is, to see what a
    SWMR writer has added, one of its file; readers open it again.
    """
    key = (os.getpid(), os.path.abspath(path), swmr)
    with _lock():
        held = _held.get(key)
        if held is not None and not held.pins:
            try:
                old = pin if swmr else held.identity != identity(key[1])
            except OSError:  # removed: who holds it may read on
                old = False
            if old:
                _close(held)
                held = None
        if held is None:
            held = _held[key] = Held(key, _open(path, swmr))
        held.holders += 1
        held.pins += pin
        return held


def release(held: Held, pin: bool = False) -> None:
    if held.key[0] == os.getpid():  # not, if it was acquired before a fork
        with _lock():
            held.holders -= 1
            held.pins -= pin
            if not held.holders:
                _close(held)


def let_hdf5_open() -> None:
    """HDF5 opens sources of virtual datasets with the close degree "weak": so must be those that are open already."""
    with _lock():
        _weak.add(os.getpid())
        for held in [held for key, held in _held.items() if key[0] == os.getpid() and not held.pins]:
            _close(held)


def _close(held: Held) -> None:
    if _held.get(held.key) is held:
        del _held[held.key]
    if held.file:
        held.file.close()


def _open(path: str | os.PathLike[str], swmr: bool = False) -> h5py.File:
    """Open for reading, without HDF5's locks (which fail on some network and read-only file systems)."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_sieve_buf_size(0)  # the default reads 21 bytes for each byte wanted of 3 KB rows
    access.set_file_locking(False, True)
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    degrees = [h5py.h5f.CLOSE_STRONG, h5py.h5f.CLOSE_WEAK]
    if os.getpid() in _weak:
        degrees.reverse()
    try:
        if not stat.S_ISREG(os.stat(path).st_mode) and not os.path.isdir(path):
            raise ConfigError(f"{path} is no regular file (a pipe or a device); give an HDF5 file")
        try:
            access.set_fclose_degree(degrees[0])
            return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
        except OSError as error:
            if "close degree" in str(error):  # it is open already: by HDF5 through a link, or by the program
                access.set_fclose_degree(degrees[1])
                return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
            if "file locking" not in str(error):
                raise
            return h5py.File(path, "r", swmr=swmr)  # this process has it open already, with locks
    except OSError as error:
        if not Path(path).exists():
            raise ConfigError(f"{path} does not exist (the current directory is {Path.cwd()})") from None
        if Path(path).is_dir() or machine_fault(error):
            hint = "it is a directory; give the file"
        elif "truncated" in str(error):
            hint = "it is cut short: was the copy, or the program that wrote it, interrupted? Copy or write it again"
        elif "signature" in str(error):
            hint = "it is not an HDF5 file, or its beginning is damaged"
        elif "already open for" in str(error):
            hint = (
                "it is being written (data.swmr=true reads a SWMR writer's file), or its writer was killed (h5clear -s)"
            )
        else:
            hint = "check that it is readable and whole (h5ls)"
        raise unreadable(path, error, hint, "opened") from error


def unreadable(what: object, error: BaseException, hint: str, done: str = "read") -> ConfigError:
    """hint: what may be wrong with the file, unless it was the machine's fault."""
    why = machine_fault(error) or f"({_first_line(error)}): {hint}"
    return ConfigError(f"{what}: cannot be {done} {why}" if why[0] == "(" else f"{what}: cannot be {done}: {why}")


def split_of(splits: Mapping[str, Mapping[str, Any] | None], split: str) -> Mapping[str, Any]:
    """The entry of a split that is there and not null."""
    if not isinstance(splits, Mapping):
        raise ConfigError(f"data.splits={splits}: expected a mapping, such as {{train: {{group: train}}, val: null}}")
    if split not in splits:
        raise ConfigError(f"data.splits has no {split!r}; it has {sorted(splits)}")
    entry = splits[split]
    if entry is None:
        raise ConfigError(
            f"data.splits.{split} is null: this set has no such split; give it a group, or shares of the rows"
        )
    if not isinstance(entry, Mapping):
        raise ConfigError(f"data.splits.{split}={entry}: expected a mapping, such as {{group: train}}, or null")
    rows, index = entry.get("rows"), entry.get("index")
    if rows is not None and not (isinstance(rows, Sequence) and all(isinstance(r, (int, float)) for r in rows)):
        raise ConfigError(f"data.splits.{split}.rows={rows}: must be two shares, such as [0, 0.9], or null")
    if index is not None and not isinstance(index, str):
        raise ConfigError(f"data.splits.{split}.index={index}: expected the name of a dataset, or null")
    if "group" not in entry:
        raise ConfigError(f"data.splits.{split} names no group; '/' is the file's root")
    return entry


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
