"""Each foreign format: what was stored there is what the file holds, and bad input is named."""

from __future__ import annotations

import ast
import gc
import io
import math
import os
import re
import struct
import sys
import tarfile
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from running import PACKAGE

import h5rows
from h5rows.account import Account
from h5rows.errors import EXTRAS, ConfigError
from h5rows.importers import open_source
from h5rows.importers.tfrecord import masked_crc32c
from h5rows.options import PackOptions
from h5rows.packing.write import pack


def packed(path: Path, **kwargs: Any) -> tuple[h5py.File, Account]:
    options = PackOptions(**{"quiet": True, "workers": 1, "overwrite": True, **kwargs})
    source = open_source(str(path), options)
    return h5py.File(pack(source, path.parent / "out.h5", options, {})), source.account


def run(path: Path, **kwargs: Any) -> h5py.File:
    return packed(path, **{"workers": 2, **kwargs})[0]


def numbers(n: int = 50, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(n, 3, 4)).astype(np.float32)


def png(seed: int = 0, side: int = 6) -> tuple[bytes, np.ndarray]:
    image = pytest.importorskip("PIL.Image")
    array = np.random.default_rng(seed).integers(0, 256, (side, side, 3), np.uint8)
    buffer = io.BytesIO()
    image.fromarray(array).save(buffer, "PNG")
    return buffer.getvalue(), array.transpose(2, 0, 1)


def npy(array: np.ndarray) -> bytes:
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


# -- numpy and torch


@pytest.mark.parametrize(("compressed", "order"), [(False, "F"), (True, "C")])
def test_npz(tmp_path: Path, compressed: bool, order: Any) -> None:
    arrays = {"x_train": np.asarray(numbers(), order=order), "y_train": np.arange(50)}
    arrays |= {"x_test": numbers(9, 1), "y_test": np.arange(9)}
    (np.savez_compressed if compressed else np.savez)(tmp_path / "a.npz", **arrays)
    with run(tmp_path / "a.npz") as file:
        for split in ("train", "test"):
            for name in ("x", "y"):
                np.testing.assert_array_equal(file[split][name][:], arrays[f"{name}_{split}"])


def test_npy_folder_is_columns_and_lengths_must_agree(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in/x.npy", numbers())
    np.save(tmp_path / "in/y.npy", np.arange(50))
    with run(tmp_path / "in", fields={"y": "label", "x": "x"}) as file:
        assert set(file) == {"x", "label"}
    np.save(tmp_path / "in/y.npy", np.arange(49))
    with pytest.raises(ConfigError, match=r"differ in their number of rows: .*x 50, y 49"):
        run(tmp_path / "in")
    with run(tmp_path / "in", fields={"y": "y"}) as file:
        assert len(file["y"]) == 49


def test_torch_files(tmp_path: Path) -> None:
    x = torch.from_numpy(numbers())
    test = {"x": x[:5].bfloat16().float(), "y": torch.arange(5)}
    torch.save({"train": {"x": x, "y": torch.arange(50)}, "test": test}, tmp_path / "a.pth")
    with run(tmp_path / "a.pth") as file:
        np.testing.assert_array_equal(file["train/x"][:], x.numpy())
        assert file["test/y"].dtype == np.int64
    torch.save((x.bfloat16(), torch.arange(50)), tmp_path / "b.pt")
    with run(tmp_path / "b.pt", fields={"field0": "x"}) as file:
        np.testing.assert_array_equal(file["x"][:], x.bfloat16().float().numpy())
    torch.save({"model": torch.nn.Linear(2, 2)}, tmp_path / "c.pth")
    with pytest.raises(ConfigError, match=r"could run code"):
        run(tmp_path / "c.pth")


@pytest.mark.slow
@pytest.mark.parametrize("suffix", [".npy", ".pth"])
def test_one_file_per_sample(tmp_path: Path, suffix: str) -> None:
    x = numbers(6)
    for k in range(6):
        (tmp_path / "in" / "ab"[k % 2]).mkdir(parents=True, exist_ok=True)
        path = tmp_path / "in" / "ab"[k % 2] / f"{k}{suffix}"
        np.save(path, x[k]) if suffix == ".npy" else torch.save(torch.from_numpy(x[k]), path)
    with run(tmp_path / "in") as file:
        np.testing.assert_array_equal(file["x"][:], x[[0, 2, 4, 1, 3, 5]])
        np.testing.assert_array_equal(file["label"][:], [0, 0, 0, 1, 1, 1])
    (tmp_path / "in/a/2_").with_suffix(suffix).write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=rf"a/2_{suffix}.*on_error='skip'"):
        run(tmp_path / "in")


