"""Open HDF5 files and find what is in them; errors say what there is instead. No torch."""

from __future__ import annotations

import difflib
import os
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from glob import glob
from pathlib import Path
from typing import Any

import h5py

from lab.data.reading import filters
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


@contextmanager
def open_h5(path: str | os.PathLike[str], swmr: bool = False) -> Iterator[h5py.File]:
    file = acquire(path, swmr)
    try:
        yield file
    except ConfigError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, OverflowError, MemoryError) as error:  # what h5py may raise
        raise unreadable(path, error, "it is damaged; copy or write it again") from error
    finally:
        release(path, swmr)


_Key = tuple[int, str, bool]
_held: dict[_Key, tuple[h5py.File, list[None]]] = {}  # the file, and an item for each holder
_locks: dict[int, threading.RLock] = {}  # by process: a forked child must not wait for its parent's thread


def acquire(path: str | os.PathLike[str], swmr: bool) -> h5py.File:
    """This process's handle of a file, opened if it is not yet; to be given back by release.

    Only one: HDF5 2.0 crashes on closing a file that is open twice and has a virtual dataset of parts of its own.
    """
    key = (os.getpid(), os.path.abspath(path), swmr)
    with _locks.setdefault(os.getpid(), threading.RLock()):
        if key not in _held:
            _held[key] = (_open(path, swmr), [])
        file, holders = _held[key]
        holders.append(None)
        return file


def release(path: str | os.PathLike[str], swmr: bool) -> None:
    key = (os.getpid(), os.path.abspath(path), swmr)
    with _locks.setdefault(os.getpid(), threading.RLock()):
        if key in _held:  # not, if it was acquired before a fork
            file, holders = _held[key]
            holders.pop()
            if not holders:
                del _held[key]
                file.close()


def _open(path: str | os.PathLike[str], swmr: bool = False) -> h5py.File:
    """Open for reading, without HDF5's locks (which fail on some network and read-only file systems)."""
    access = h5py.h5p.create(h5py.h5p.FILE_ACCESS)
    access.set_fclose_degree(h5py.h5f.CLOSE_STRONG)
    access.set_sieve_buf_size(0)  # the default reads 21 bytes for each byte wanted of 3 KB rows
    access.set_file_locking(False, True)
    flags = h5py.h5f.ACC_RDONLY | (h5py.h5f.ACC_SWMR_READ if swmr else 0)
    try:
        try:
            return h5py.File(h5py.h5f.open(os.fsencode(path), flags, fapl=access))
        except OSError as error:
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


def listing(group: h5py.Group, limit: int = 24) -> list[str]:
    """Names of the datasets below a group, with shape and type."""
    found: list[str] = []

    def visit(name: str, item: Any) -> bool | None:
        if isinstance(item, h5py.Dataset):
            found.append(f"{name} {item.shape} {item.dtype}")
        return True if len(found) >= limit else None

    group.visititems(visit)
    return found


def find(file: h5py.File, group: str, name: str, key: str) -> tuple[h5py.Dataset | h5py.Group, str | None]:
    """The dataset (or group) `name` below `group`, and the member if the path goes on into a compound type.

    key: the config key to blame. Nested paths may be used; a name that begins with / starts at the file's root.
    """
    for what, text in (("group", group), ("dataset", name)):
        if not isinstance(text, str):
            raise ConfigError(f"{key}: expected the name of a {what}, got {text}")
    try:
        below = file[group]
    except (KeyError, ValueError):
        raise ConfigError(
            f"{file.filename} has no group {group!r} ({key}); {_choices(file, group)}; "
            "data.splits.<split>.group says where a split lies, null that there is none"
        ) from None
    if not isinstance(below, h5py.Group):
        raise ConfigError(f"{file.filename}: {group!r} ({key}) is a dataset, not a group; use its parent group, or '/'")
    item: Any = below
    parts = [part for part in name.split("/") if part]
    if name.startswith("/"):
        item = file
    for k, part in enumerate(parts):
        if isinstance(item, h5py.Dataset):
            member = "/".join(parts[k:])
            if item.dtype.names and member in item.dtype.names:
                return item, member
            kinds = f"the members {list(item.dtype.names)}" if item.dtype.names else "no members"
            raise ConfigError(f"{file.filename}: {item.name} has {kinds}, not {member!r} ({key})")
        try:
            item = item[part]
        except KeyError:
            link = item.get(part, getlink=True) if isinstance(item, h5py.Group) and part in item else None
            if isinstance(link, h5py.ExternalLink):
                raise ConfigError(
                    f"{file.filename}: {part!r} ({key}) links to {link.filename}, which is missing"
                ) from None
            raise ConfigError(
                f"{file.filename}: {below.name} has no {name!r} ({key}); {_choices(below, name)}"
            ) from None
    if isinstance(item, h5py.Dataset):
        filters.load_plugins(item)
    if not isinstance(item, (h5py.Dataset, h5py.Group)):
        raise ConfigError(
            f"{file.filename}: {item.name} ({key}) is a named type, not a dataset; {_choices(below, name)}"
        )
    return item, None


def _choices(group: h5py.Group, wanted: str) -> str:
    there = listing(group)
    names = [line.split(" ")[0] for line in there]
    groups = list(group) if len(group) < 1000 else []
    near = difflib.get_close_matches(wanted.strip("/"), [*names, *groups], n=1, cutoff=0.5)
    return (f"did you mean {near[0]!r}? " if near else "") + f"It holds: {'; '.join(there) or 'no datasets'}"


def check_sources(dset: h5py.Dataset) -> None:
    """HDF5 reads fill values, without a word, where a virtual dataset's source is missing or an external file short."""
    where = f"{dset.file.filename}: {dset.name}"
    for source in dset.virtual_sources() if dset.is_virtual else ():
        name, folder = source.file_name, os.path.dirname(os.path.abspath(dset.file.filename))
        if "%" in name or "HDF5_VDS_PREFIX" in os.environ:
            continue
        found = [p for p in (os.path.join(folder, name), name) if os.path.exists(p)]
        if name != "." and not found:
            raise ConfigError(f"{where} is virtual and its source {name} is missing; put it beside the file")
        with open_h5(dset.file.filename if name == "." else found[0]) as file:
            if source.dset_name not in file:
                raise ConfigError(f"{where} is virtual and its source {name} has no {source.dset_name}")
    end, needed = 0, dset.size * dset.dtype.itemsize
    for name, offset, size in dset.external or ():
        there = os.path.getsize(name) - offset if os.path.exists(name) else needed  # missing: HDF5 itself says so
        end += min(there, size)
    if dset.external and end < needed:
        raise ConfigError(
            f"{where} is stored in {dset.external[0][0]}, which has {end} of its {needed} bytes; copy it again"
        )


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
