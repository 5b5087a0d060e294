"""What a sample can be, which rows a split has, shards, tokens, and what the config asks of a file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

import h5rows
from h5rows import ConfigError, Dataset, probe
from h5rows.integration import num_outputs

pytestmark = pytest.mark.usefixtures("in_a_program")
ROOT = {"all": {"group": "/"}}
WORDS = ["", "a", "größer", "日本語", "x" * 300, "naïve"]


def words(n: int) -> list[str]:
    return [WORDS[(7 * k) % len(WORDS)] + str(k % 10) * (k % 3) for k in range(n)]


def write_ragged(file: h5py.File, name: str, samples: list[np.ndarray], **options: Any) -> h5py.Group:
    group = file.create_group(name)
    group.create_dataset("values", data=np.concatenate(samples), **options)
    group["offsets"] = np.cumsum([0, *map(len, samples)])
    return group


def test_ways_of_strings_and_of_samples_of_different_length(tmp_path: Path) -> None:
    """Their values are compared with h5py's in test_h5_generated."""
    texts, rng = words(60), np.random.default_rng(0)
    rows = [rng.random((int(n), 3)).astype("f4") for n in rng.integers(0, 20, 60)]
    chars, gzip = [np.frombuffer(t.encode(), np.uint8) for t in texts], {"compression": "gzip", "chunks": (100,)}
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file.create_dataset("vlen", data=texts, dtype=h5py.string_dtype())
        file.create_dataset("fixed", data=[t.encode() for t in texts], dtype=h5py.string_dtype(length=400))
        for name, options in (("flat", {}), ("gzip", gzip)):
            write_ragged(file, name, chars, **options).attrs["encoding"] = "utf-8"
        write_ragged(file, "matrices", rows)
        write_ragged(file, "big-endian", rows, dtype=">f4")
    ways = {"vlen": "h5py", "fixed": "mapped", "flat": "mapped", "gzip": "chunks", "matrices": "mapped"}
    data = Dataset(str(tmp_path / "f.h5"), {name: name for name in (*ways, "big-endian")}, "all", ROOT)
    assert [f"{way} (" in line for way, line in zip(ways.values(), data.describe())] == [True] * 5
    assert data.spec["flat"] == data.spec["vlen"] == ((-1,), torch.uint8)
    assert data.spec["matrices"] == data.spec["big-endian"] == ((-1, 3), torch.float32)
    batch = data.gather(np.array([7, 59, 7, 0]))
    assert [batch[name] for name in list(ways)[:4]] == [[texts[k] for k in (7, 59, 7, 0)]] * 4
    for name in ("matrices", "big-endian"):
        found = [x[:n].numpy() for x, n in zip(batch[name], batch[f"{name}_length"])]
        assert all(map(np.array_equal, found, (rows[k] for k in (7, 59, 7, 0))))