# -- lmdb, tar, tfrecord


def write_lmdb(path: Path, items: dict[str, bytes]) -> None:
    lmdb = pytest.importorskip("lmdb")
    with lmdb.open(str(path), map_size=1 << 26) as env, env.begin(write=True) as txn:
        for key, value in items.items():
            txn.put(key.encode(), value)


def test_lmdb(tmp_path: Path) -> None:
    images = [png(k) for k in range(12)]
    items = {f"image-{k}": images[k][0] for k in range(12)} | {f"label-{k}": str(k * 3).encode() for k in range(12)}
    write_lmdb(tmp_path / "a", {**items, "num-samples": b"12"})
    with run(tmp_path / "a") as file:
        np.testing.assert_array_equal(file["image"][:], [array for _, array in images])
        np.testing.assert_array_equal(file["label"][:], np.arange(12) * 3)
    x = numbers(5)
    write_lmdb(tmp_path / "b", {str(k): x[k].tobytes() for k in range(5)})
    with pytest.raises(ConfigError, match=r"48 bytes of unknown kind; .*kinds="):
        run(tmp_path / "b")
    with run(tmp_path / "b", kinds={"value": "float32:3,4"}) as file:
        np.testing.assert_array_equal(file["value"][:], x)
    write_lmdb(tmp_path / "c", {"0": b"\x80\x04]."})
    with pytest.raises(ConfigError, match="pickle"):
        run(tmp_path / "c")
    write_lmdb(tmp_path / "d", {})
    with pytest.raises(ConfigError, match="contains no samples"):
        run(tmp_path / "d")


