"""Nothing is left out in silence: damage and odd inputs are refused in one line, or a line says what is missing."""

from __future__ import annotations

import errno
import io
import os
import re
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from test_pack_formats import field, framed, npy, packed, png, record, write_lmdb, write_tar

import h5rows
from h5rows.errors import ConfigError
from h5rows.importers import open_source
from h5rows.options import PackOptions


def run(path: Path, **kwargs: Any) -> dict[str, np.ndarray]:
    """Field (group/field) -> values."""
    found: dict[str, np.ndarray] = {}
    with packed(path, **kwargs)[0] as file:
        file.visititems(lambda n, item: found.update({n: item[:]}) if isinstance(item, h5py.Dataset) else None)
    return found


def refused(path: Path, **kwargs: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        run(path, **kwargs)
    assert "\n" not in str(caught.value)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("source", ["a.npz", "*.npz", "."])
def test_a_file_of_the_source_is_not_replaced(tmp_path: Path, source: str) -> None:
    np.savez(tmp_path / "a.npz", x=np.arange(3))
    before = (tmp_path / "a.npz").read_bytes()
    with pytest.raises(ConfigError, match=r"a\.npz is a file of SOURCE, .*; give another file"):
        h5rows.pack(tmp_path / source, tmp_path / "a.npz", overwrite=True, quiet=True)
    assert (tmp_path / "a.npz").read_bytes() == before


def test_a_pipe_or_a_device_is_not_replaced(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.arange(3))
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ConfigError, match=r"pipe is a pipe, a socket or a device; give a file"):
        h5rows.pack(tmp_path / "a.npy", tmp_path / "pipe", overwrite=True, quiet=True)
    assert (tmp_path / "pipe").is_fifo()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.npy", "pipe"]


def test_each_odd_input_is_named_with_its_remedy(tmp_path: Path) -> None:
    def npz(**arrays: Any) -> Path:
        np.savez(tmp_path / "a.npz", **arrays)
        return tmp_path / "a.npz"

    def denied(*_: Any, **__: Any) -> None:
        raise PermissionError(errno.EACCES, "Permission denied")

    def tar(*samples: Any) -> Path:
        write_tar(tmp_path / "a.tar", [(f"{k}.npy", npy(sample)) for k, sample in enumerate(samples)])
        return tmp_path / "a.tar"

    at, three = f"{tmp_path}/a", np.arange(3)
    assert refused(npz(x=three, y=np.arange(4))).startswith(
        f"{at}.npz: the fields differ in their number of rows: x 3, y 4"
    )
    assert refused(npz(x_train=three, x_test=three / 2)) == (
        f"{at}.npz: the fields of split test differ from those of another split: 'x' has rows of () float64 here, and "
        "rows of () int64 there; save all splits alike"
    )
    assert "'y' has none here, and rows of () int64 there" in refused(npz(x_train=three, y_train=three, x_test=three))
    if np.dtype(np.longdouble) != np.float64:  # they are the same on some machines
        assert "can be stored: save it as float64" in refused(npz(x=three.astype(np.longdouble)))
    said = f"{at}.npz is a file; give a folder with one file per sample (.npy .pt .pth)"
    assert refused(npz(x=three), format="samples") == said
    path = npz(x=three)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(np, "load", denied)
        assert "cannot be read as .npz: Permission denied: you may not read it; check" in refused(path)
    (tmp_path / "a.npz").write_bytes(b"")
    assert refused(tmp_path / "a.npz") == f"{at}.npz cannot be read as .npz: it is empty or cut off"
    (tmp_path / "a.jsonl").write_text('{"x": 1}')
    assert re.search(r"unknown suffix '\.jsonl'; .* to h5rows\.write$", refused(tmp_path / "a.jsonl"))
    assert (
        refused(tar(three, np.arange(4)))
        == "field npy: a.tar: 1 is (4,), a.tar: 0 is (3,); variable=True keeps their shapes"
    )
    assert refused(tar(three, three / 2)) == "field npy: a.tar: 1 is float64, a.tar: 0 is int64; save all as one type"
    write_tar(tmp_path / "a.tar", [("0.cls", b"1"), ("1.cls", b"nan")])
    assert "1: label: is not a whole number: b'nan'; kinds={'NAME': 'text'} keeps it" in refused(tmp_path / "a.tar")
    (tmp_path / "a.tar").write_bytes(b"")
    assert refused(tmp_path / "a.tar") == f"{at}.tar is not a plain tar (empty file); copy or write it again"


