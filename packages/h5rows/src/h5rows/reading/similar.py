"""Describe the fields of a file by comparing them with an earlier file of the set. No torch.

The files of a set often differ only in their numbers of rows, and therefore in all positions. Opening such a set
spends most of its time in h5py, which describes each dataset again. How a dataset is read follows from its type, its
creation properties (layout, chunk, filters, fill value), its attributes and the shape of a sample. If HDF5 finds all of
them equal to an earlier dataset, the description of this one is used. That dataset was described in full, and some of
its rows were compared with the values that HDF5 reads. From each further file, only the number of rows and the
positions are read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

import h5py
import numpy as np

from h5rows.errors import ConfigError
from h5rows.reading.fields import Fixed
from h5rows.reading.layout import Layout, of_another_file
from h5rows.reading.memory import CHEAP
from h5rows.reading.raw import RawFile, raw_file
from h5rows.reading.stored import File, Identity

_MOST = 8  # different datasets that are compared with one of a further file
_SIGNATURE = b"\x89HDF\r\n\x1a\n"  # of a file without a user block, whose positions HDF5 returns as they are
_DRAWN = (0, 0.27, 0.64, 1)  # chunks that are compared with HDF5, as shares; two were drawn at random once
Place = tuple[str, str]  # group, name in the batch


class _Known(NamedTuple):
    kind: h5py.h5t.TypeID
    create: h5py.h5p.PropDCID
    chunk: tuple[int, ...] | None
    field: Fixed  # without open files


class Similar:
    """The fields of the files that were described in full.

    names: {(group, name in the batch): name in the file, relative to the group}. decode: whether any attribute of a
    dataset may have a meaning; otherwise only `classes` has.
    """

    def __init__(self, names: Mapping[Place, str], decode: bool) -> None:
        steps = {place: _steps(place[0], name) for place, name in names.items()}
        self._paths = {place: below[-1] for place, below in steps.items() if below}
        self._links = list(dict.fromkeys(step for below in steps.values() for step in below))
        self._owners = {b"/", *(path.rpartition(b"/")[0] or b"/" for path in self._paths.values())}
        self._decode = decode
        self._known: dict[Place, list[_Known]] = {place: [] for place in names}

    def add(self, file: File, place: Place, field: Fixed) -> None:
        """Add a field of a file that was described in full. field: without open files; it has no classes."""
        layout, known = field.layout, self._known[place]
        if layout is None or layout.fill is not None or len(known) == _MOST:
            return
        dset = h5py.h5o.open(file.id, self._paths[place])
        if not isinstance(dset, h5py.h5d.DatasetID):  # a group whose attribute `signal` names the dataset
            return
        create = dset.get_create_plist()
        chunk = _chunk(create)
        # larger rows and chunks are compared with the free memory and the size of each file
        if max(layout.row_bytes, 0 if chunk is None else layout.chunk_bytes) <= CHEAP:
            known.append(_Known(dset.get_type().copy(), create, chunk, field))

    def fields(self, file: File, path: str, identity: Identity) -> dict[Place, Fixed] | None:
        """Return the fields of a file, without open files; None if one of them is not like a known one."""
        if not all(self._known.values()):
            return None
        try:
            if any(file.id.links.get_info(step).type != h5py.h5l.TYPE_HARD for step in self._links):
                return None
            if any(h5py.h5a.exists(file.id, b"classes", obj_name=owner) for owner in self._owners):
                return None
            raw, found = raw_file(path, identity), {}
            if raw.read(len(_SIGNATURE), 0) != _SIGNATURE:
                return None
            for place, named in self._paths.items():
                layout = self._layout(h5py.h5o.open(file.id, named), self._known[place], raw)
                if layout is None:
                    return None
                found[place] = layout
            return found
        except (ConfigError, KeyError, OSError, RuntimeError, ValueError):  # describing it in full raises the error
            return None

    def _layout(self, dset: object, known: Sequence[_Known], raw: RawFile) -> Fixed | None:
        if not isinstance(dset, h5py.h5d.DatasetID):
            return None
        if h5py.h5a.get_num_attrs(dset) and (self._decode or h5py.h5a.exists(dset, b"classes")):
            return None
        kind, create = dset.get_type(), dset.get_create_plist()
        chunk = _chunk(create)
        # HDF5 does not compare the last axis of chunks
        alike = (one for one in known if one.chunk == chunk and one.create.equal(create) and one.kind.equal(kind))
        if (like := next(alike, None)) is None or like.field.layout is None:
            return None
        layout = of_another_file(like.field.layout, chunk is not None, dset, raw.path, raw.identity)
        if layout is None or (chunk is not None and not _is_as_hdf5_finds(layout, dset, raw)):
            return None
        return like.field.at(layout)


def _chunk(create: h5py.h5p.PropDCID) -> tuple[int, ...] | None:
    return create.get_chunk() if create.get_layout() == h5py.h5d.CHUNKED else None


def _steps(group: str, name: str) -> list[bytes]:
    """Return the paths of the groups that lead to a dataset, and its own."""
    name = str(name)  # a name that is not text: describing it in full raises the error
    path = name if name.startswith("/") else f"{group}/{name}"
    parts = (part.encode("utf-8", "surrogateescape") for part in path.split("/") if part not in ("", "."))
    return list(accumulate(parts, lambda above, part: above + b"/" + part))


def _is_as_hdf5_finds(layout: Layout, dset: h5py.h5d.DatasetID, raw: RawFile) -> bool:
    """Return True if HDF5 finds the same bytes in some chunks: a list of chunks that is wrong must not be used."""
    grid = [-(-n // c) for n, c in zip(layout.shape, layout.chunk, strict=True)]
    offset, size, mask = layout.offset.reshape(-1), layout.size.reshape(-1), layout.mask.reshape(-1)
    for k in {round(share * (len(size) - 1)) for share in _DRAWN}:
        corner = tuple(int(i) * c for i, c in zip(np.unravel_index(k, grid), layout.chunk, strict=True))
        if dset.read_direct_chunk(corner) != (mask[k], raw.read(int(size[k]), int(offset[k]))):
            return False
    return True