def write_tar(path: Path, members: list[tuple[str, bytes]]) -> None:
    path.parent.mkdir(exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


@pytest.mark.slow
def test_webdataset(tmp_path: Path) -> None:
    images = [png(k) for k in range(9)]
    x = numbers(9)
    for shard, split in enumerate(["train", "train", "val"]):
        members = []
        for k in range(3 * shard, 3 * shard + 3):
            parts = {"png": images[k][0], "cls": str(k).encode(), "emb.npy": npy(x[k]), "txt": ("ü" * k).encode()}
            members += [(f"dir/{k:04}.{ext}", data) for ext, data in parts.items()]
        write_tar(tmp_path / f"in/{split}-{shard:05}.tar", members)
    with run(tmp_path / "in") as file:
        np.testing.assert_array_equal(file["train/image"][:], [array for _, array in images[:6]])
        np.testing.assert_array_equal(file["val/label"][:], [6, 7, 8])
        np.testing.assert_array_equal(file["train/emb.npy"][:], x[:6])
        texts = np.split(file["train/txt/values"][:], file["train/txt/offsets"][1:-1])
        assert [t.tobytes().decode() for t in texts] == ["ü" * k for k in range(6)]
        assert file["train/txt/values"].attrs["encoding"] == "utf-8"
    write_tar(tmp_path / "in/train-00001.tar", [("4.png", images[4][0])])
    with pytest.raises(ConfigError, match=r"train-00001.tar: 4: has no field"):
        run(tmp_path / "in")
    with run(tmp_path / "in", fields={"image": "x"}) as file:
        assert len(file["train/x"]) == 4
    with tarfile.open(tmp_path / "z.tar", "w:gz"):
        pass
    with pytest.raises(ConfigError, match="decompress"):
        run(tmp_path / "z.tar")


def field(number: int, body: bytes) -> bytes:
    return wire(number << 3 | 2) + wire(len(body)) + body


def wire(value: int) -> bytes:
    value, out = value & (1 << 64) - 1, bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


def record(features: dict[str, Any], packed: bool) -> bytes:
    entries = b""
    for name, value in features.items():
        if isinstance(value, bytes):
            body = field(1, field(1, value))
        elif value.dtype.kind == "f":
            body = field(2, field(1, value.astype("<f4").tobytes()) if packed else b"".join(
                wire(1 << 3 | 5) + struct.pack("<f", v) for v in value))  # fmt: skip
        else:
            ints = [wire(int(v)) for v in value]
            body = field(3, field(1, b"".join(ints)) if packed else b"".join(wire(1 << 3) + v for v in ints))
        entries += field(1, field(1, name.encode()) + field(2, body))
    return framed(field(1, entries))


def framed(data: bytes) -> bytes:
    head = struct.pack("<Q", len(data))
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


@pytest.mark.one_quick
@pytest.mark.parametrize("packed", [True, False])
def test_tfrecord(tmp_path: Path, packed: bool) -> None:
    images, x = [png(k) for k in range(8)], numbers(8).reshape(8, 12)
    ids = np.random.default_rng(0).integers(-(2**63), 2**63 - 1, (8, 5))
    fields = ({"image": images[k][0], "x": x[k], "ids": ids[k], "label": np.array([k - 4])} for k in range(8))
    made = [record({**each, "raw": each["x"].tobytes()}, packed) for each in fields]
    (tmp_path / "in").mkdir()
    (tmp_path / "in/train.tfrecord-00000-of-00002").write_bytes(b"".join(made[:5]))
    (tmp_path / "in/train.tfrecord-00001-of-00002").write_bytes(b"".join(made[5:]))
    with run(tmp_path / "in", kinds={"raw": "float32:3,4"}) as file:
        np.testing.assert_array_equal(file["train/image"][:], [array for _, array in images])
        np.testing.assert_array_equal(file["train/x"][:], x)
        np.testing.assert_array_equal(file["train/ids"][:], ids)
        np.testing.assert_array_equal(file["train/label"][:], np.arange(8) - 4)
        np.testing.assert_array_equal(file["train/raw"][:].reshape(8, 12), x)
    cut, wrong = b"".join(made)[:-7], b"\1" + made[0][1:]
    for damage, message in ((cut, "cut off in the record"), (wrong, "no valid record at byte 0")):
        (tmp_path / "a.tfrecord").write_bytes(damage)
        with pytest.raises(ConfigError, match=message):
            run(tmp_path / "a.tfrecord")


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="looks into /proc")
def test_shards_are_closed_with_their_source(tmp_path: Path) -> None:
    """Also in a program that packs many sets."""
    write_tar(tmp_path / "a.tar", [("0.cls", b"7"), ("1.cls", b"8")])
    (tmp_path / "a.tfrecord").write_bytes(record({"x": np.arange(2)}, True))
    for name in ("a.tar", "a.tfrecord"):
        source = open_source(str(tmp_path / name), PackOptions(quiet=True))
        assert is_open(tmp_path / name), "it has read the first sample"
        del source
        gc.collect()
        assert not is_open(tmp_path / name)


def is_open(path: Path) -> bool:
    return any(os.path.realpath(link) == str(path) for link in Path("/proc/self/fd").iterdir())


def test_crc32c_of_the_standard() -> None:
    """RFC 3720, B.4: crc32c of 32 zero bytes is 8A9136AA."""
    crc = 0x8A9136AA
    assert masked_crc32c(bytes(32)) == ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


# -- zarr and N5


@pytest.mark.parametrize("version", [2, 3])
def test_zarr(tmp_path: Path, version: Any) -> None:
    zarr = pytest.importorskip("zarr")
    x = numbers()
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=version)
    for split, rows in (("train", slice(0, 40)), ("test", slice(40, 50))):
        made = root.create_array(f"{split}/x", shape=x[rows].shape, chunks=(7, 3, 2), dtype=x.dtype)
        made[:] = x[rows]
    with run(tmp_path / "a.zarr", split={"val": 0.25}) as file:
        assert {k: len(v["x"]) for k, v in file.items()} == {"train": 30, "val": 10, "test": 10}
        together = np.concatenate([file["train/x"][:], file["val/x"][:]])
        np.testing.assert_array_equal(np.sort(together, axis=0), np.sort(x[:40], axis=0))
        np.testing.assert_array_equal(file["test/x"][:], x[40:])
    with pytest.raises(ConfigError, match=r"shuffle=True: this format is slow"):
        run(tmp_path / "a.zarr", shuffle=True)


