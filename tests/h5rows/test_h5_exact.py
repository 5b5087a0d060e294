"""Every file that h5py can write is read as h5py reads it, bit for bit."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from h5rows.dataset import Dataset

DTYPES = ["?", "i1", "u1", "<i2", "<u2", "<i4", "<u4", "<i8", "<u8", "<f2", "<f4", "<f8", "<c8", "<c16"]
DTYPES += [">i2", ">u4", ">f4", ">f8", "enum", "inner"]
CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "gzip+fletcher32": {"compression": "gzip", "fletcher32": True},
    "shuffle+fletcher32": {"shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lz4": dict(hdf5plugin.LZ4()),
    "lz4 in blocks": dict(hdf5plugin.LZ4(nbytes=64)),
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc lz4": dict(hdf5plugin.Blosc(cname="lz4")),
    "blosc zstd bitshuffle": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc2": dict(hdf5plugin.Blosc2()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}


def file_type(name: str) -> np.dtype:
    if name == "enum":
        return h5py.enum_dtype({"cat": 0, "dog": 7}, basetype="i2")
    return np.dtype(("<f4", (2,))) if name == "inner" else np.dtype(name)


def random_values(rng: np.random.Generator, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    base, inner = dtype.subdtype or (dtype, ())
    shape = (*shape, *inner)
    if base.kind == "b":
        return rng.integers(0, 2, shape).astype(bool)
    raw = rng.integers(0, 256, (*shape, base.itemsize), dtype=np.uint8)  # all bit patterns, NaNs included
    if base == np.uint64:
        raw &= 127  # above int64's range is an error, see test_h5_fields
    raw[rng.random(shape) < 0.3] = 0
    return raw.view(base).reshape(shape)


def same_bits(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    wide = theirs.dtype.kind == "u" and theirs.dtype.itemsize >= 4  # torch has no arithmetic for these: int64
    native = np.asarray(theirs).astype(np.int64 if wide else theirs.dtype.newbyteorder("="), copy=False)
    mine = ours.numpy()
    return mine.shape == native.shape and mine.dtype == native.dtype and mine.tobytes() == native.tobytes()


def root(path: Path, **fields: str) -> Dataset:
    return Dataset(str(path), fields, "all", {"all": {"group": "/"}}, cache_mb=1, external="allow")


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    low = draw(st.sampled_from([0, 1, 1, 1]))
    shape = (draw(st.integers(1, 40)), *(draw(st.integers(low, 9)) for _ in range(draw(st.integers(0, 3)))))
    layout = draw(st.sampled_from(["contiguous", "chunked", "chunked", "compact", "external", "virtual"]))
    case = {
        "shape": shape,
        "dtype": draw(st.sampled_from(DTYPES)),
        "layout": layout,
        "seed": draw(st.integers(0, 1 << 30)),
        "user_block": draw(st.sampled_from([0, 0, 512, 2048])),
        "latest": draw(st.booleans()),
    }
    if layout == "chunked":
        whole = draw(st.booleans())
        tile = (n if whole else draw(st.integers(1, max(n, 1))) for n in shape[1:])
        case["chunks"] = (draw(st.integers(1, shape[0])), *tile)
        case["codec"] = draw(st.sampled_from(sorted(CODECS)))
        case["fill"] = draw(st.booleans())
        case["written"] = draw(st.sampled_from([1.0, 1.0, 0.5, 0.0]))
    return case


def write(path: Path, case: dict[str, Any]) -> None:
    rng, dtype = np.random.default_rng(case["seed"]), file_type(case["dtype"])
    values = random_values(rng, case["shape"], dtype)
    layout, shape = case["layout"], case["shape"]
    with h5py.File(path, "w", userblock_size=case["user_block"], libver="latest" if case["latest"] else None) as file:
        file.attrs["padding"] = "x" * int(rng.integers(1, 200))  # so that offsets are misaligned
        file["odd"] = np.zeros(int(rng.integers(1, 9)), "u1")  # what follows is misaligned
        if layout == "compact" and values.nbytes < 60000:
            create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
            create.set_layout(h5py.h5d.COMPACT)
            space, kind = h5py.h5s.create_simple(shape), h5py.h5t.py_create(dtype, logical=True)
            h5py.Dataset(h5py.h5d.create(file.create_group("a").id, b"b", kind, space, create))[...] = values
        elif layout == "external" and values.size:
            file.create_dataset("a/b", shape, dtype, external=[(str(path) + ".raw", 0, h5py.h5f.UNLIMITED)])[...] = (
                values
            )
        elif layout == "virtual" and dtype.subdtype is None:
            file.create_dataset("source", shape, dtype)[...] = values
            virtual = h5py.VirtualLayout(shape, dtype)
            virtual[...] = h5py.VirtualSource(".", "source", shape)
            file.create_virtual_dataset("a/b", virtual)
        elif layout == "chunked" and values.size:
            plain = dtype.subdtype is None and case["dtype"] != "enum"
            dset = file.create_dataset(
                "a/b",
                shape,
                dtype,
                chunks=case["chunks"],
                maxshape=(None, *shape[1:]),
                fillvalue=random_values(rng, (), dtype)[()] if case["fill"] and plain else None,
                **CODECS[case["codec"]],
            )
            written = int(np.ceil(case["written"] * shape[0]))
            if written:
                dset[:written] = values[:written]
        else:
            file.create_dataset("a/b", shape, dtype)[...] = values


@pytest.mark.slow
@settings(max_examples=250, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_any_layout_type_and_filter(case: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "f.h5"
        write(path, case)
        ours = root(path, x="a/b")
        with h5py.File(path, "r") as file:
            theirs = file["a/b"][...]
        assert len(ours) == len(theirs)
        rows = np.random.default_rng(1).integers(0, len(theirs), 3 * len(theirs))  # repeated, in any order
        assert same_bits(ours.gather(rows)["x"], theirs[rows]), ours.describe()
        shape, dtype = ours.spec["x"]
        buffer = torch.empty((len(theirs) + 2, *shape), dtype=dtype)
        got = ours.gather(np.arange(len(theirs)), {"x": buffer})["x"]
        assert same_bits(got, theirs)
        assert got.data_ptr() == buffer.data_ptr()
        assert same_bits(ours[len(ours) - 1]["x"], theirs[-1:][0])


@pytest.mark.one_quick
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_the_fast_ways_are_taken(codec: str, tmp_path: Path) -> None:
    """Else the test above would compare h5py with itself."""
    values = np.arange(6000, dtype=np.float32).reshape(100, 60)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("plain", data=values)
        file.create_dataset("coded", data=values, chunks=(7, 60), **CODECS[codec])
        file.create_dataset("tiled", data=values, chunks=(7, 11), **CODECS[codec])
    data = root(tmp_path / "f.h5", plain="plain", coded="coded", tiled="tiled")
    ways = [line.split(" (")[1].split(", ")[-1] for line in data.describe()]
    slow = codec in ("lzf", "blosc2", "bitshuffle")
    assert ways == [
        "mapped",
        "h5py" if slow else "mapped" if codec == "none" else "chunks",
        "h5py" if slow else "chunks",
    ]


def test_filter_mask(tmp_path: Path) -> None:
    """A chunk may have been stored with some of its filters left out."""
    values = np.arange(400, dtype=np.int32).reshape(40, 10)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        dset = file.create_dataset("x", (40, 10), "i4", chunks=(4, 10), compression="gzip", shuffle=True)
        dset[...] = values
        dset.id.write_direct_chunk((8, 0), values[8:12].tobytes(), filter_mask=0b11)
        shuffled = np.ascontiguousarray(values[12:16]).view(np.uint8).reshape(-1, 4).T.tobytes()
        dset.id.write_direct_chunk((12, 0), shuffled, filter_mask=0b10)
    data = root(tmp_path / "f.h5", x="x")
    assert "chunks" in data.describe()[0]
    assert same_bits(data.gather(np.arange(40))["x"], values)


def test_filters_in_an_unusual_order(tmp_path: Path) -> None:
    """A checksum before the shuffling leaves bytes over that are no whole element."""
    values = np.random.default_rng(0).random((40, 7))
    with h5py.File(tmp_path / "f.h5", "w") as file:
        create = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        create.set_chunk((3, 7))
        create.set_fletcher32()
        create.set_shuffle()
        create.set_deflate(1)
        space = h5py.h5s.create_simple((40, 7))
        h5py.Dataset(h5py.h5d.create(file.id, b"x", h5py.h5t.NATIVE_DOUBLE, space, create))[...] = values
    data = root(tmp_path / "f.h5", x="x")
    assert "fletcher32+shuffle+gzip" in data.describe()[0]
    assert same_bits(data.gather(np.arange(40))["x"], values)


def test_members_of_compound_types(tmp_path: Path) -> None:
    table = np.zeros(50, dtype=[("energy", "<f4"), ("hits", "<i2", (3,))])
    table["energy"], table["hits"] = np.arange(50), np.arange(150).reshape(50, 3)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["events/table"] = table
    data = root(tmp_path / "f.h5", e="events/table/energy", h="events/table/hits")
    rows = np.array([5, 49, 0, 1, 2, 2])
    batch = data.gather(rows)
    assert same_bits(batch["e"], table["energy"][rows])
    assert same_bits(batch["h"], table["hits"][rows])


def test_links_into_another_file(tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((30, 5))
    (tmp_path / "deep").mkdir()
    with h5py.File(tmp_path / "deep" / "b.h5", "w") as file:
        file["v"] = values
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["far"] = h5py.ExternalLink("deep/b.h5", "/v")
        file["near"] = h5py.SoftLink("/far")
    data = root(tmp_path / "a.h5", x="far", y="near")
    assert all("mapped" in line for line in data.describe())
    assert same_bits(data.gather(np.arange(30))["y"], values)
