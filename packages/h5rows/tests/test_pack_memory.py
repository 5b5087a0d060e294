"""h5rows.write: samples that a program has or makes become a file, bit for bit, or an error that names the sample."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import h5rows


def samples(count: int, begin: int = 0) -> list[dict[str, Any]]:
    rng = np.random.default_rng(begin)
    return [
        {
            "image": rng.integers(0, 256, (3, 4), dtype=np.uint8),
            "z": torch.from_numpy(rng.normal(size=5)),
            "label": k,
            "weight": k / 3,
            "seen": k % 2 == 0,
            "wave": np.full((2, 2), k * 1j, ">c16"),
            "nothing": np.empty((0, 3), np.float32),
            "name": f"photo née {k}" if k % 3 else "",
            "ids": list(range(k % 5)) or np.empty(0, np.int64),
            "path/points": rng.normal(size=(k % 4, 3)).astype(np.float32),
        }
        for k in range(begin, begin + count)
    ]


VARIABLE = ["ids", "path/points"]
BESIDE = ("ids_length", "path/points_length")


def check(data: h5rows.Dataset, wanted: list[dict[str, Any]]) -> None:
    assert len(data) == len(wanted)
    for row, sample in enumerate(wanted):
        found = data[row]
        assert found.keys() == sample.keys()
        for field, value in sample.items():
            if isinstance(value, str):
                assert found[field] == value
            else:
                array = np.asarray(value)
                assert found[field].numpy().dtype == array.dtype.newbyteorder("=")
                assert found[field].shape == array.shape
                assert np.array_equal(found[field].numpy(), array)


def opened(path: Path, split: str = "/") -> h5rows.Dataset:
    return h5rows.Dataset(str(path), {name: name for name in samples(1)[0]}, split)


@pytest.mark.parametrize("kind", ["list", "generator", "dataset"])
def test_samples_are_read_as_they_were_given(tmp_path: Path, kind: str) -> None:
    class OfTorch(torch.utils.data.Dataset):
        def __len__(self) -> int:
            return 23

        def __getitem__(self, row: int) -> dict[str, Any]:
            return wanted[row]

    wanted = samples(23)
    given = {"list": wanted, "generator": (one for one in wanted), "dataset": OfTorch()}[kind]
    account = h5rows.write(given, tmp_path / "s.h5", variable=VARIABLE, quiet=True)
    assert account.exit_status == 0
    check(opened(tmp_path / "s.h5"), wanted)
    assert os.listdir(tmp_path) == ["s.h5"]


def test_splits_are_given_or_drawn_as_pack_draws_them(tmp_path: Path) -> None:
    given = {"train": samples(40), "val": samples(7, 100)}
    h5rows.write(given, tmp_path / "s.h5", variable=VARIABLE, quiet=True)
    for split, wanted in given.items():
        check(opened(tmp_path / "s.h5", split), wanted)
    x = np.arange(40.0)
    np.save(tmp_path / "x.npy", x)
    how: dict[str, Any] = {"split": {"val": 0.25, "test": 0.1}, "shuffle": True, "seed": 5, "quiet": True}
    h5rows.pack(tmp_path / "x.npy", tmp_path / "packed.h5", **how)
    h5rows.write([{"x": value} for value in x], tmp_path / "written.h5", **how)
    with h5py.File(tmp_path / "packed.h5") as packed, h5py.File(tmp_path / "written.h5") as written:
        assert sorted(written) == ["test", "train", "val"]
        for split in written:
            assert written[split]["x"][:].tobytes() == packed[split]["x"][:].tobytes()


def test_shards_hold_all_samples_and_are_added_to(tmp_path: Path) -> None:
    h5rows.write(iter(samples(20)), tmp_path / "set", shards=3, variable=VARIABLE, quiet=True)
    check(opened(tmp_path / "set/index.json"), samples(20))
    h5rows.write(iter(samples(4, 20)), tmp_path / "set", shards=1, append=True, variable=VARIABLE, quiet=True)
    check(opened(tmp_path / "set/index.json"), samples(20) + samples(4, 20))


def test_what_torch_alone_has_is_widened_and_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    values = torch.arange(6).to(torch.bfloat16) / 3
    h5rows.write([{"x": value} for value in values], tmp_path / "s.h5", quiet=True)
    assert capsys.readouterr().out == "bfloat16 becomes float32, which has the same values\n"
    assert torch.equal(h5rows.open(tmp_path / "s.h5")[:]["x"], values.float())


X = np.zeros(3)
UNLIKE: list[tuple[Any, str]] = [
    ([], "samples: no samples"),
    ({"train": [{"x": 1}], "val": []}, "no samples of val"),
    ({}, "an empty dict"),
    ([{}], "sample 0 has no fields"),
    ([{"x": X}, {"x": X, "y": 1}], r"sample 1 has the fields \['x', 'y'\], but the first sample has \['x'\]"),
    ([{"x": X, "y": 1}, {"x": X}], r"sample 1 has the fields \['x'\]"),
    (
        [{"x": X}, {"x": np.zeros(4)}],
        r"sample 1: x has shape \(4,\), but the first sample's is \(3,\); pad .*variable=",
    ),
    ([{"x": X}, {"x": np.zeros((3, 1))}], r"sample 1: x has shape \(3, 1\)"),
    (
        [{"x": 1}, {"x": 1.5}],
        "sample 1: x is float64, but the first sample's is int64; use the same type in all samples",
    ),
    ([{"x": X}, {"x": X.astype("f4")}], "sample 1: x is float32"),
    ([{"x": "a"}, {"x": np.zeros(1, np.uint8)}], "sample 1: x is a ndarray of uint8, but the first sample's is not"),
    ([{"x": np.zeros(1, np.uint8)}, {"x": "a"}], "sample 1: x is a text"),
    ({"train": [{"x": X}], "val": [{"x": 1}]}, "sample 0 of val: x is int64"),
    ([{"x": None}], "sample 0: x is a NoneType; give an array or a tensor of numbers, a number, or a str"),
    ([{"x": b"ab"}], "sample 0: x is a bytes"),
    ([{"x": {"y": 1}}], "sample 0: x is a dict"),
    ([{"x": [[1], [2, 3]]}], "sample 0: x is not an array"),
    ([{"x": np.array(["a"])}], "sample 0: x is a ndarray of <U1"),
    ([{"x": np.array(["2024-01-01"], "M8[D]")}], r"sample 0: x is a ndarray of datetime64\[D\]"),
    ([{"x": 1 << 70}], "sample 0: x is 1180591620717411303424, too large for int64 and uint64; give"),
    ([{"x": np.ma.masked_array([1.0], [True])}], "sample 0: x is a MaskedArray"),
    ([{"x": torch.zeros(2, device="meta")}], "sample 0: x is a tensor that NumPy cannot represent"),
    ([{"x": "a\0b"}], "sample 0: x is a text that HDF5 cannot store"),
    ([{"x": "\udc80"}], "sample 0: x is a text that HDF5 cannot store"),
    ([{3: X}], "a field cannot be named 3"),
    ([{"a/../b": X}], "a field cannot be named 'a/../b'"),
    ([{"a": X, "a/b": X}], "both 'a' and 'a/b'"),
    ([X], "sample 0 is a ndarray; give dicts of fields"),
    ([(X, 1)], "sample 0 is a tuple"),
    ({"x": X}, "sample 0 of x is a float64"),
    ({"tr/ain": [{"x": X}]}, "'tr/ain' is not a valid name of a split"),
    (3, "samples is a int; give an iterable of dicts"),
    ("photos/", "is a path; to read files, use h5rows.pack"),
]


@pytest.mark.parametrize(("given", "said"), UNLIKE)
@pytest.mark.parametrize("shards", [None, 2])
def test_unlike_samples_are_named_and_nothing_is_left(tmp_path: Path, given: Any, said: str, shards: Any) -> None:
    with pytest.raises(h5rows.ConfigError, match=said) as caught:
        h5rows.write(given, tmp_path / "s.h5", shards=shards, quiet=True)
    assert str(caught.value).isprintable()
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"split": "val=0.1"}, "split='val=0.1'"),
        ({"split": {"val": 1.5}}, "each share must be > 0"),
        ({"shards": "2"}, "shards='2': must be a whole number"),
        ({"variable": "x"}, "variable='x'"),
        ({"variable": ["y"]}, r"variable=\['y'\]: sample 0 has no field 'y'"),
        ({"variable": ["x"]}, "x has single numbers"),
        ({"append": True}, "shards"),
        ({"seed": 0.5}, "seed=0.5"),
    ],
)
def test_options_are_checked(tmp_path: Path, options: dict[str, Any], said: str) -> None:
    with pytest.raises(h5rows.ConfigError, match=said) as caught:
        h5rows.write([{"x": 1}] * 10, tmp_path / "s.h5", **{"quiet": True, **options})
    assert "--" not in str(caught.value)  # nobody typed a command
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("shards", [None, 2])
def test_an_error_of_the_samples_own_code_is_raised_as_it_is(tmp_path: Path, shards: Any) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield from samples(3)
        raise KeyError("gone")

    with pytest.raises(KeyError, match="gone"):
        h5rows.write(broken(), tmp_path / "s.h5", shards=shards, variable=VARIABLE, quiet=True)
    assert os.listdir(tmp_path) == []


def test_a_file_that_is_there_is_kept_and_no_sample_is_asked_for(tmp_path: Path) -> None:
    asked = []
    given = (asked.append(k) or {"x": k} for k in range(3))
    (tmp_path / "s.h5").write_text("mine")
    with pytest.raises(h5rows.ConfigError, match=r"s\.h5 exists; overwrite=True replaces it"):
        h5rows.write(given, tmp_path / "s.h5", quiet=True)
    with pytest.raises(h5rows.ConfigError, match="is not a folder"):
        h5rows.write(given, tmp_path / "none/s.h5", quiet=True)
    assert (asked, (tmp_path / "s.h5").read_text()) == ([], "mine")
    h5rows.write(given, tmp_path / "s.h5", overwrite=True, quiet=True)
    assert h5rows.open(tmp_path / "s.h5")[:]["x"].tolist() == [0, 1, 2]


def test_a_write_that_is_killed_leaves_no_value_and_begins_anew(tmp_path: Path) -> None:
    """While its samples are made: their values lie in files without names; of the lock, the next write takes it."""
    code = (
        "import os, signal, h5rows, numpy as np\n"
        "def samples():\n"
        "    for k in range(100): yield {'x': np.zeros(100_000)}\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        f"h5rows.write(samples(), {str(tmp_path / 's.h5')!r}, quiet=True)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)})
    assert done.returncode == -9
    assert {file.name: file.stat().st_size for file in tmp_path.iterdir()} == {"s.h5.partial.lock": 0}
    h5rows.write([{"x": 1}], tmp_path / "s.h5", quiet=True)
    assert os.listdir(tmp_path) == ["s.h5"]
