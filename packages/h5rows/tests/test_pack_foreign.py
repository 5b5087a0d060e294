"""Files of other programs that are packed: each is packed exactly, or refused in one line that names the cause."""

from __future__ import annotations

import gzip
import os
import random
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from test_pack_formats import field, framed, npy, record, run, write_lmdb, write_tar

import h5rows
from h5rows.account import LEFT_OUT
from h5rows.errors import ConfigError

POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"4d" * 32 + b"\nsize 12345\n"


def refused(path: Path, **options: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        run(path, **options)
    assert str(caught.value).isprintable()
    return str(caught.value)


@pytest.mark.parametrize("name", ["a.npy", "a.npz", "a.pth", "a.tar", "a.tfrecord", "a.csv", "a.parquet", "a.lmdb"])
def test_a_git_lfs_pointer_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(POINTER)
    assert f"{name} is a Git LFS pointer" in refused(tmp_path / name)


def test_a_git_lfs_pointer_among_other_files_is_named(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "0.npy").write_bytes(npy(np.zeros(3)))
    (tmp_path / "in" / "1.npy").write_bytes(POINTER)
    assert "1.npy is a Git LFS pointer" in refused(tmp_path / "in", format="samples", on_error="skip")


@pytest.mark.parametrize(
    ("begin", "said"),
    [
        (POINTER, "is a Git LFS pointer, not the data; run `git lfs pull`"),
        (b"CDF\1" + bytes(99), "is a netCDF-3 file; convert it with `nccopy -k nc4 OLD NEW`"),
        (b"MATLAB 5.0 MAT-file Platform: posix".ljust(200), r"is an older MATLAB file; save it with save\(.*'-v7.3'\)"),
    ],
)
def test_a_file_in_place_of_hdf5_is_named(tmp_path: Path, begin: bytes, said: str) -> None:
    (tmp_path / "a.h5").write_bytes(begin)
    for call in (h5rows.open, h5rows.inspect):
        with pytest.raises(ConfigError, match=rf"a\.h5 {said}"):
            call(tmp_path / "a.h5")


def test_arrays_of_more_dimensions_than_hdf5_has(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros((2, *[1] * 32)))
    assert "field 'a' has 33 dimensions" in refused(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.zeros((2, *[1] * 31)))
    assert run(tmp_path / "a.npy")["a"].ndim == 32


def test_names_of_columns_that_hdf5_would_cut(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", np.zeros(3, [("a\0b", "i4")]))
    assert r"'a\x00b'" in refused(tmp_path / "a.npy")


@pytest.mark.skipif(sys.platform != "linux", reason="limits open files")
@pytest.mark.parametrize("kind", ["tar", "tfrecord"])
def test_more_shards_than_open_files(tmp_path: Path, kind: str) -> None:
    (tmp_path / "in").mkdir()
    count = 150
    for k in range(count):
        if kind == "tar":
            write_tar(tmp_path / "in" / f"{k:03}.tar", [("0.cls", b"%d" % k)])
        else:
            (tmp_path / "in" / f"{k:03}.tfrecord").write_bytes(record({"label": np.array([k])}, True))
    usual = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 60, usual[1]))
    try:
        with run(tmp_path / "in", shuffle=True) as file:
            assert sorted(file["label"][:].tolist()) == list(range(count))
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, usual)


@pytest.mark.parametrize("values", [(b"5", np.array([1])), (np.array([1]), b"5"), (np.array([1, 2]), b"word")])
def test_bytes_in_one_record_and_numbers_in_another(tmp_path: Path, values: tuple[Any, Any]) -> None:
    (tmp_path / "a.tfrecord").write_bytes(b"".join(record({"x": value}, True) for value in values))
    assert "field x: a.tfrecord, record at byte " in refused(tmp_path / "a.tfrecord")


