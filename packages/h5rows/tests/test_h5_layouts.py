"""Layouts that HDF5 itself describes wrongly, or that are damaged: what h5py reads, or one sentence."""

from __future__ import annotations

import itertools
import os
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
from h5_types import set_chunk_opts

from h5rows.dataset import Dataset
from h5rows.errors import ConfigError
from h5rows.reading import filters

BOMBS: dict[str, Any] = {
    "gzip": {"compression": "gzip", "shuffle": True},
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc": dict(hdf5plugin.Blosc(cname="zstd")),
}


def root(path: Path, name: str = "x", **options: Any) -> Dataset:
    return Dataset(str(path), {"x": name}, **options)


def same_as_h5py(path: Path, name: str = "x") -> str:
    data = root(path, name)
    with h5py.File(path) as file:
        theirs = file[name][...]
    assert data.gather(np.arange(len(data)))["x"].numpy().tobytes() == theirs.tobytes(), data.describe()
    return data.describe()[0]


def test_sparse_sets_that_grew_along_any_axis(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    for k, (latest, gzip, growing) in enumerate(itertools.product((0, 1), (0, 1), range(4))):
        path = tmp_path / f"{k}.h5"
        for _ in range(3):
            most = tuple(None if growing >> axis & 1 else 9 for axis in (0, 1))
            with h5py.File(path, "w", libver="latest" if latest else None) as file:
                dset = file.create_dataset(
                    "x", (9, 6), "i4", chunks=(2, 2), maxshape=most, fillvalue=7, compression="gzip" if gzip else None
                )
                if most[1] is None:
                    dset.resize(9, 1)
                for row, column in zip(rng.integers(0, 9, 3), rng.integers(0, dset.shape[1], 3), strict=True):
                    dset[row, column] = rng.integers(1 << 30)
            same_as_h5py(path)


@pytest.mark.parametrize("gzip", [False, True])
def test_chunks_at_the_edge_without_their_filters(gzip: bool, tmp_path: Path) -> None:
    create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    create.set_chunk((4, 4))
    create.set_shuffle()
    if gzip:
        create.set_deflate(1)
    if not set_chunk_opts(create):
        pytest.skip("the C library of h5py is not beside it")
    rng = np.random.default_rng(0)
    for shape in ((10, 6), (4, 6), (9, 8), (8, 8)):
        with h5py.File(tmp_path / "f.h5", "w", libver="latest") as file:
            kind, space = h5py.h5t.NATIVE_INT32, h5py.h5s.create_simple(shape)
            values = rng.integers(0, 1 << 30, shape) * (rng.random(shape) < 0.3)
            h5py.Dataset(h5py.h5d.create(file.id, b"x", kind, space, create))[...] = values
        same_as_h5py(tmp_path / "f.h5")


@pytest.mark.parametrize("block", [0, 512, 4096])
def test_a_dataset_that_was_never_written(block: int, tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w", userblock_size=block) as file:
        for size in (1, 7, 100, 600):
            file.create_dataset(f"x{size}", (size,), "u1", fillvalue=3)
            file.create_dataset(f"y{size}", (size, 3), "f4")
    for size, name in itertools.product((1, 7, 100, 600), "xy"):
        assert "never written" in same_as_h5py(tmp_path / "f.h5", f"{name}{size}")


def _entry(path: Path, info: Any) -> int:
    """Where in the file the entry of a chunk lies in the B-tree: its size, mask and corner, then its address."""
    return path.read_bytes().index(np.uint64(info.byte_offset).tobytes()) - 8 * (len(info.chunk_offset) + 2)


@pytest.mark.parametrize("damage", ["no size", "far", "farther", "one bit"])
def test_a_damaged_entry_of_a_chunk(damage: str, tmp_path: Path) -> None:
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file.create_dataset("x", data=np.arange(400).reshape(100, 4), chunks=(10, 4), compression="gzip")
        info = file["x"].id.get_chunk_info(4)
    at = _entry(path, info)
    whole = bytearray(path.read_bytes())
    assert int.from_bytes(whole[at : at + 4], "little") == info.size
    if damage == "no size":
        whole[at : at + 4] = bytes(4)
    else:
        address = {"far": 1 << 40, "farther": (1 << 63) - 1, "one bit": info.byte_offset ^ 1 << 33}[damage]
        whole[at + 32 : at + 40] = address.to_bytes(8, "little")
    path.write_bytes(whole)
    with h5py.File(path) as file, pytest.raises(OSError, match="read"):
        file["x"][...]
    with pytest.raises(ConfigError, match=r"f.h5.*cannot be read"):
        root(path).gather(np.arange(100))


def test_more_rows_than_were_ever_written(tmp_path: Path) -> None:
    """2**33 rows of one chunk each, of which two are there: no list of all of them is made."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        dset = file.create_dataset("x", (1 << 33, 2), "f4", chunks=(1, 2), fillvalue=5, compression="gzip")
        dset[0], dset[1 << 32] = 1, 2
    data = root(tmp_path / "f.h5")
    assert data.gather(np.array([0, 1 << 32, 7]))["x"].tolist() == [[1, 1], [2, 2], [5, 5]]
    assert "8589934592 chunks, of which 2 are written" in data.describe()[0]
    assert os.path.getsize(tmp_path / "f.h5") < 1 << 20


def test_what_no_tensor_holds_is_refused_in_one_line(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["t"] = np.zeros(4, [("s", "S3"), ("n", [("x", "f4")]), ("v", "i4")])
        file.create_dataset("a", (4,), np.dtype(("S3", (2,))))
        pairs = h5py.h5t.array_create(h5py.h5t.array_create(h5py.h5t.NATIVE_INT32, (2,)), (3,))
        h5py.h5d.create(file.id, b"nested", pairs, h5py.h5s.create_simple((4,)))
        kind = h5py.h5t.STD_I32LE.copy()
        kind.set_size(3)
        kind.set_precision(24)
        h5py.h5d.create(file.id, b"three", kind, h5py.h5s.create_simple((4,)))
    for name, match in {
        "t/n": "/t/n is a nested compound type",
        "t": "choose a member: /t/v",  # a string cannot be one
        "a": "which no tensor supports",
        "nested": "which no tensor supports",
        "three": "has a type that NumPy does not support|which no tensor",
    }.items():
        with pytest.raises(ConfigError, match=match):
            root(tmp_path / "f.h5", name)
    data = root(tmp_path / "f.h5", "t/v")
    assert len(data) == 4
    for rows in (np.ones(4, bool), np.zeros(2), np.zeros((2, 2), int)):
        with pytest.raises(TypeError, match="rows must be row numbers"):
            data.gather(rows)
    assert data[1:3]["x"].equal(data.gather(np.arange(1, 3))["x"])


def test_two_compressors(tmp_path: Path) -> None:
    values = np.random.default_rng(0).integers(0, 256, (8, 1 << 17), dtype=np.uint8)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        create.set_chunk((1, 1 << 17))
        create.set_deflate(1)
        create.set_filter(filters.ZSTD, h5py.h5z.FLAG_OPTIONAL, (3,))
        space = h5py.h5s.create_simple(values.shape)
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_UINT8, space, create))[...] = values
        file.create_dataset("large", data=values, chunks=(2, 1 << 17), compression="gzip")
    assert "several compressors" in same_as_h5py(tmp_path / "f.h5")
    assert "chunks (" in same_as_h5py(tmp_path / "f.h5", "large")


@pytest.mark.one_quick
@pytest.mark.parametrize("codec", BOMBS)
def test_a_chunk_that_holds_far_more_than_it_should(codec: str, tmp_path: Path) -> None:
    """Its row is refused; the others are read."""
    with h5py.File(tmp_path / "f.h5", "w") as file, h5py.File("m", "w", driver="core", backing_store=False) as other:
        bomb = file.create_dataset("x", (10, 64), "u1", chunks=(1, 64), **BOMBS[codec])
        bomb[...] = np.arange(10)[:, None]
        donor = other.create_dataset("x", (1, 1 << 24), "u1", chunks=(1, 1 << 24), **BOMBS[codec])
        donor[...] = 3
        mask, raw = donor.id.read_direct_chunk((0, 0))
        bomb.id.write_direct_chunk((4, 0), raw, mask)
    data = root(tmp_path / "f.h5")
    assert "chunks (" in data.describe()[0]
    tracemalloc.start()
    with pytest.raises(ConfigError, match=r"damaged in the chunk of row 4 .*(16777216|longer than the 64)"):
        data.gather(np.arange(10))
    assert tracemalloc.get_traced_memory()[1] < 1 << 22  # its 16 MB are not made first
    tracemalloc.stop()
    assert data.gather(np.array([3, 5]))["x"][:, 0].tolist() == [3, 5]


@pytest.mark.slow
@pytest.mark.parametrize("lacking", [(), ("deflate",)])
def test_every_library_that_inflates(lacking: tuple[str, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """The same bytes and refusals (a cut stream, a wrong checksum, more than a chunk holds), within little memory."""
    load = filters._load
    monkeypatch.setattr(filters, "_load", lambda library: None if library in lacking else load(library))
    gzip, rng = ((filters.DEFLATE, (4,)),), np.random.default_rng(0)
    for size in (0, 1, 1000, 1 << 18):
        raw = rng.integers(0, 40, size, dtype=np.uint8).tobytes()
        packed = zlib.compress(raw)
        for whole in (packed, packed + b"more", memoryview(packed)):
            assert bytes(filters.decode(whole, gzip, 0, size)) == raw
        wrong = bytes([packed[-1] ^ 1])
        for damaged in (packed[:-1], packed[: len(packed) // 2], packed[:-1] + wrong, b"", zlib.compress(raw + b"1")):
            with pytest.raises(ValueError):
                filters.decode(damaged, gzip, 0, size)
    bomb = zlib.compress(bytes(1 << 27))
    tracemalloc.start()
    with pytest.raises(ValueError, match="64 bytes"):
        filters.decode(bomb, gzip, 0, 64)
    assert tracemalloc.get_traced_memory()[1] < 1 << 22
    tracemalloc.stop()