def test_a_csv_without_rows(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("\n")
    assert refused(path) == f"{path} is empty"
    path.write_text("width,height\n")
    assert refused(path) == f"{path} has no rows, only a line of column names; header=False reads that as a sample"


def test_files_of_splits_and_of_none(tmp_path: Path) -> None:
    """Rows of the test set were in one set with those of train."""
    for name in ("train-0.txt", "test-0.txt", "more.txt"):
        (tmp_path / name).write_text(name)
    both = f"{tmp_path} has files of the splits ['test', 'train'] and also {tmp_path}/more.txt, of none"
    assert refused(tmp_path) == f"{both}: begin its name with train, val or test, or rename the others"


# -- tar


def test_a_tar_cut_anywhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.tar"
    write_tar(path, [(f"{k}.cls", b"%d" % k) for k in range(4)])
    whole = path.read_bytes()
    end = 8 * 512  # four headers, four bodies; then the end mark
    for size in [*range(0, end + 512, 128), end - 1, end + 511]:
        path.write_bytes(whole[:size])
        with pytest.raises(ConfigError, match=r"a\.tar"):
            open_source(str(path), PackOptions(quiet=True))
    path.write_bytes(whole[: end + 512])
    assert run(path)["label"].tolist() == [0, 1, 2, 3]
    path.write_bytes(whole[:2048] + b"\1" + whole[2049:])  # a damaged header
    assert "neither a member nor the end mark at byte 2048" in refused(path)
    path.write_bytes(whole + whole)
    assert "continues after its end mark" in refused(path)


def test_members_that_are_not_there_or_twice(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_tar(tmp_path / "a.tar", [("0.npy", npy(np.zeros(2))), ("1.npy", npy(np.ones(2))), ("1.cls", b"5")])
    assert "has a field 'label', the first sample" in refused(tmp_path / "a.tar", on_error="skip")
    assert len(run(tmp_path / "a.tar", fields={"npy": "x"})["x"]) == 2
    write_tar(tmp_path / "a.tar", [("0.png", png()[0]), ("0.jpg", png()[0])])
    assert "two members of one kind" in refused(tmp_path / "a.tar")
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        names = ("0.cls", tarfile.REGTYPE), ("README", tarfile.REGTYPE), ("1.cls", tarfile.SYMTYPE)
        for name, kind in (*names, ("2.cls", tarfile.LNKTYPE)):
            info = tarfile.TarInfo(name)
            info.type, info.linkname, info.size = kind, "0.cls", 1 if name == "0.cls" else 0
            tar.addfile(info, io.BytesIO(b"7"))
    run(tmp_path / "a.tar", quiet=False)
    left = "left out: 3 members: a.tar: README (not named NAME.KIND); a.tar: 1.cls (not a file); a.tar: 2.cls"
    assert f"{left} (a hard link to 0.cls; write the tar with --hard-dereference)" in capsys.readouterr().out


# -- TFRecord


@pytest.mark.slow
def test_a_flipped_bit_of_a_tfrecord_is_found(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.tfrecord", np.random.default_rng(0)
    whole = b"".join(record({"x": np.full(300, k, np.float32)}, True) for k in range(3))
    for at in rng.integers(0, len(whole), 12).tolist():
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :])
        refused(path)
    path.write_bytes(whole)
    assert run(path)["x"][:, 0].tolist() == [0, 1, 2]


def test_lengths_and_features_that_differ_between_records(tmp_path: Path) -> None:
    path, rng = tmp_path / "a.tfrecord", np.random.default_rng(2)
    for first in (1, 3):
        lengths = [first, *rng.integers(0, 4, 5).tolist(), 1, 2]
        rows = [rng.integers(-9, 9, n) for n in lengths]
        path.write_bytes(b"".join(record({"x": r, "y": np.array([k])}, True) for k, r in enumerate(rows)))
        found = run(path, variable=True)
        assert found["y"].tolist() == list(range(8))
        for value, row in zip(np.split(found["x/values"], found["x/offsets"][1:-1]), rows, strict=True):
            np.testing.assert_array_equal(value, row)
    path.write_bytes(record({"x": np.arange(2)}, True) + record({"x": np.arange(2), "z": np.arange(2)}, True))
    assert "has a field 'z', the first sample" in refused(path, on_error="skip")
    path.write_bytes(record({"x": np.zeros(2, "f4")}, True) + record({"x": np.arange(2)}, True))
    assert "is int64, " in refused(path)
    context = record({"x": np.arange(2)}, True)[12:-4]
    lists = context + field(2, field(1, field(1, b"steps") + field(2, b"")))
    path.write_bytes(framed(lists))
    assert "SequenceExample, which is not supported" in refused(path)


# -- folders and images


def test_links_and_kinds_in_a_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = tmp_path / "in"
    for name in ("a/0.png", "b/1.png"):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_bytes(png()[0])
    (root / "LICENSE.txt").write_text("free")
    assert len(run(root, quiet=False)["image"]) == 2
    assert "left out: 1 files: LICENSE.txt (not an image)" in capsys.readouterr().out
    (root / "a/up").symlink_to(root)
    assert "which was already read" in refused(root)
    (root / "a/up").unlink()
    (root / "a/up").symlink_to(tmp_path.parent)
    assert "which was already read" in refused(root, format="images", external="allow")
    (root / "a/up").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere/2.png").write_bytes(png()[0])
    (root / "c").symlink_to(tmp_path / "elsewhere")
    assert run(root, external="allow")["label"].tolist() == [0, 1, 2]
    (root / "c").unlink()
    np.save(root / "a/x.npy", np.zeros(3))
    assert "contains several kinds: arrays (a/x.npy), images (a/0.png)" in refused(root)
    (tmp_path / "text").mkdir()
    (tmp_path / "text/notes.txt").write_text("hello")
    write_tar(tmp_path / "text/a.tar", [("0.cls", b"1")])
    assert "contains several kinds: text (notes.txt), webdataset (a.tar)" in refused(tmp_path / "text")


def test_images_of_which_a_part_would_be_lost(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    (tmp_path / "in").mkdir()
    frames = [image.fromarray(np.full((4, 4), v, np.uint8)) for v in (0, 200)]
    for name in ("a.gif", "a.tif", "a.webp"):
        frames[0].save(tmp_path / "in" / name, save_all=True, append_images=frames[1:])
        assert f"{name}: contains 2 images, but only one is read" in refused(tmp_path / "in")
        (tmp_path / "in" / name).unlink()
    frames[0].save(tmp_path / "in/a.gif")
    assert run(tmp_path / "in")["image"].shape == (1, 3, 4, 4)
    (tmp_path / "in/a.gif").unlink()
    (tmp_path / "in/a.ppm").write_bytes(b"P6 2 2 65535\n" + bytes(range(24)))
    assert "16 bits per color" in refused(tmp_path / "in")
    (tmp_path / "in/a.ppm").unlink()
    (tmp_path / "in/a.png").write_bytes(png16())
    for mode in ("RGB", "I;16"):
        assert "16 bits per color" in refused(tmp_path / "in", mode=mode)


def png16() -> bytes:
    """2 x 2 pixels, RGB of 16 bits."""

    def part(kind: bytes, body: bytes) -> bytes:
        return struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))

    head, rows = struct.pack(">IIBBBBB", 2, 2, 16, 2, 0, 0, 0), (b"\0" + bytes(range(12))) * 2
    return b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", zlib.compress(rows)) + part(b"IEND", b"")


