"""Repack: the same values and everything beside them, in every layout; and what the doctor says of a file."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import h5_deep
import h5py
import numpy as np
import pytest
from pack_typed import typed

import h5rows
from h5rows.errors import ConfigError


def repacked(path: Path, name: str = "b.h5", **options: Any) -> Path:
    h5rows.repack(str(path), str(path.with_name(name)), "repack it", quiet=True, **options)
    return path.with_name(name)


def make(path: Path, n: int = 300) -> dict[str, np.ndarray]:
    """A file with most of what HDF5 can hold; -> the plain datasets."""
    rng = np.random.default_rng(0)
    plain = {
        "train/image": rng.integers(0, 9, (n, 3, 5, 7), np.uint8),
        "train/label": np.arange(n),
        "floats": rng.normal(size=(n, 40)).astype(np.float32).round(1),
        "big": rng.normal(size=(n, 40)).astype(">f8").round(1),
        "flags": rng.integers(0, 2, (n, 90)).astype(bool),
        "deep/er/half": rng.normal(size=(n, 70)).astype(np.float16),
        "pairs": np.array([(k, k / 2) for k in range(n)], [("a", "<i4"), ("b", "<f8")]),
        "names": np.array([f"name {k}" for k in range(n)], "S9"),
    }
    with h5py.File(path, "w") as file:
        for k, (name, values) in enumerate(plain.items()):
            chunks = (7, *values.shape[1:]) if k % 2 == 0 else None
            file.create_dataset(name, data=values, chunks=chunks, compression="gzip" if chunks else None)
        file["color"] = np.zeros(n, h5py.enum_dtype({"red": 0, "blue": 1}, np.uint8))
        file["scalar"], file["empty"] = 3.5, np.zeros((0, 4))
        file["words"] = ["ä", "bcd"]
        file.create_dataset("ragged", (2,), h5py.vlen_dtype(np.int16))[:] = [np.arange(3), np.arange(5)]
        file["alias"], file["soft"] = file["floats"], h5py.SoftLink("/train/label")
        file["outside"] = h5py.ExternalLink("other.h5", "/x")
        file["train/label"].attrs["classes"] = ["cat", "dög"]
        file["train"].attrs["n"], file.attrs["source"] = np.float32(1.5), "somewhere"
        file["nothing"] = h5py.Empty("f4")
    return plain


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("codec", "rows_per_chunk", "rows"),
    [("none", None, 0), ("none", 64, 64), ("gzip", 1000, 300), ("gzip", None, 114), ("zstd", None, 114)],
)
def test_values_and_all_else_are_kept(tmp_path: Path, codec: str, rows_per_chunk: int | None, rows: int) -> None:
    """And back again."""
    plain = make(tmp_path / "a.h5")
    one = repacked(tmp_path / "a.h5", codec=codec, rows_per_chunk=rows_per_chunk)
    for path in (one, repacked(one, "c.h5")):
        assert h5_deep.compare(tmp_path / "a.h5", path).differences == []
        with h5py.File(path) as file:
            assert file["train/image"].chunks == ((rows, 3, 5, 7) if rows and path == one else None)
            assert file["train/label"].chunks is None
            assert all(file[name].dtype.newbyteorder("=") == file[name].dtype for name in plain if name != "pairs")
            assert file.attrs["repacked"].endswith(" repack it")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "b.h5", "c.h5"]


def test_flatten(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    lengths = rng.integers(0, 9, 500)
    samples = [rng.normal(size=n).astype(np.float32) for n in lengths]
    words = ["ü" * (n % 5) for n in lengths]
    with h5py.File(tmp_path / "a.h5", "w") as file:
        dset = file.create_dataset("t/x", (500,), h5py.vlen_dtype(np.float32))
        dset[:] = samples
        dset.attrs["unit"] = "m"
        file["t/words"] = words
        file["t/y"] = np.arange(500)
    with h5py.File(repacked(tmp_path / "a.h5", flatten=True)) as file:
        np.testing.assert_array_equal(file["t/x/values"][:], np.concatenate(samples))
        np.testing.assert_array_equal(np.diff(file["t/x/offsets"][:]), lengths)
        assert file["t/x"].attrs["unit"] == "m"
        assert file["t/words/values"][:].tobytes().decode() == "".join(words)
        assert file["t/words/values"].attrs["encoding"] == "utf-8"
        np.testing.assert_array_equal(file["t/y"][:], np.arange(500))


def test_refuses_its_own_file_and_bad_files(tmp_path: Path) -> None:
    make(tmp_path / "a.h5", 20)
    for overwrite in (False, True):
        with pytest.raises(ConfigError, match="give another file"):
            repacked(tmp_path / "a.h5", "a.h5", overwrite=overwrite)
    whole = (tmp_path / "a.h5").read_bytes()
    for data, message in ((whole[:-100], "truncated"), (b"text", "not an HDF5 file"), (b"", "not an HDF5 file")):
        (tmp_path / "bad.h5").write_bytes(data)
        with pytest.raises(ConfigError, match=message):
            repacked(tmp_path / "bad.h5")
    with pytest.raises(ConfigError, match="levels 1 to 9"):
        repacked(tmp_path / "a.h5", codec="gzip", level=10)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.h5", "bad.h5"]


@pytest.mark.parametrize("codec", ["none", "gzip", "zstd"])
def test_checksums_are_kept_or_their_loss_is_printed(
    tmp_path: Path, codec: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = np.random.default_rng(0).integers(0, 9, (400, 50))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(8, 50), compression="gzip", shuffle=True, fletcher32=True)
        file.create_dataset("y", data=values, chunks=(8, 50), compression="gzip")
    h5rows.repack(tmp_path / "a.h5", tmp_path / "b.h5", codec=codec, quiet=True)
    said = capsys.readouterr().out
    assert ("x: its checksums (fletcher32)" in said) == (codec == "none")
    assert "y: its" not in said
    with h5py.File(tmp_path / "b.h5") as file:
        assert (file["x"].fletcher32, file["y"].fletcher32) == (codec != "none", False)
    assert (h5rows.open(str(tmp_path / "b.h5")).column("x") == values).all()


def test_wrong_bytes_are_found_by_reading_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make(tmp_path / "a.h5")
    put = h5py.Dataset.__setitem__
    monkeypatch.setattr(h5py.Dataset, "__setitem__", lambda self, rows, values: put(self, rows, np.zeros_like(values)))
    for codec in ("none", "gzip"):
        with pytest.raises(ConfigError, match="read back with other bytes than written"):
            repacked(tmp_path / "a.h5", codec=codec)
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]


def inspect(path: Path) -> str:
    done = typed("inspect", path)
    assert done.status == 0, done.err
    return done.out


def block(text: str, name: str) -> str:
    return next(part for part in text.split("\n\n") if part.startswith(name + ":"))


def test_inspect_of_everything(tmp_path: Path) -> None:
    make(tmp_path / "a.h5")
    shown = inspect(tmp_path / "a.h5")
    image = block(shown, "train/image")
    assert "300x3x5x7 uint8, 31.5 kB, " in image
    assert "chunks of 7x3x5x7, gzip" in image
    assert "random row: reads 7.0 times" in image
    assert "read: chunks" in image
    label = block(shown, "train/label")
    assert "read: mapped" in label
    assert "classes: cat, dög" in label
    assert "random row: reads 1.0 times" in label
    assert "ragged: variable length" in shown
    assert "--flatten" in shown
    assert "outside: a link to /x in other.h5" in shown
    advice = shown[shown.index("advice:") :]
    assert "train/image" in advice
    assert f"h5rows repack {tmp_path}/a.h5 {tmp_path}/a.repacked.h5 --flatten" in advice


@pytest.mark.slow
def test_the_advice_is_right(tmp_path: Path) -> None:
    """The command that the doctor prints makes a file of which it has nothing more to say."""
    x = np.random.default_rng(0).integers(0, 3, (500, 1000))
    with h5py.File(tmp_path / "it's a.h5", "w") as file:
        file.create_dataset("x", data=x, chunks=(100, 1000), compression="gzip")
    shown = inspect(tmp_path / "it's a.h5")
    commands = [line.strip() for line in shown.splitlines() if "h5rows repack" in line]
    assert len(commands) == 2
    for command in commands:
        assert typed(*shlex.split(command)[1:], "--quiet", "--overwrite").status == 0
        again = inspect(tmp_path / "it's a.repacked.h5")
        assert "nothing to repack" in again, again
        with h5py.File(tmp_path / "it's a.repacked.h5") as file:
            np.testing.assert_array_equal(file["x"][:], x)


def test_inspect_of_nothing(tmp_path: Path) -> None:
    h5py.File(tmp_path / "a.h5", "w").close()
    assert "contains no datasets" in inspect(tmp_path / "a.h5")
