"""Files and datasets that read each of their properties once; h5py reads most of them again at each use. No torch.

Most of the time of opening a set of many files is spent on such properties.
"""

from __future__ import annotations

import functools
import os
from contextlib import suppress
from typing import Any

import h5py
import numpy as np

from h5rows.reading.folders import is_remote

Identity = tuple[int, int, int, int]  # device, inode, size, time of the last change
State = tuple[int, int, int, int, int]  # these, and the time of the last change of the inode
Pipeline = tuple[tuple[int, tuple[int, ...]], ...]  # (filter, its options), in the order of writing


class cached_property(functools.cached_property[Any]):
    """functools.cached_property without the lock that it has before Python 3.12. A child that is forked while another
    thread holds the lock would wait forever."""

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        """Return the value. If several threads compute it at once, all get the first one."""
        if instance is None:
            return self
        assert self.attrname is not None
        return instance.__dict__.setdefault(self.attrname, self.func(instance))


def identity(file: h5py.HLObject | str | int) -> Identity:
    """Return the identity of the file of an open object, even if its path leads to another file now; or that of a path
    or descriptor."""
    if isinstance(file, h5py.HLObject):
        held = file.id if isinstance(file, h5py.File) else h5py.h5i.get_file_id(file.id)
        if is_remote(file_name(file)):  # each answer of the server is checked instead
            return 0, 0, held.get_filesize(), 0
        file = held.get_vfd_handle()
    found = os.stat(file)
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


def state_of(found: os.stat_result) -> State:
    """Return the state of a file. It also differs after a change whose time was set back (`touch -r`).

    It differs after `chmod` or `ln`, too: so a file in another state is opened again, but is not an error."""
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def file_name(item: h5py.HLObject) -> str:
    """Return the name of the file of an open object, without the h5py.File that `item.file` makes in 20 us."""
    return item.file.filename if isinstance(item, (File, Stored)) else os.fsdecode(h5py.h5f.get_name(item.id))


class File(h5py.File):  # type: ignore[misc]
    """A file that is open for reading."""

    filename = cached_property(h5py.File.filename.fget)
    driver = cached_property(h5py.File.driver.fget)
    userblock_size = cached_property(h5py.File.userblock_size.fget)
    identity = cached_property(identity)  # when it was first asked for; later changes are errors

    @property
    def file(self) -> File:
        """Return this file."""
        return self


def _dtype(dset: h5py.Dataset) -> np.dtype[Any]:
    """Return the type of a dataset; for a table, of the columns that NumPy has types for. It has none for times, as
    PyTables writes them."""
    try:
        return h5py.Dataset.dtype.fget(dset)
    except TypeError:
        kind, columns = dset.id.get_type(), []
        for k in range(kind.get_nmembers() if isinstance(kind, h5py.h5t.TypeCompoundID) else 0):
            with suppress(TypeError):
                columns.append((kind.get_member_name(k).decode(), kind.get_member_type(k).dtype))
        if not columns:
            raise
        return np.dtype(columns)


def dtype_of(dset: h5py.Dataset) -> np.dtype[Any] | None:
    """Return the dtype; None if NumPy does not have it."""
    try:
        return dset.dtype
    except (TypeError, ValueError):
        return None


class Stored(h5py.Dataset):  # type: ignore[misc]
    """A dataset of a file that is open for reading. file: that file; None: h5py looks it up at each use."""

    def __init__(self, dset: h5py.h5d.DatasetID, file: File | None = None) -> None:
        super().__init__(dset, readonly=True)
        self._of = file

    name = cached_property(h5py.Dataset.name.fget)
    dtype = cached_property(_dtype)
    shape = cached_property(h5py.Dataset.shape.fget)
    chunks = cached_property(h5py.Dataset.chunks.fget)
    external = cached_property(h5py.Dataset.external.fget)
    is_virtual = cached_property(h5py.Dataset.is_virtual.fget)

    @property
    def file(self) -> File:
        """Return the file that contains the dataset."""
        return File(self.id) if self._of is None else self._of

    @cached_property
    def pipeline(self) -> Pipeline:
        """Return the filters with their options, in the order of writing."""
        create = self._dcpl
        return tuple((number, tuple(o)) for number, _, o, _ in map(create.get_filter, range(create.get_nfilters())))


def stored(dset: h5py.Dataset) -> Stored:
    """Return a dataset as one that reads its properties once."""
    return dset if isinstance(dset, Stored) else Stored(dset.id)