# -- types, names, damage: one line each


def test_strings_of_zarr(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    root.create_array("x", shape=(2,), chunks=(2,), dtype="S3", fill_value=None)[:] = [b"ab", b"abc"]
    assert "only numbers can be stored" in refused(tmp_path / "a.zarr")


def test_tensors(tmp_path: Path) -> None:
    x, path = torch.arange(6.0).reshape(3, 2), tmp_path / "a.pt"
    for made, values in (
        (x.to(torch.float8_e4m3fn), x.numpy()),
        ((x + 1j).conj(), (x - 1j).numpy()),
        (torch.complex(x, x).conj().imag, -x.numpy()),
    ):
        torch.save(made, path)
        np.testing.assert_array_equal(run(path)["a"], values)
    for made in (x.to_sparse(), x.to("meta")):
        torch.save(made, path)
        assert str(path) in refused(path)


NO_UTF8 = [b"\xff", b"k\xe9k", b"\xed\xa0\x80"]


@pytest.mark.one_quick
@pytest.mark.parametrize("name", NO_UTF8)
def test_names_that_are_no_utf8_are_taken_or_refused_in_one_line(tmp_path: Path, name: bytes) -> None:
    """Of files, folders, members and keys."""
    word, root = os.fsdecode(name), os.fsencode(tmp_path)
    for kind, place in (("class", b"/%b/1.png" % name), ("file", b"/a/%b.png" % name), ("left", b"/a/%b.md" % name)):
        folder = root + b"/" + kind.encode()
        os.makedirs(os.path.dirname(folder + place))
        os.makedirs(folder + b"/a", exist_ok=True)
        Path(os.fsdecode(folder + b"/a/0.png")).write_bytes(png()[0])
        Path(os.fsdecode(folder + place)).write_bytes(png()[0])
        if kind == "class":
            assert "classes of field 'label'" in refused(tmp_path / kind)
        else:
            assert len(run(tmp_path / kind)["image"]) == 1 + (kind == "file")
    for suffix in ("cls", word):
        with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT, errors="surrogateescape") as tar:
            for member in (f"0{word}.cls", f"0{word}.{suffix}" if suffix == word else f"1.{suffix}"):
                info = tarfile.TarInfo(member)
                info.size = 1
                tar.addfile(info, io.BytesIO(b"7"))
        if suffix == "cls":
            assert run(tmp_path / "a.tar")["label"].tolist() == [7, 7]
        else:
            assert "a field cannot be named" in refused(tmp_path / "a.tar")
    (tmp_path / "a.csv").write_bytes(b"x," + name + b"\n1,2\n")
    assert "a.csv" in refused(tmp_path / "a.csv")


