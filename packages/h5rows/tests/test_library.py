"""What strangers use: the functions of the page, a plain DataLoader, the command, the README, without the engine."""

from __future__ import annotations

import math
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from running import PACKAGE
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

import h5rows
from h5rows.errors import argument, override
from h5rows.reading import filters

LIBRARY = Path(h5rows.__file__).parent


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    with h5py.File(tmp_path / "photos.h5", "w") as file:
        for split, size in (("train", 600), ("test", 20)):
            file[f"{split}/image"] = rng.integers(0, 256, (size, 8, 8, 3), dtype=np.uint8)
            file[f"{split}/label"] = np.arange(size) % 10
            file.create_dataset(f"{split}/packed", data=rng.normal(size=(size, 5)), chunks=(7, 5), compression="gzip")
            file[f"{split}/name"] = [f"photo {k}" for k in range(size)]
            lengths = rng.integers(0, 9, size)
            file[f"{split}/ids/offsets"] = np.concatenate([[0], np.cumsum(lengths)])
            file[f"{split}/ids/values"] = np.arange(lengths.sum(), dtype=np.int32)
        file["train/note"] = 3  # no rows
        file["train/elsewhere"] = h5py.ExternalLink("other.h5", "/x")
    return tmp_path / "photos.h5"


def test_open_finds_the_fields_of_a_group(photos: Path) -> None:
    data = h5rows.open(str(photos), split="train")
    assert sorted(data.spec) == ["ids", "image", "label", "name", "packed"]
    assert len(data) == 600
    assert sorted(h5rows.open(str(photos), {"x": "image"}, "test").spec) == ["x"]
    assert sorted(h5rows.open(photos).spec) == sorted(data.spec)  # there is a train
    assert len(h5rows.open(photos)) == len(h5rows.open(photos, splits=None)) == 600
    with pytest.raises(h5rows.ConfigError, match=r"cache_mb=-1: must be at least 0"):
        h5rows.open(str(photos), split="test", cache_mb=-1)


@pytest.fixture
def storms(tmp_path: Path) -> Path:
    """Fields of a stranger's, of different numbers of rows, below groups."""
    with h5py.File(tmp_path / "storms.h5", "w") as file:
        for name, rows in (("train", 30), ("val", 10)):
            file[f"{name}/measured/images"] = np.arange(rows * 6.0).reshape(rows, 2, 3)
            file[f"{name}/labels"] = np.arange(rows) % 3
            file[f"{name}/time"] = np.arange(4)
    return tmp_path / "storms.h5"


def test_open_finds_x_and_y_as_inspect_does(storms: Path) -> None:
    for split, rows in (("train", 30), ("val", 10)):
        data = h5rows.open(storms, split=split)
        assert (len(data), sorted(data.spec)) == (rows, ["x", "y"])
        with h5py.File(storms) as file:
            assert np.array_equal(data[:]["x"], file[f"{split}/measured/images"])
            assert np.array_equal(data[:]["y"], file[f"{split}/labels"])
    assert len(h5rows.open(storms)) == 30
    with h5py.File(storms, "w") as file:
        file["a"], file["b"] = np.zeros(3), np.zeros((4, 2))
    said = r"different numbers of rows: {'a': 3, 'b': 4}; give fields={'x'"
    with pytest.raises(h5rows.ConfigError, match=said):
        h5rows.open(storms)
    with h5py.File(storms, "w") as file:
        file.create_group("empty")
    with pytest.raises(h5rows.ConfigError, match="the fields of /empty have no rows; give fields"):
        h5rows.open(storms, split="/empty")