@pytest.mark.parametrize("press", [gzip.compress, zlib.compress])
def test_a_compressed_tfrecord(tmp_path: Path, press: Callable[[bytes], bytes]) -> None:
    (tmp_path / "a.tfrecord").write_bytes(press(record({"x": np.arange(3)}, True)))
    assert "decompress it first" in refused(tmp_path / "a.tfrecord")
    (tmp_path / "a.tfrecord").write_bytes(b"\x78" + bytes(300))  # a record of 120 bytes
    assert "it is damaged; copy or write it again" in refused(tmp_path / "a.tfrecord")


def test_records_that_no_protobuf_reader_accepts(tmp_path: Path) -> None:
    too_long = field(3, field(1, b"\x81" * 12 + b"\x01"))
    for damaged in (
        field(1, field(1, field(1, b"x") + field(2, too_long))),
        b"\x0b",
        field(1, field(1, field(2, b""))),
    ):
        (tmp_path / "a.tfrecord").write_bytes(framed(damaged))
        message = refused(tmp_path / "a.tfrecord")
        assert "is not a tf.train.Example: " in message
        assert not message.rpartition(": ")[2].isdigit()


def test_a_number_with_underscores_may_be_a_name(tmp_path: Path) -> None:
    write_lmdb(tmp_path / "a", {"0": b"12", "1": b"1_0"})
    assert "'1_0', which may be a name or a number" in refused(tmp_path / "a")


@pytest.mark.parametrize("pages", [1, 40, -1])
def test_an_lmdb_that_is_cut_off(tmp_path: Path, pages: int) -> None:
    """Reading beyond the end of a mapped file ends a process by SIGBUS."""
    write_lmdb(tmp_path / "a", {f"{k}": b"%d " % k * 1500 for k in range(50)})
    with open(tmp_path / "a" / "data.mdb", "r+b") as file:
        file.truncate(file.seek(0, 2) - 4096 if pages < 0 else (2 + pages) * 4096)
    code = f"import h5rows; h5rows.pack({str(tmp_path / 'a')!r}, {str(tmp_path / 'a.h5')!r}, quiet=True, workers=1)"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "a is cut off" in ended.stderr.splitlines()[-1]


def test_an_lmdb_that_lacks_pages_that_nothing_uses(tmp_path: Path) -> None:
    """LMDB does not write pages that it allocated and released in one transaction."""
    lmdb, rng = pytest.importorskip("lmdb"), random.Random(0)
    keys: list[bytes] = []
    with lmdb.open(str(tmp_path / "a"), map_size=1 << 24) as made:
        for _ in range(30):
            with made.begin(write=True) as txn:
                for _ in range(60):
                    if keys and rng.random() < 0.5:
                        txn.delete(keys.pop(rng.randrange(len(keys))))
                    else:
                        keys.append(b"%d" % rng.randrange(10**6))
                        txn.put(keys[-1], b"7 " * rng.choice([50, 1000, 4500]))
            keys = list(dict.fromkeys(keys))
            if (tmp_path / "a" / "data.mdb").stat().st_size < (made.info()["last_pgno"] + 1) * 4096:
                break
        else:
            pytest.fail("no file is shorter than its pages")
        size = made.stat()["entries"]
    with run(tmp_path / "a") as file:
        assert len(file["value/offsets"]) == size + 1


def test_an_array_of_a_store_that_cannot_be_read_is_named_and_can_be_left_out(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    root.create_array("x", data=np.arange(3.0))
    root.create_array("when", data=np.array(["2020", "2021", "2022"], "M8[D]"))
    assert "a.zarr/when cannot be read: " in refused(tmp_path / "a.zarr")
    with run(tmp_path / "a.zarr", fields={"x": "x"}) as file:
        assert file["x"][:].tolist() == [0, 1, 2]


def test_a_checksum_of_a_parquet_page_is_verified(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"x": np.arange(5000.0)}), tmp_path / "a.parquet", **options)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[2000] ^= 1
    (tmp_path / "a.parquet").write_bytes(damaged)
    assert "could not verify page integrity" in refused(tmp_path / "a.parquet")