@pytest.mark.parametrize(
    ("kind", "cells", "expected"),
    [  # expected: what the file holds; None: it is refused
        ("bool_", [True, False], [1, 0]),
        ("large_string", ["b", "a"], [1, 0]),
        ("dictionary", ["b", "a"], [1, 0]),
        ("list", [[1, 2], [3, 4]], [[1, 2], [3, 4]]),
        ("binary", [b"12", b"-3"], [12, -3]),
        ("binary", [b"\x80\x04K\x05.", b"1"], None),
        ("date32", [0, 1], None),
        ("decimal", [1, 2], None),
        ("nested", [[[1]], [[2]]], None),
        ("struct", [{"a": 1}, {"a": 2}], None),
        ("null", [None, None], None),
    ],
)
def test_types_of_a_parquet_column(tmp_path: Path, kind: str, cells: list[Any], expected: Any) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    types = {"list": pa.list_(pa.int32(), 2), "decimal": pa.decimal128(5, 2), "nested": pa.list_(pa.list_(pa.int8())),
             "struct": None, "dictionary": None}  # fmt: skip
    column = pa.array(cells, types[kind] if kind in types else getattr(pa, kind)())
    column = column.dictionary_encode() if kind == "dictionary" else column
    pq.write_table(pa.table({"c": column}), tmp_path / "a.parquet")
    if expected is None:
        assert "a.parquet" in refused(tmp_path / "a.parquet")
    else:
        assert run(tmp_path / "a.parquet")["c"].tolist() == expected


@pytest.mark.slow
@pytest.mark.parametrize("name", ["", ".", "..", "a/../b", "a\0b", "x"])
def test_names_that_no_field_can_have(tmp_path: Path, name: str) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table([pa.array([1]), pa.array([2])], names=[name, "x/y"]), tmp_path / "a.parquet")
    assert "fields=" in refused(tmp_path / "a.parquet")


def test_class_names_that_hdf5_cannot_hold(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"c\nb\0d\ne\n")
    assert "rename it" in refused(tmp_path / "a.csv", header=True)


@pytest.mark.slow
def test_whatever_a_reader_raises_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    path, rng = tmp_path / "a.parquet", np.random.default_rng(3)
    pq.write_table(pa.table({"x": rng.normal(size=500), "t": ["ü" * k for k in range(500)]}), path)
    whole = path.read_bytes()
    for at in rng.integers(4, len(whole) - 8, 12).tolist():
        path.write_bytes(whole[:at] + rng.bytes(16) + whole[at + 16 :])
        try:
            run(path)
        except ConfigError as error:
            assert len(str(error).splitlines()) == 1  # noqa: PT017 - damage of values alone is not found

    (tmp_path / "a.csv").write_text('x,y\n1,"a\nb"\n"2\n3"\n')
    assert "a.csv" in refused(tmp_path / "a.csv")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "a.txt").write_text("some words")
    monkeypatch.setattr(tempfile, "TemporaryFile", full)
    assert "no space for temporary files in" in refused(tmp_path / "a.txt", tokenizer="chars")


@pytest.mark.parametrize("call", ["posix_fallocate", "pwrite"])
def test_a_full_disk_never_has_more_room_than_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def full(*args: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, call, full)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: type("Usage", (), {"free": 100}))
    (tmp_path / "in").mkdir()
    for k in range(3):
        np.save(tmp_path / f"in/{k}.npy", np.zeros(999))
    said = refused(tmp_path / "in", variable=True, format="samples")
    assert "the disk is full" in said
    assert float(said.split("at least ")[-1].split(" kB needed")[0]) >= 3 * 999 * 8 / 1000


