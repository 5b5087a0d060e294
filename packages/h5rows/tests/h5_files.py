"""Random HDF5 files: of every layout, type, filter, link and history that HDF5 allows. `write(folder, seed)`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
from h5_types import NAMES, Draw, add_filters, draw_type, random_bytes, random_objects, stored
from h5_virtual import MAIN, virtual
from h5py import h5d, h5f, h5p, h5s, h5t

UNLIMITED = 1 << 64 - 1  # h5s.UNLIMITED is the same, as a number that NumPy cannot compare


class Writer(Draw):
    """One set of files. `fields`: paths in the main file that a user may name."""

    def __init__(self, folder: Path, seed: int, rows: int | None = None) -> None:
        super().__init__(seed)
        self.folder, self.count = folder, 0
        self.fields: list[str] = []
        self.rows = rows or int(self.rng.integers(1, 30))
        self.other = self.one_of(["below/g.h5", "below/g.h5", "g.h5", "../elsewhere/g.h5"])  # as links name it
        (folder / self.other).parent.mkdir(parents=True, exist_ok=True)

    # -- files

    def write(self) -> list[str]:
        other = self.try_each(lambda: self.create(self.folder / self.other))
        with other:
            there = [self.dataset(other, self.name(), other) for _ in range(self.between(1, 2))]
        file = self.try_each(lambda: self.create(self.folder / MAIN))
        with file:
            for _ in range(self.between(1, 5)):
                self.try_each(lambda: self.field(file))
            for name in there:
                if self.chance(0.5):
                    file[new := self.name()] = h5py.ExternalLink(self.other, name)
                    self.fields.append(new)
            self.links(file)
        self.user_block(self.folder / MAIN)
        return list(dict.fromkeys(self.fields))

    def create(self, path: Path) -> h5py.File:
        made, access = h5p.create(h5p.FILE_CREATE), h5p.create(h5p.FILE_ACCESS)
        versions = [getattr(h5f, f"LIBVER_{v}") for v in ("EARLIEST", "V18", "V110", "V112", "V114", "LATEST")]
        low, high = sorted((self.one_of(versions), self.one_of([*versions, h5f.LIBVER_LATEST, h5f.LIBVER_LATEST])))
        access.set_libver_bounds(low, high)
        if self.chance(0.2):
            access.set_alignment(1, self.one_of([2, 7, 64, 512]))
        if self.chance(0.2):
            access.set_meta_block_size(self.one_of([0, 100, 1 << 14]))
        if self.chance(0.3):
            made.set_userblock(self.one_of([512, 1024, 4096]))
        if self.chance(0.2):
            made.set_sizes(self.one_of([4, 8]), self.one_of([4, 8]))
        if self.chance(0.2):
            made.set_file_space_strategy(self.between(0, 3), self.chance(0.5), 1)
            made.set_file_space_page_size(self.one_of([512, 4096]))
        if self.chance(0.3):
            made.set_link_creation_order(h5p.CRT_ORDER_TRACKED | h5p.CRT_ORDER_INDEXED)
        return h5py.File(h5f.create(str(path).encode(), h5f.ACC_TRUNC, made, access))

    def user_block(self, path: Path) -> None:
        with h5py.File(path) as file:
            size = file.userblock_size
        with open(path, "r+b") as raw:
            raw.write(self.rng.bytes(size))

    def name(self) -> str:
        self.count += 1
        group = self.one_of(["", "", "", "g/", "a/b/"])
        return f"{group}{self.one_of(NAMES)}{self.count}"

    def links(self, file: h5py.File) -> None:
        for name in [n for n in self.fields if self.chance(0.3)]:
            try:
                item = file.get(name)
            except (KeyError, OSError):
                continue
            kind = self.one_of(["soft", "hard", "group", "named"])
            if not isinstance(item, h5py.Dataset):
                continue
            new = self.name()
            if kind == "soft":
                file[new] = h5py.SoftLink(f"/{name}")
            elif kind == "hard" and item.file == file:
                file[new] = item
            elif kind == "group" and "/" in name:
                group, _, last = name.rpartition("/")
                file[new] = h5py.SoftLink(f"/{group}") if self.chance(0.5) else file[group]
                new = f"{new}/{last}"
            elif kind == "named":
                file[new] = h5py.ExternalLink(MAIN, name)  # a file that leads to itself
            if new in file or kind == "named":
                self.fields.append(new)
        if self.chance(0.2):
            file[new := self.name()] = h5py.SoftLink("/nowhere")
            self.fields.append(new)

    # -- fields

    def field(self, file: h5py.File) -> None:
        if self.chance(0.06):
            return self.ragged(file)
        if self.chance(0.12):
            self.fields.append(virtual(self, file))
            return None
        name = self.dataset(file, self.name(), file)
        self.fields.append(name)
        kind = file[name].id.get_type()
        if kind.get_class() == h5t.COMPOUND and kind.get_nmembers():
            for k in range(kind.get_nmembers()):
                self.fields.append(f"{name}/{kind.get_member_name(k).decode()}")
        return None

    def ragged(self, file: h5py.File) -> None:
        """A group of values and offsets."""
        name, lengths = self.name(), self.rng.integers(0, 6, self.rows)
        offsets = np.concatenate([[0], np.cumsum(lengths)])
        values = self.rng.integers(32, 126, (int(offsets[-1]) + self.between(0, 2), *self.one_of([(), (), (2,)])))
        kind = self.one_of(["u1", "<f4", ">i4", "<u4"])
        options = {"chunks": (3, *values.shape[1:]), "compression": "gzip"} if self.chance(0.5) and len(values) else {}
        file.create_dataset(f"{name}/values", data=values.astype(kind), **options)
        file[f"{name}/offsets"] = offsets.astype(self.one_of(["i8", "u4", ">i4"]))
        if kind == "u1" and values.ndim == 1 and self.chance(0.5):
            file[name].attrs["encoding"] = "utf-8"
        self.fields.append(name)

    def dataset(self, file: h5py.File, name: str, inside: Any, kind: Any = None, shape: Any = None) -> str:
        """-> its name. kind, shape: drawn where they are None."""

        def attempt() -> h5py.Dataset:
            made_of = kind or draw_type(self)
            space = shape or self.shape()
            if self.chance(0.05):
                made_of = made_of.copy()
                made_of.commit(file.id, f"type{self.count}-{self.between(0, 1 << 30)}".encode())
            dset = self.storage(file, name, made_of, space)
            self.fill(dset)
            return dset

        self.try_each(attempt)
        return name

    def shape(self) -> tuple[int, ...] | None:
        if self.chance(0.04):
            return self.one_of([None, (), (0,), (0, 3), (self.rows, 0), (self.rows, 0, 2)])
        rows = self.rows if self.chance(0.8) else self.between(1, 40)
        return (rows, *(self.between(1, 7) for _ in range(self.one_of([0, 0, 1, 1, 2, 3, 5]))))

    def storage(self, file: h5py.File, name: str, kind: Any, shape: Any) -> h5py.Dataset:
        create, links = h5p.create(h5p.DATASET_CREATE), h5p.create(h5p.LINK_CREATE)
        links.set_create_intermediate_group(True)
        links.set_char_encoding(h5t.CSET_UTF8)
        space = h5s.create(h5s.NULL) if shape is None else h5s.create_simple(shape) if shape else h5s.create(h5s.SCALAR)
        layout = self.one_of(["contiguous", "chunked", "chunked", "chunked", "compact", "external"]) if shape else ""
        if self.chance(0.3):
            create.set_fill_time(self.one_of([h5d.FILL_TIME_ALLOC, h5d.FILL_TIME_NEVER, h5d.FILL_TIME_IFSET]))
        if self.chance(0.3):
            create.set_alloc_time(self.one_of([h5d.ALLOC_TIME_EARLY, h5d.ALLOC_TIME_LATE, h5d.ALLOC_TIME_INCR]))
        self.fill_value(create, kind)
        if layout == "compact":
            create.set_layout(h5d.COMPACT)
        elif layout == "external" and min(shape):
            self.outside(create, kind.get_size() * int(np.prod(shape)))
        elif layout == "chunked":
            most = tuple(self.one_of([n, n, n + 5, h5s.UNLIMITED]) for n in shape)
            space = h5s.create_simple(shape, most)
            create.set_chunk(tuple(self.between(1, max(1, n if m == n else n + 3)) for n, m in zip(shape, most)))

            add_filters(self, create, kind)
        if (old := file.get(name)) is not None:
            del old, file[name]
        if self.chance(0.1):
            create.set_obj_track_times(self.chance(0.5))
        return h5py.Dataset(h5d.create(file.id, name.encode(), kind, space, create, links))

    def fill_value(self, create: Any, kind: Any) -> None:
        try:
            if self.chance(0.4) and kind.dtype.kind in "biufc" and kind.dtype.subdtype is None:
                raw = self.rng.bytes(kind.dtype.itemsize)
                create.set_fill_value(np.frombuffer(raw, "u1").copy().view(kind.dtype).reshape(1))
        except TypeError:
            return

    def outside(self, create: Any, size: int) -> None:
        """Storage in other files: in one or several pieces, from any byte on."""
        left = size
        while left:
            part = left if self.chance(0.6) else self.between(1, left)
            self.count += 1
            most = h5f.UNLIMITED if part == left and self.chance(0.5) else part
            create.set_external(str(self.folder / f"raw{self.count}").encode(), self.one_of([0, 0, 3, 100]), most)
            left -= part

    # -- values

    def fill(self, dset: h5py.Dataset) -> None:
        """Written whole, in parts or never; an unlimited one may have grown and shrunk."""
        if dset.shape is None:
            return
        chunked = dset.id.get_create_plist().get_layout() == h5d.CHUNKED
        for _ in range(self.one_of([0, 1, 1, 1, 3]) if chunked else self.one_of([0, 1, 1, 1, 1, 1])):
            if chunked and self.chance(0.3):
                most = dset.id.get_space().get_simple_extent_dims(True)
                new = [n if m == n else self.between(0 if k else 1, min(m, n + 4) if m < UNLIMITED else n + 4)
                       for k, (n, m) in enumerate(zip(dset.shape, most))]  # fmt: skip
                dset.id.set_extent(tuple(new))
            whole = self.chance(0.7)
            part = [slice(0, n) if whole else slice(a := self.between(0, n), self.between(a, n)) for n in dset.shape]
            self.put(dset, part)
        if chunked and self.chance(0.15):
            self.put_chunk(dset)

    def put(self, dset: h5py.Dataset, part: list[slice]) -> None:

        count = tuple(s.stop - s.start for s in part)
        if 0 in count:
            return
        kind = dset.id.get_type()
        if (objects := random_objects(self, kind, count)) is not None:
            dset[tuple(part)] = objects
            return
        raw = random_bytes(self, kind, int(np.prod(count)))
        if not count:
            dset.id.write(h5s.ALL, h5s.ALL, raw, kind)
            return
        there = dset.id.get_space()
        there.select_hyperslab(tuple(s.start for s in part), count)
        dset.id.write(h5s.create_simple(count), there, raw, kind)

    def put_chunk(self, dset: h5py.Dataset) -> None:
        """A chunk stored without some of its filters: the mask says which."""

        kind, chunk = dset.id.get_type(), dset.chunks
        if random_objects(self, kind, (1,)) is not None or 0 in dset.shape:
            return
        corner = tuple(self.between(0, (n - 1) // c) * c for n, c in zip(dset.shape, chunk))
        raw, mask = stored(self, dset, random_bytes(self, kind, int(np.prod(chunk))))
        dset.id.write_direct_chunk(corner, raw, mask)


def write(folder: Path, seed: int, rows: int | None = None) -> list[str]:
    """-> the fields of folder/f.h5."""
    return Writer(folder, seed, rows).write()