def test_the_line_that_inspect_prints_reads_the_file(storms: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where a file has its splits as groups, too."""
    h5rows.inspect(storms)
    line = re.search(r"^  (h5rows\.open\(.*\))$", capsys.readouterr().out, re.MULTILINE)
    data = eval(line[1], {"h5rows": h5rows})  # type: ignore[index]
    assert (len(data), sorted(data.spec)) == (30, ["x", "y"])


def test_samples_that_are_asked_for_together_are_those_asked_for_alone(photos: Path) -> None:
    """Also with numbers from the end, doubled ones, and of samples of different length."""
    data = h5rows.open(str(photos), split="train")
    indices = [5, 599, 5, -1, 0, 311]
    together, alone = data.__getitems__(indices), [data[i] for i in indices]
    with h5py.File(photos) as file:
        for i, one, other in zip(indices, together, alone, strict=True):
            assert one.keys() == other.keys() == data.spec.keys()
            for field, value in one.items():
                assert value == other[field] if isinstance(value, str) else torch.equal(value, other[field])
            assert np.array_equal(one["image"], file["train/image"][i])
            begin, end = file["train/ids/offsets"][i % 600 : i % 600 + 2]
            assert np.array_equal(one["ids"], np.arange(begin, end))
    with pytest.raises(IndexError):
        data.__getitems__([0, 600])
    named_alike = h5rows.Dataset(str(photos), {"x": "image", "x_length": "label"}, "train")
    assert torch.equal(named_alike[3]["x"], data[3]["image"])


WAYS: dict[str, Any] = {
    "list": [5, 599, 5, -1, 0, -600],
    "empty": [],
    "range": range(590, 600),
    "array": np.array([3, 1, 4], np.uint8),
    "tensor": torch.tensor([-2, 7]),
    "slice": slice(580, None, 3),
    "backwards": slice(20, 4, -5),
    "mask": np.arange(600) % 97 == 0,
    "mask of torch": torch.arange(600) % 89 == 1,
}


@pytest.mark.parametrize("way", WAYS)
def test_several_rows_are_a_batch_equal_to_h5py_s(photos: Path, way: str) -> None:
    """In each way in which NumPy takes them; a field of samples of different length as `gather` gives it."""
    index = WAYS[way]
    data = h5rows.open(photos, split="train")
    rows = np.arange(600)[np.asarray(index, dtype=int) if way == "empty" else index]
    with h5py.File(photos) as file:
        batch = data[index]
        for field in ("image", "label", "packed"):
            assert batch[field].numpy().tobytes() == file[f"train/{field}"][:][rows].tobytes()
        assert batch["name"] == [f"photo {k}" for k in rows]
        lengths = np.diff(file["train/ids/offsets"][:])[rows]
        assert batch["ids_length"].tolist() == lengths.tolist()
    assert batch.keys() == data.gather(rows).keys()


@pytest.mark.parametrize(
    ("index", "error"),
    [
        ([600], "row numbers 600 to 600 are out of range for 600 rows"),
        ([-601, 3], "row numbers -601 to 3"),
        (np.array([2**64 - 1], np.uint64), "out of range for 600 rows"),
        ([True, False], "a mask of 2 rows does not fit a split of 600"),
        ((0, 3), r"data\[\[0, 3\]\]"),
        (np.zeros((2, 2), int), r"got \(2, 2\) int64"),
        ([0.0, 3.0], r"got \(2,\) float64"),
        (["image"], "integers"),
        ("image", "integer"),
        (1.0, "integer"),
        (None, "integer"),
        (600, "row numbers 600 to 600"),
    ],
)
def test_what_are_no_row_numbers_is_refused(photos: Path, index: Any, error: str) -> None:
    with pytest.raises((IndexError, TypeError), match=error):
        h5rows.open(photos, split="train")[index]


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_dataloader_of_batches_reads_and_stacks_nothing(photos: Path, num_workers: int) -> None:
    """The batches are those of the same sampler over h5py, bit for bit."""
    data = h5rows.Dataset(photos, {"x": "image", "z": "packed", "name": "name"}, "train")

    def sampler() -> BatchSampler:
        return BatchSampler(RandomSampler(data, generator=torch.Generator().manual_seed(3)), 64, drop_last=False)

    loader = DataLoader(data, batch_size=None, sampler=sampler(), num_workers=num_workers)
    with h5py.File(photos) as file:
        images, packed = file["train/image"][:], file["train/packed"][:]
    count = 0
    for rows, batch in zip(sampler(), loader, strict=True):
        assert batch["x"].numpy().tobytes() == images[rows].tobytes()
        assert batch["z"].numpy().tobytes() == packed[rows].tobytes()
        assert batch["name"] == [f"photo {k}" for k in rows]
        count += len(rows)
    assert count == 600


def test_a_closed_data_set_has_no_file_open_and_reads_nothing(photos: Path) -> None:
    def held() -> list[str]:
        if sys.platform != "linux":
            return ["unknown"]
        links = [os.path.realpath(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd")]
        mapped = Path("/proc/self/maps").read_text().splitlines()
        return [name for name in links + mapped if name.endswith(str(photos))]

    with h5rows.open(photos, split="train") as data:
        batch, alone = data[:3], data[3]
        assert held()
    assert held() in ([], ["unknown"])
    assert (batch["label"].tolist(), int(alone["label"])) == ([0, 1, 2], 3)
    for use in (lambda: data[0], lambda: data[[0]], lambda: data.gather(np.arange(2)), data.describe):
        with pytest.raises(ValueError, match=r"photos\.h5 is closed"):
            use()
    assert len(data) == 600
    with h5py.File(photos, "a") as file:  # a writer takes it
        file["train/label"][0] = 7
    assert h5rows.open(photos, split="train")[0]["label"] == 7


@pytest.mark.parametrize(("cache_mb", "decoded"), [(None, 40), (0, 80)])
def test_chunks_of_one_row_are_decoded_once_if_all_fit(
    tmp_path: Path, monkeypatch: Any, cache_mb: Any, decoded: int
) -> None:
    """As HDF5 keeps those of a small set."""
    values = np.random.default_rng(0).integers(0, 9, (40, 300))
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=values, chunks=(1, 300), compression="gzip")
    data = h5rows.open(tmp_path / "a.h5", **({} if cache_mb is None else {"cache_mb": cache_mb}))
    calls: list[int] = []
    decode = filters.decode
    monkeypatch.setattr(filters, "decode", lambda *given: (calls.append(1), decode(*given))[1])
    for _epoch in range(2):
        assert np.array_equal(data[:]["x"], values)
    # those that were compared with h5py's when it was opened are kept, too
    assert len(calls) in (range(decoded - 4, decoded + 1) if cache_mb is None else [decoded])


@pytest.mark.parametrize("num_workers", [0, 2])
def test_a_plain_dataloader_reads_a_batch_at_once(photos: Path, num_workers: int, monkeypatch: Any) -> None:
    fields = {"x": "image", "z": "packed", "name": "name"}
    data = h5rows.Dataset(str(photos), fields, "train")
    asked: list[int] = []
    gather = data.gather
    if not num_workers:
        monkeypatch.setattr(data, "gather", lambda rows: (asked.append(len(rows)), gather(rows))[1])
    batches = list(DataLoader(data, 64, num_workers=num_workers))
    assert asked == ([] if num_workers else [64] * 9 + [24])
    with h5py.File(photos) as file:
        assert np.array_equal(torch.cat([batch["x"] for batch in batches]), file["train/image"][:])
        assert np.array_equal(torch.cat([batch["z"] for batch in batches]), file["train/packed"][:])
    assert [name for batch in batches for name in batch["name"]] == [f"photo {k}" for k in range(600)]


@pytest.mark.slow
def test_the_functions_do_what_the_command_does(tmp_path: Path, monkeypatch: Any, capfd: Any) -> None:
    from pack_typed import typed

    (tmp_path / "t.csv").write_text("a,b\n" + "".join(f"{k},{k / 4}\n" for k in range(40)))
    monkeypatch.chdir(tmp_path)
    account = h5rows.pack("t.csv", "one.h5", split={"val": 0.25}, quiet=True)
    assert account.exit_status == 0
    assert typed("pack", "t.csv", "two.h5", "--split", "val=0.25", "--quiet").status == 0
    with h5py.File("one.h5") as one, h5py.File("two.h5") as two:
        assert one.attrs["options"] == two.attrs["options"]
        assert two.attrs["command"] == "h5rows pack t.csv two.h5 --split val=0.25 --quiet"
        for split, size in (("train", 30), ("val", 10)):
            assert np.array_equal(one[split]["a"], two[split]["a"])
            assert np.array_equal(one[split]["b"][:], one[split]["a"][:] / 4)
            assert len(one[split]["a"]) == size
    assert h5rows.repack("one.h5", "chunked.h5", codec="gzip", rows_per_chunk=4, quiet=True).exit_status == 0
    assert h5rows.open("chunked.h5", split="val").describe()[1].startswith("b: () float32, ")
    assert h5rows.repack("chunked.h5", "three.h5", quiet=True).exit_status == 0
    assert h5rows.open("three.h5", split="val").describe()[0].startswith("a: () int64, mapped")
    capfd.readouterr()
    h5rows.inspect("three.h5")
    assert "\ntrain/a: 30 int64" in capfd.readouterr().out
    with pytest.raises(TypeError, match="sise"):
        h5rows.pack("t.csv", "four.h5", sise=3)


def called(folder: Path, *arguments: str, status: int = 0) -> subprocess.CompletedProcess[str]:
    """The command of the library where nothing else of this project is."""
    if not (folder / "alone").exists():
        shutil.copytree(LIBRARY, folder / "alone/h5rows", ignore=shutil.ignore_patterns("__pycache__"))
    command = [sys.executable, "-m", "h5rows", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder / "alone")}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == status, done.stderr
    return done


def test_options_may_be_numbers_of_numpy(tmp_path: Path) -> None:
    """They are drawn and recorded as Python's."""
    samples = [{"x": np.arange(3.0) + k} for k in range(8)]
    plain = {"seed": 3, "split": {"val": 0.25}}
    for name, given in {"plain": plain, "numpy": {"seed": np.int64(3), "split": {"val": np.float32(0.25)}}}.items():
        h5rows.write(samples, tmp_path / f"{name}.h5", shuffle=True, quiet=True, **given)
    with h5py.File(tmp_path / "plain.h5") as a, h5py.File(tmp_path / "numpy.h5") as b:
        assert a.attrs["options"] == b.attrs["options"]
        assert np.array_equal(a["train/x"], b["train/x"])


@pytest.mark.slow
def test_it_works_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    np.save(tmp_path / "x.npy", np.arange(12).reshape(4, 3))
    said = called(tmp_path, "pack", "x.npy", "x.h5").stdout
    assert "inspect it: python -m h5rows inspect x.h5\n" in said
    code = re.search(r"^read it: (.*)$", said, re.MULTILINE)[1]  # type: ignore[index]
    namespace: dict[str, Any] = {"h5rows": h5rows}
    monkeypatch.chdir(tmp_path)
    assert eval(code, namespace)[1]["x"].tolist() == [3, 4, 5]
    failed = called(tmp_path, "pack", "y.npy", "y.h5", status=2)
    assert failed.stderr == "error: y.npy does not exist\n"


@pytest.mark.parametrize(
    ("names", "split"), [("x", ""), ("a b,c/d", ""), ("a/b,größe", "val"), ("x\ny", "val"), ("c/d", "")]
)
def test_the_line_that_pack_prints_reads_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], names: str, split: str
) -> None:
    arrays = {name: np.arange(10) + k for k, name in enumerate(names.split(","))}
    np.savez(tmp_path / "a.npz", **arrays)
    h5rows.pack(tmp_path / "a.npz", tmp_path / "a.h5", split={split: 0.2} if split else {})
    said = capsys.readouterr().out.splitlines()
    listed = [line for line in said if line.startswith("  ") and " rows of " in line]
    assert len(listed) == len(arrays) * (2 if split else 1)
    (line,) = (line.removeprefix("read it: ") for line in said if line.startswith("read it: "))
    found = eval(line, {"h5rows": h5rows})[:]
    assert [values.min().item() for values in found.values()] == list(range(len(arrays)))


