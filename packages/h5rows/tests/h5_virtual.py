"""Random virtual datasets: parts of one or several others, nested, strided, numbered, unlimited."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np
from h5py import h5d, h5p, h5s, h5t

MAIN = "f.h5"
KINDS = ["u1", "<i2", ">i4", "<u4", "<i8", "<f4", ">f8", "<f2"]


def virtual(w: Any, file: h5py.File, depth: int = 0) -> str:
    """-> its name."""
    if w.chance(0.2):
        return numbered(w, file)
    inner, kind = tuple(w.between(1, 4) for _ in range(w.between(0, 2))), np.dtype(w.one_of(KINDS))
    parts = [w.between(1, 8) for _ in range(w.between(1, 3))]
    rows = sum(parts) + w.one_of([0, 0, 2])
    layout, begin = h5py.VirtualLayout((rows, *inner), kind), 0
    for size in parts:
        step = w.one_of([1, 1, 2])
        shape = (size * step, *inner)
        name, where = source(w, file, shape, kind if w.chance(0.8) else np.dtype(w.one_of(KINDS)), depth)
        layout[begin : begin + size] = h5py.VirtualSource(where, name, shape)[::step]
        begin += size
    name = w.name()
    fill = w.between(0, 9) if w.chance(0.5) else None
    file.create_virtual_dataset(name, layout, fillvalue=fill)
    return name


def source(w: Any, file: h5py.File, shape: tuple[int, ...], kind: np.dtype, depth: int) -> tuple[str, str]:
    """(dataset, file as the virtual dataset names it)"""
    name = w.name()
    if depth < 2 and w.chance(0.2):  # a virtual dataset of a virtual dataset
        layout = h5py.VirtualLayout(shape, kind)
        inner, where = source(w, file, shape, kind, depth + 1)
        layout[:] = h5py.VirtualSource(where, inner, shape)
        file.create_virtual_dataset(name, layout)
        return name, w.one_of([".", MAIN])
    typed = h5t.py_create(kind, logical=True)
    if w.chance(0.5):
        w.dataset(file, name, file, typed, shape)
        return name, w.one_of([".", ".", MAIN])
    with h5py.File(w.folder / w.other, "a") as other:
        w.dataset(other, name, other, typed, shape)
    return name, w.other


def numbered(w: Any, file: h5py.File) -> str:
    """Blocks without end along the rows, the k-th of which is dataset x of the file with the number k."""
    w.count += 1
    stem, name, size = f"part{w.count}", w.name(), w.between(1, 5)
    inner, kind = tuple(w.between(1, 3) for _ in range(w.between(0, 1))), np.dtype(w.one_of(KINDS))
    for k in range(w.between(1, 3)):
        with h5py.File(w.folder / f"{stem}-{k}.h5", "w") as other:
            w.dataset(other, "x", other, h5t.py_create(kind, logical=True), (size, *inner))
    blocks = h5s.create_simple((size, *inner), (h5s.UNLIMITED, *inner))
    zeros, ones = (0,) * len(inner), (1,) * len(inner)
    blocks.select_hyperslab((0, *zeros), (h5s.UNLIMITED, *ones), (size, *ones), (size, *inner))
    create, links = h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.LINK_CREATE)
    links.set_create_intermediate_group(True)
    create.set_virtual(blocks, f"{stem}-%b.h5".encode(), b"x", h5s.create_simple((size, *inner)))
    space = h5s.create_simple((size, *inner), (h5s.UNLIMITED, *inner))
    h5d.create(file.id, name.encode(), h5t.py_create(kind, logical=True), space, create, links)
    return name