@pytest.mark.parametrize("shape", [(3,), (1,), (3, 4), (1, 1), (2, 1, 3)])
def test_zarr_in_column_major_order(shape: tuple[int, ...], tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    values, root = (
        np.arange(math.prod(shape)).reshape(shape),
        zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2),
    )
    root.create_array("x", shape=shape, chunks=shape, dtype=values.dtype, order="F")[...] = values
    with run(tmp_path / "a.zarr") as file:
        assert file["x"][()].tolist() == values.tolist()


@pytest.mark.parametrize(("kind", "wide"), [("bfloat16", "f4"), ("float8_e4m3fn", "f4"), ("int4", "i1")])
def test_numbers_of_zarr_that_numpy_lacks_become_wider(tmp_path: Path, kind: str, wide: str) -> None:
    store = pytest.importorskip("tensorstore")
    spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{tmp_path}/a.zarr/x/"}}
    array = store.open({**spec, "metadata": {"shape": [4], "data_type": kind}}, create=True).result()
    array[...] = np.arange(4).astype(array.dtype.numpy_dtype)
    with run(tmp_path / "a.zarr") as file:
        assert file["x"].dtype == wide
        assert file["x"][:].tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("reverse", [False, True])
def test_n5(tmp_path: Path, reverse: bool) -> None:
    store = pytest.importorskip("tensorstore")
    x = numbers()
    for name, array in (("x", x), ("y", np.arange(50, dtype=np.int64))):
        array = np.ascontiguousarray(array.T) if reverse else array
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{tmp_path}/a.n5/{name}/"}}
        meta = {"dataType": str(array.dtype), "dimensions": array.shape, "blockSize": [4] * array.ndim}
        meta["compression"] = {"type": "gzip"}
        store.open({**spec, "metadata": meta}, create=True).result()[...] = array
    if reverse:
        with pytest.raises(ConfigError, match="reverse_axes=True"):
            run(tmp_path / "a.n5")
    with run(tmp_path / "a.n5", reverse_axes=reverse) as file:
        np.testing.assert_array_equal(file["x"][:], x)
        np.testing.assert_array_equal(file["y"][:], np.arange(50))


# -- tables


@pytest.mark.slow
def test_csv(tmp_path: Path) -> None:
    rows = [f"{k},{k * 0.5},{'cat' if k % 3 else 'dög'},{'val' if k % 5 == 0 else 'train'}" for k in range(20)]
    (tmp_path / "a.csv").write_text("n,v,kind,split\n" + "\n".join(rows))
    with run(tmp_path / "a.csv") as file:
        val = file["val"]
        np.testing.assert_array_equal(val["n"][:], [0, 5, 10, 15])
        assert val["v"].dtype == np.float32
        assert list(val["kind"].attrs["classes"]) == ["cat", "dög"]
        np.testing.assert_array_equal(val["kind"][:], [1, 0, 0, 1])
    with run(tmp_path / "a.csv", kinds={"kind": "text"}, shuffle=True) as file:
        ends = file["val/kind/offsets"][1:-1]
        texts = [t.tobytes().decode() for t in np.split(file["val/kind/values"][:], ends)]
        assert texts == ["cat" if k % 3 else "dög" for k in file["val/n"][:]]