def test_an_unsigned_number_above_int64_is_refused(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["large"], file["u4"] = np.full(20, 2**63 + 5, np.uint64), np.arange(20, dtype=np.uint32)
    assert Dataset(str(tmp_path / "f.h5"), {"x": "u4"}, "all", ROOT).spec["x"] == ((), torch.int64)
    with pytest.raises(ConfigError, match=r"large contains 9223372036854775813, which is too large"):
        Dataset(str(tmp_path / "f.h5"), {"x": "large"}, "all", ROOT)


@pytest.mark.parametrize("sample", [(1,), (4, 6), (5, 500)])
def test_shards_of_different_layout_are_one_set(sample: tuple[int, ...], tmp_path: Path) -> None:
    """Rows of 8 bytes, 192 and 20,000."""
    rng = np.random.default_rng(0)
    parts = [rng.random((n, *sample)) for n in (11, 1, 30)]
    options: list[dict[str, Any]] = [{}, {}, {"chunks": (4, *sample), "compression": "gzip"}]
    ragged = [[rng.integers(0, 9, int(rng.integers(0, 5))) for _ in part] for part in parts]
    for k, part in enumerate(parts):
        with h5py.File(tmp_path / f"shard-{k}.h5", "w") as file:
            file.create_dataset("g/x", data=part, **options[k])
            file.create_dataset("g/raw", data=part, chunks=(min(3, len(part)), *sample))
            write_ragged(file, "g/r", ragged[k])
    fields = {"x": "x", "raw": "raw", "r": "r"}
    data = Dataset(str(tmp_path / "shard-*.h5"), fields, "train", {"train": {"group": "g"}})
    whole, samples = np.concatenate(parts), [s for part in ragged for s in part]
    assert len(data) == 42
    assert "mapped (raw chunks" in data.describe()[1]
    rows = rng.integers(0, 42, 100)
    buffer = torch.empty(100, *sample, dtype=torch.float64)
    batch = data.gather(rows, {"x": buffer, "raw": torch.empty_like(buffer)})
    assert np.array_equal(buffer.numpy(), whole[rows])
    assert np.array_equal(batch["raw"].numpy(), whole[rows])
    assert batch["r_length"].tolist() == [len(samples[r]) for r in rows]
    assert data.nbytes == 2 * whole.nbytes + sum(s.nbytes for s in samples)
    data.advise(rows)


def test_rows_of_a_split(tmp_path: Path) -> None:
    for k in range(2):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["x"] = 100 * k + np.arange(100)
            file["good"] = np.array([3, 97, 5], dtype="u1")
    paths = [str(tmp_path / "0.h5"), str(tmp_path / "1.h5")]
    splits: dict[str, Any] = {
        "index": {"group": "/", "index": "good"},
        "a": {"group": "/", "rows": [0, 0.7]},
        "b": {"group": "/", "rows": [0.7, 1]},
        "none": None,
    }

    def values(split: str) -> list[int]:
        data = Dataset(paths, {"x": "x"}, split, splits)
        return data.gather(np.arange(len(data)))["x"].tolist()

    assert values("index") == [3, 97, 5, 103, 197, 105]
    a, b = values("a"), values("b")
    assert len(a) == 140
    assert sorted(a + b) == list(range(200))
    assert 30 < sum(v < 100 for v in b) / len(b) * 100 < 70  # a shuffling, not the end of the file
    assert b[:6] == [0, 6, 13, 19, 22, 23]  # it must never change: rows of one split would leak into another
    with pytest.raises(ConfigError, match=r"splits\.none is null"):
        values("none")
    with pytest.raises(ConfigError, match=r"no 'tset'.*\['a', 'b'"):
        values("tset")
    with pytest.raises(ConfigError, match="begin < end"):
        Dataset(paths, {"x": "x"}, "a", {"a": {"group": "/", "rows": [0.9, 0.1]}})


@pytest.mark.parametrize(("stated", "found"), [(None, 9), (32, 32)])
def test_ids_in_rows_of_any_length_are_classes(tmp_path: Path, stated: int | None, found: int) -> None:
    """HDF5's own variable length, with rows of none and more rows than are looked at together."""
    with h5py.File(tmp_path / "f.h5", "w") as file:
        rows = file.create_dataset("train/tokens", (5000,), h5py.vlen_dtype(np.uint8))
        rows[:] = np.array([np.arange(k % 7, dtype=np.uint8) + (3 if k > 4998 else 1) for k in range(5000)], object)
        rows[4999] = np.array([8], np.uint8)
        if stated:
            rows.attrs["classes"] = stated
    node = {"path": str(tmp_path / "f.h5"), "fields": {"t": "tokens"}, "splits": {"train": {"group": "train"}}}
    assert probe.num_outputs(node, "t") == found


def test_labels_of_all_splits_are_among_the_classes_of_training(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for split, top in {"train": 4, "val": 6, "test": 3}.items():
            file[f"{split}/y"] = np.arange(top)
        file["named/y"], file["minus/y"] = np.arange(3), np.array([0, -1])
        file["named/y"].attrs["classes"] = 2
    config: dict[str, Any] = {"path": str(tmp_path / "f.h5"), "fields": {"y": "y"}}

    def outputs(*groups: str) -> int:
        splits = {name: {"group": group} for name, group in zip(("train", "val", "test"), groups)}
        return num_outputs({**config, "splits": {"test": None, **splits}}, "y")

    assert outputs("train", "test") == 4
    for groups, line in {
        ("train", "val"): r"/val/y .*has the label 5, but the classes are 0 to 3 \(of train\).*data.num_outputs=6",
        ("named",): r"/named/y .*has the label 2, but the classes are 0 to 1 \(its attribute `classes`\)",
        ("train", "test", "minus"): r"/minus/y .*the negative label -1.*null in data.splits",
    }.items():
        with pytest.raises(ConfigError, match=line):
            outputs(*groups)


@pytest.mark.parametrize("decode", [False, True])
def test_classes_of_files_with_other_names_are_refused(tmp_path: Path, decode: bool) -> None:
    """The names of the attribute `classes`, and of AnnData's categories, which each file numbers by itself."""

    def read(*names: str) -> Dataset:
        for k, given in enumerate(names):
            with h5py.File(tmp_path / f"{k}.h5", "w") as file:
                file["x"], codes = np.zeros((2, 1)), np.array([0, 1], np.int8)
                file.attrs["encoding-type"] = "anndata" if decode else "none"
                file["y/codes" if decode else "y"] = codes
                if decode:
                    file["y"].attrs["encoding-type"] = "categorical"
                    file["y/categories"] = given.split()
                else:
                    file["y"].attrs["classes"] = given.split()
        files = [str(tmp_path / f"{k}.h5") for k in range(len(names))]
        return Dataset(files, {"x": "x", "y": "y"}, decode=decode)

    with pytest.raises(ConfigError, match=r"1.h5: y .*: class 0 is 'dog', but 'cat' in the files before it"):
        read("cat dog", "dog cat")
    assert read("cat dog", "cat dog eel", "cat dog").class_names["y"] == ["cat", "dog", "eel"]


def test_objects_whose_names_are_not_utf8(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Older programs write names in other encodings. The rest of the file is read, and such an object is named."""
    path = tmp_path / "f.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = np.arange(30.0).reshape(10, 3), np.arange(10)
        file.create_dataset(b"temp\xe9rature", data=np.arange(10))
        file.create_group(b"gr\xe9")["z"] = np.arange(10)
        file[b"link\xe9"] = h5py.ExternalLink("other.h5", "x")
    h5rows.inspect(path)
    said = capsys.readouterr().out
    assert "x could be x" in said
    assert "temp\\udce9rature: has a name that is not UTF-8; rename it, file.move(b'...', 'NAME')" in said
    assert "link\\udce9: a link to x in other.h5" in said
    with h5rows.open(path) as data:
        assert set(data[0]) == {"x", "y"}
    for external in ("refuse", "allow"):
        for fields, group in (({"v": "temp\udce9rature"}, "/"), ({"v": "z"}, "gr\udce9"), ({"v": "gr\udce9/z"}, "/")):
            with pytest.raises(ConfigError, match="not UTF-8") as caught:
                Dataset(path, fields, "all", {"all": {"group": group}}, external=external)
            assert str(caught.value).isprintable()
        with pytest.raises(ConfigError, match="has no 'nothing'"):
            Dataset(path, {"v": "nothing"}, "all", ROOT, external=external)


def test_an_enum_whose_names_are_not_utf8(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        kind = h5py.h5t.enum_create(h5py.h5t.NATIVE_INT8)
        for number, name in enumerate((b"on\xe9", b"off")):
            kind.enum_insert(name, number)
        h5py.h5d.create(file.id, b"x", kind, h5py.h5s.create_simple((10,)))
        file["x"].id.write(h5py.h5s.ALL, h5py.h5s.ALL, np.arange(10, dtype="i1") % 2, mtype=kind)
    with Dataset(tmp_path / "f.h5", {"v": "x"}, "all", ROOT) as data:
        assert data.gather([0, 3, 2])["v"].tolist() == [0, 1, 0]
    h5rows.inspect(tmp_path / "f.h5")