def test_nested_lists_of_a_parquet_file_name_their_column(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    pq.write_table(pa.table({"x": [[[1], [2]]]}), tmp_path / "a.parquet")
    assert "column 'x': is list<" in refused(tmp_path / "a.parquet")


def test_files_of_a_table_that_differ_only_in_their_form(tmp_path: Path) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    (tmp_path / "in").mkdir()
    pq.write_table(pa.table({"x": [1], "y": [2]}), tmp_path / "in" / "a.parquet")
    never_null = pa.schema([pa.field("x", pa.int64(), nullable=False), pa.field("y", pa.int64())])
    for other in (pa.table({"y": [1], "x": [2]}), pa.table({"x": [1], "y": [2]}, never_null)):
        pq.write_table(other, tmp_path / "in" / "b.parquet")
        assert "in another order, or marked as never null" in refused(tmp_path / "in")
    (tmp_path / "in" / "b.parquet").unlink()
    (tmp_path / "in" / "c.csv").write_text("x,y\n1,2\n")
    assert "a.parquet and" in refused(tmp_path / "in")
    assert "c.csv are of two formats" in refused(tmp_path / "in")


@pytest.mark.parametrize("name", ["a.tfrecord-{k}-of-3", "train-{k:05}-of-00003.parquet", "a-{k}-of-3-{hash}.parquet"])
def test_a_missing_file_of_a_set_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "in").mkdir()
    for k in range(3):
        place = tmp_path / "in" / name.format(k=k, hash=f"a09b74b3ef9c3b5{k}")
        if place.suffix == ".parquet":
            pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
            pq.write_table(pa.table({"x": [k]}), place)
        else:
            place.write_bytes(record({"x": np.array([k])}, True))
    options = {"quiet": True, "overwrite": True, "workers": 1}
    assert h5rows.pack(tmp_path / "in", tmp_path / "out.h5", **options).exit_status == 0
    next((tmp_path / "in").glob("*1-of*")).unlink()
    account = h5rows.pack(tmp_path / "in", tmp_path / "out.h5", **options)
    assert account.exit_status == LEFT_OUT
    assert "1 of its 3 files is missing" in account.left["files"][0]
    pattern = tmp_path / "in" / "*-of-*"  # a part that was chosen
    assert h5rows.pack(pattern, tmp_path / "out.h5", format="auto", **options).exit_status == 0


def test_a_cell_of_megabytes(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f"a,b\n1,{'x' * 3_000_000}\n2,y\n")
    with run(tmp_path / "a.csv", kinds={"b": "text"}) as file:
        assert file["b/offsets"][:].tolist() == [0, 3_000_000, 3_000_001]


class Command:
    """Runs a command when it is unpickled."""

    def __reduce__(self) -> tuple[Any, Any]:
        return os.mkdir, ("ran",)


def test_what_is_no_npy_is_not_called_code(tmp_path: Path) -> None:
    (tmp_path / "a.npy").write_bytes(b"<html>404</html>")
    assert "it is not a .npy or .npz file" in refused(tmp_path / "a.npy")
    np.save(tmp_path / "a.npy", np.array([{}]))
    assert "it contains Python objects, which could run code when read" in refused(tmp_path / "a.npy")


@pytest.mark.parametrize("value", [Command(), {"x": torch.zeros(3), "y": Command()}])
def test_a_file_of_torch_that_would_run_code_is_refused(
    tmp_path: Path, value: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    torch.save(value, "a.pth")
    message = refused(tmp_path / "a.pth")
    assert "contains posix.mkdir, which could run code when read; save plain tensors" in message
    assert not Path("ran").exists()
    Path("a.pth").write_bytes(b"")
    assert "is not a file of torch.save" in refused(tmp_path / "a.pth")