def test_csv_columns_stacked_and_empty_cells(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("f1,f2,g,y\n1.5,2,3,0\n,4,5,1\n2.5,,7,2\n")
    chosen = {"f1,f2": "x", "g": "g", "y": "y"}
    with pytest.raises(ConfigError, match=r"column 'f1' is empty or NaN in row 1 .*empty='nan'"):
        run(tmp_path / "a.csv", fields=chosen)
    with run(tmp_path / "a.csv", fields=chosen, empty="nan") as file:
        assert file["x"].dtype == np.float64
        np.testing.assert_array_equal(file["x"][:], [[1.5, 2], [np.nan, 4], [2.5, np.nan]])
        assert file["g"].dtype == np.int64
        np.testing.assert_array_equal(file["g"][:], [3, 5, 7])
    with pytest.raises(ConfigError, match=r"two fields have the same name.*fields={'a,b': 'x'}"):
        run(tmp_path / "a.csv", fields={"g": "x", "y": "x"})


def test_a_pattern_names_shards(tmp_path: Path) -> None:
    for split, k in (("train", 0), ("train", 1), ("val", 0), ("other", 0)):
        (tmp_path / f"{split}-{k}.csv").write_text(f"n\n{k + 1}1\n{k + 1}2\n")
    with run(tmp_path / "[tv]*-*.csv") as file:
        assert file["train/n"][:].tolist() == [11, 12, 21, 22]
        assert file["val/n"][:].tolist() == [11, 12]
    with run(tmp_path / "other-*.csv") as file:
        assert file["n"][:].tolist() == [11, 12]
    np.save(tmp_path / "a.npy", np.arange(3))
    with pytest.raises(ConfigError, match=r"patterns are for shards of .*; for numpy give"):
        run(tmp_path / "*.npy")
    with pytest.raises(ConfigError, match=r"nothing-\*\.csv does not exist"):
        run(tmp_path / "nothing-*.csv")


def test_columns_in_the_folders_of_splits_and_shares_of_them(tmp_path: Path) -> None:
    for split, size in (("train", 40), ("test", 20)):
        (tmp_path / "in" / split).mkdir(parents=True)
        np.save(tmp_path / "in" / split / "x.npy", np.random.rand(size, 3))
        np.save(tmp_path / "in" / split / "y.npy", np.arange(size))
    with run(tmp_path / "in", split={"val": 0.25}) as file:
        assert {name: len(group["y"]) for name, group in file.items()} == {"train": 30, "val": 10, "test": 20}
        both = np.concatenate([file["train/y"][:], file["val/y"][:]])
        np.testing.assert_array_equal(np.sort(both), np.arange(40))


def test_a_folder_of_sequences(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(30):
        np.save(tmp_path / "in" / f"{k:02}.npy", np.arange(k + 1))
    with run(tmp_path / "in", variable=True, split={"val": 0.1}) as file:
        assert len(file["train/x/offsets"]) == 28
        assert len(file["val/x/offsets"]) == 4
    with pytest.raises(ConfigError, match=r"number of rows: 00 1, 01 2, .*, \.\.\.; choose .*format='samples'"):
        run(tmp_path / "in")


@pytest.mark.parametrize("kinds", [(">f8", ">f8"), (">f8", "<f8"), ("<f8", ">f8"), (">f8", ">f4"), (">i2", "<i2")])
def test_sequences_in_any_byte_order(tmp_path: Path, kinds: tuple[str, str]) -> None:
    """Each sample of a field of different lengths may be stored in another byte order."""
    (tmp_path / "in").mkdir()
    rows = [np.arange(1, 3, dtype=kinds[0]), np.arange(7, 12, dtype=kinds[1])]
    for k, row in enumerate(rows):
        np.save(tmp_path / "in" / f"{k}.npy", row)
    with run(tmp_path / "in", variable=True) as file:
        np.testing.assert_array_equal(file["x/values"][:], np.concatenate(rows))


@pytest.mark.slow
def test_csv_of_image_files(tmp_path: Path) -> None:
    (tmp_path / "pics").mkdir()
    images = [png(k) for k in range(4)]
    for k, (data, _) in enumerate(images):
        (tmp_path / f"pics/ü{k}.png").write_bytes(data)
    (tmp_path / "a.csv").write_text("file,age\n" + "\n".join(f"pics/ü{k}.png,{k}.5" for k in (2, 0, 3)))
    with run(tmp_path / "a.csv", file_column="file") as file:
        np.testing.assert_array_equal(file["image"][:], [images[k][1] for k in (2, 0, 3)])
        np.testing.assert_array_equal(file["age"][:], [2.5, 0.5, 3.5])
    with pytest.raises(ConfigError, match=r"^fields='file': file_column='file' creates the field image; write image"):
        run(tmp_path / "a.csv", file_column="file", fields={"file": "image", "age": "age"})
    with run(tmp_path / "a.csv", file_column="file", fields={"image": "picture", "age": "age"}) as file:
        assert set(file) == {"picture", "age"}
    (tmp_path / "pics/ü0.png").unlink()
    with pytest.raises(ConfigError, match=r"pics/ü0.png: .*No such file"):
        run(tmp_path / "a.csv", file_column="file")


@pytest.mark.slow
def test_parquet(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    images, x = [png(k) for k in range(30)], numbers(30).reshape(30, 12)
    lists = [list(range(k % 4)) for k in range(30)]
    cells = [{"bytes": data, "path": None} for data, _ in images]
    table = pa.table({"image": cells, "x": list(x), "tags": lists, "y": pa.array(np.arange(30), pa.int16())})
    (tmp_path / "in").mkdir()
    pq.write_table(table.slice(0, 20), tmp_path / "in/train-0.parquet", row_group_size=7)
    pq.write_table(table.slice(20), tmp_path / "in/test-0.parquet", row_group_size=7)
    with run(tmp_path / "in", fields={"image": "image", "x": "x", "y": "label"}) as file:
        np.testing.assert_array_equal(file["train/image"][:], [a for _, a in images[:20]])
        np.testing.assert_array_equal(file["test/x"][:], x[20:])
        assert file["train/label"].dtype == np.int16
    with run(tmp_path / "in", fields={"tags": "tags"}, variable=True) as file:
        ends = file["train/tags/offsets"][1:-1]
        assert [t.tolist() for t in np.split(file["train/tags/values"][:], ends)] == lists[:20]
    with pytest.raises(ConfigError, match="lists of different length; variable=True"):
        run(tmp_path / "in", fields={"tags": "tags"})


# -- text

TEXT = "Nö, it isn't.\n" * 300 + "猫\n"


def test_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5rows.importers.text.PIECE", 100)
    (tmp_path / "a.txt").write_text(TEXT, newline="")
    with run(tmp_path / "a.txt", split={"val": 0.1}) as file:
        raw = TEXT.encode()
        assert file["train/tokens"].dtype == np.uint8
        assert len(file["val/tokens"]) == round(len(raw) * 0.1)
        assert file["train/tokens"][:].tobytes() + file["val/tokens"][:].tobytes() == raw
        assert file["val/tokens"].attrs["vocab_size"] == 256
    with run(tmp_path / "a.txt", tokenizer="chars") as file:
        vocab = file["tokens"].attrs["vocab"]
        assert "".join(vocab[file["tokens"][:]]) == TEXT
        assert list(vocab) == sorted(set(TEXT))
    with pytest.raises(ConfigError, match="order of tokens"):
        run(tmp_path / "a.txt", shuffle=True)
    with pytest.raises(ConfigError, match=r"x.json is missing; give a tokenizer.json or "):
        run(tmp_path / "a.txt", tokenizer="x.json")
    (tmp_path / "b.txt").write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError, match="not UTF-8"):
        run(tmp_path / "b.txt", tokenizer="chars")


@pytest.mark.parametrize(
    ("module", "name", "remedy"),
    [("lmdb", "a.lmdb", "lmdb"), ("tensorstore", "a.zarr", "tensorstore"), ("tensorstore", "a.n5", "tensorstore"),
     ("google_crc32c", "a.tfrecord", "google-crc32c"), ("pyarrow.parquet", "a.csv", "pyarrow"),
     ("PIL.Image", "a/1.png", "pillow")],
)  # fmt: skip
def test_missing_libraries_are_named(tmp_path: Path, monkeypatch: Any, module: str, name: str, remedy: str) -> None:
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"a,b\n1,2\n3,4\n5,6\n")
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(ConfigError, match=rf"needs {remedy} \(in the extra \w+\).*-m pip install {remedy}"):
        run(path if path.parent == tmp_path else path.parent)


def test_each_library_is_in_the_extra_that_its_line_names() -> None:
    tomllib = pytest.importorskip("tomllib")
    file = PACKAGE / "pyproject.toml"
    extras = tomllib.loads(file.read_text())["project"]["optional-dependencies"]
    for library, extra in EXTRAS.items():
        assert library in [re.split(r"[<>=]", wanted)[0] for wanted in extras[extra]], library
    called = {
        node.args[place].value
        for path in Path(h5rows.__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        if (place := {"need": 2, "missing": 1}.get(node.func.id)) is not None
        if isinstance(node.args[place], ast.Constant)
    }
    assert called <= set(EXTRAS)
