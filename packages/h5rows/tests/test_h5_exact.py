"""Which way a layout is read in, and what is special about filters, compound types and links; all else is random
files' (test_h5_generated)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
import pytest
import torch

from h5rows.dataset import Dataset

CODECS: dict[str, dict[str, Any]] = {
    "none": {},
    "gzip": {"compression": "gzip"},
    "gzip+shuffle": {"compression": "gzip", "shuffle": True},
    "gzip+fletcher32": {"compression": "gzip", "fletcher32": True},
    "shuffle+fletcher32": {"shuffle": True, "fletcher32": True},
    "lzf": {"compression": "lzf"},
    "lz4": dict(hdf5plugin.LZ4()),
    "zstd": dict(hdf5plugin.Zstd()),
    "blosc lz4": dict(hdf5plugin.Blosc(cname="lz4")),
    "blosc zstd bitshuffle": dict(hdf5plugin.Blosc(cname="zstd", shuffle=hdf5plugin.Blosc.BITSHUFFLE)),
    "blosc2": dict(hdf5plugin.Blosc2()),
    "bitshuffle": dict(hdf5plugin.Bitshuffle()),
}


def same_bits(ours: torch.Tensor, theirs: np.ndarray) -> bool:
    mine = ours.numpy()
    return mine.shape == theirs.shape and mine.dtype == theirs.dtype and mine.tobytes() == theirs.tobytes()


def root(path: Path, **fields: str) -> Dataset:
    return Dataset(str(path), fields, "all", {"all": {"group": "/"}}, cache_mb=1, external="allow")


@pytest.mark.one_quick
@pytest.mark.parametrize("codec", sorted(CODECS))
def test_the_fast_ways_are_taken(codec: str, tmp_path: Path) -> None:
    """Else random files would compare h5py with itself."""
    values = np.arange(6000, dtype=np.float32).reshape(100, 60)
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("plain", data=values)
        file.create_dataset("coded", data=values, chunks=(7, 60), **CODECS[codec])
        file.create_dataset("tiled", data=values, chunks=(7, 11), **CODECS[codec])
    data = root(tmp_path / "f.h5", plain="plain", coded="coded", tiled="tiled")
    ways = [line.split(" (")[1].split(", ")[-1] for line in data.describe()]
    slow = codec in ("lzf", "lz4", "blosc2", "bitshuffle")
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