@pytest.mark.parametrize("call", ["pack('a.npy', ", "repack('in.h5', ", "repack('in.h5', codec='gzip', out="])
@pytest.mark.parametrize("limit", [1000, 100_000, 1_000_000, 3_000_000])
def test_a_limit_on_the_size_of_files_is_not_blamed_on_the_source(tmp_path: Path, call: str, limit: int) -> None:
    """After a write that failed, HDF5 crashes at the end of the process."""
    np.save(tmp_path / "a.npy", np.random.default_rng(0).normal(size=(4000, 100)))
    with h5py.File(tmp_path / "in.h5", "w") as file:
        for k in range(50):  # copied unchanged
            file[f"{k}/text"] = ["some words" * k] * 100
        file["x"] = np.load(tmp_path / "a.npy")
    code = f"import h5rows, resource; resource.setrlimit(resource.RLIMIT_FSIZE, ({limit}, {limit}))\n"
    command = [sys.executable, "-c", f"{code}h5rows.{call}'out.h5', quiet=True)"]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert "ConfigError: out.h5: the file system or `ulimit -f` allows no file of this size" in done.stderr
    assert done.returncode == 1
    assert not list(tmp_path.glob("out*"))


def test_a_copy_needs_no_room_for_datasets_that_were_deleted(tmp_path: Path) -> None:
    """Whoever deletes a dataset repacks the file to free its space."""
    with h5py.File(tmp_path / "in.h5", "w") as file:
        file["x"], file["deleted"] = np.arange(30_000.0), np.zeros(5_000_000, np.uint8)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        file["y"] = np.arange(10)
    with h5py.File(tmp_path / "in.h5", "a") as file:
        del file["deleted"]
    assert (tmp_path / "in.h5").stat().st_size > 5_000_000
    code = "import h5rows, resource; resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))\n"
    subprocess.run(
        [sys.executable, "-c", f"{code}h5rows.repack('in.h5', 'out.h5', quiet=True)"], cwd=tmp_path, check=True
    )
    assert (tmp_path / "out.h5").stat().st_size < 300_000


def test_numbers_of_an_lmdb_that_no_type_holds(tmp_path: Path) -> None:
    for k, (value, kind) in enumerate(
        [(b"9" * 25, {}), (b"9" * 25, {"value": "float"}), (b"9007199254740993", {"value": "float"})]
    ):
        write_lmdb(tmp_path / f"a{k}", {"0": value})
        assert "kinds={'NAME': 'text'}" in refused(tmp_path / f"a{k}", kinds=kind)
    assert run(tmp_path / "a2", kinds={"value": "text"})["value/values"].tobytes() == b"9007199254740993"
    write_lmdb(tmp_path / "b", {"0": b"12.3456789012", "1": b"16777217"})
    assert run(tmp_path / "b", kinds={"value": "float"})["value"].tolist() == [12.3456789012, 16777217]


def test_a_named_database_of_an_lmdb(tmp_path: Path) -> None:
    lmdb, value = pytest.importorskip("lmdb"), b"a value that has as many bytes as LMDB's record."
    assert len(value) == 48
    with lmdb.open(str(tmp_path / "a")) as made, made.begin(write=True) as txn:
        txn.put(b"0", value)
        txn.put(b"sub", value)
    assert run(tmp_path / "a")["value/values"].tobytes() == 2 * value
    with lmdb.open(str(tmp_path / "a"), max_dbs=1) as made:
        made.open_db(b"other")
    assert "key b'other' is a named database" in refused(tmp_path / "a")


def test_damaged_chunks_are_one_line(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    made = zarr.open_group(str(tmp_path / "a.zarr"), mode="w").create_array(
        "x", shape=(40, 9), chunks=(10, 9), dtype="f8"
    )
    made[:] = np.random.default_rng(4).normal(size=(40, 9))
    chunks = [p for p in (tmp_path / "a.zarr/x/c").rglob("*") if p.is_file()]
    assert len(chunks) == 4
    chunks[2].write_bytes(b"nonsense")
    assert "a.zarr cannot be read: " in refused(tmp_path / "a.zarr")
    for meta in (b"{", b'{"zarr_format": 3}'):
        (tmp_path / "a.zarr/x/zarr.json").write_bytes(meta)
        assert "a.zarr" in refused(tmp_path / "a.zarr")