@pytest.mark.parametrize("split", ["a/b", ".", "..", "a\0b"])
def test_a_split_has_the_name_of_a_group(tmp_path: Path, split: str) -> None:
    np.save(tmp_path / "x.npy", np.arange(10))
    with pytest.raises(h5rows.ConfigError, match="is not a valid name of a split, such as 'val'"):
        h5rows.pack(tmp_path / "x.npy", tmp_path / "x.h5", split={split: 0.2}, quiet=True)
    with pytest.raises(h5rows.ConfigError, match="seed=-1: must be at least 0"):
        h5rows.pack(tmp_path / "x.npy", tmp_path / "x.h5", shuffle=True, seed=-1, quiet=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.npy"]


def test_the_readme_s_code_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "table.csv").write_text("x,y\n" + "1,2\n" * 20)
    code = "".join(re.findall(r"```python\n(.*?)```", (PACKAGE / "README.md").read_text(), re.DOTALL))
    monkeypatch.chdir(tmp_path)
    namespace: dict[str, Any] = {}
    exec(code, namespace)
    assert namespace["batch"]["x"].shape == (128, 3, 32, 32)
    assert namespace["loss"].isfinite()
    assert sorted(namespace["data"].spec) == ["image", "label"]
    with h5py.File("small.h5") as file:
        assert sorted(file) == ["train", "val"]
        assert file["train/x"].dtype.kind == "i"


def test_messages_name_arguments_and_no_keys_of_a_config(photos: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The template, whose config has them below `data`, says so to the library."""
    mistakes: list[tuple[dict[str, Any], str]] = [
        ({"path": str(photos.parent / "none.h5")}, "path="),
        ({"fields": {}}, "fields is empty"),
        ({"fields": {"x": "other"}}, "fields.x"),
        ({"splits": {"val": None}}, "splits has no"),
        ({"encoding": "nope"}, "encoding=nope"),
        ({"missing": {"z": 0}, "decode": True}, "missing has"),
        ({"splits": {"test": None}}, "splits.test is "),
        ({"split": "tests"}, "no group 'tests' ("),
        ({"missing": 0, "decode": True, "swmr": True}, "swmr="),
        *[({"cache_gb": wrong}, f"cache_gb={wrong}: must be >= 1") for wrong in ("2", True, [2], 0.5, math.inf)],
    ]
    for group in ("data.", ""):
        monkeypatch.setattr(h5rows.ConfigError, "group", group)
        for given, named in mistakes:
            with pytest.raises(h5rows.ConfigError) as refused:
                h5rows.Dataset(**{"path": str(photos), "fields": {"x": "packed"}, "split": "test", **given})
            said = str(refused.value)
            assert (group if named[-1] != "(" else "") + named in said
            assert ("data." in said) is bool(group)
            words = ("null", "=true", "=false", "=meant", "{x: ")
            assert group or not any(word in said for word in words), said


def test_packing_imports_no_torch_and_the_rest_names_it_if_it_is_missing(tmp_path: Path) -> None:
    """It takes longer to import than most files take to be packed, and hundreds of MB in each process."""
    np.save(tmp_path / "x.npy", np.arange(12.0))
    code = (
        "import sys, h5rows\nfrom h5rows import command\ncommand.parser().format_help()\n"
        f"h5rows.pack({str(tmp_path / 'x.npy')!r}, {str(tmp_path / 'x.h5')!r}, quiet=True)\n"
        f"h5rows.repack({str(tmp_path / 'x.h5')!r}, {str(tmp_path / 'y.h5')!r}, quiet=True)\n"
        "assert 'torch' not in sys.modules\n"
        "open('x.pth', 'wb').close()\n"
        "sys.modules['torch'] = None\n"
        "for call in (lambda: h5rows.open, lambda: h5rows.Dataset, lambda: h5rows.pack('x.pth', 'z.h5')):\n"
        "    try: call()\n"
        "    except (ImportError, h5rows.ConfigError) as error: assert '-m pip install torch' in str(error), error\n"
        "    else: raise AssertionError\n"
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("group", "written"),
    [
        ("", ["cache_mb", "swmr=True", "splits={'val': None}", "missing={'y': 'drop'}", "external='allow'"]),
        (
            "data.",
            [
                "data.cache_mb",
                "data.swmr=true",
                "data.splits.val=null",
                "data.missing={y: drop}",
                "data.external=allow",
            ],
        ),
    ],
)
def test_messages_name_arguments_as_the_caller_writes_them(
    group: str, written: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(h5rows.ConfigError, "group", group)
    given: list[tuple[Any, ...]] = [
        ("cache_mb",), ("swmr", True), ("splits.val", None), ("missing", {"y": "drop"}), ("external", "allow"),
    ]  # fmt: skip
    assert [argument(*one) for one in given] == written
    assert override("missing", {"y": "drop"}) == (f"'{written[3]}'" if group else written[3])  # for a shell
    with pytest.raises(h5rows.ConfigError, match=f"^{group}path=/no/data.path: no such file"):  # the name as it is
        h5rows.Dataset("/no/data.path", {"x": "x"})
