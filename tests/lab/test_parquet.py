"""data=parquet: a folder of Parquet files without packing: its values, its order, runs on it, and what it refuses."""

from __future__ import annotations

import json
import re
import shlex
import shutil
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK, needs

from lab.config import Config, check
from lab.loaders import make_dataset, make_datasets, shared_rows
from lab.project import PROJECT
from samebits.data import TrainPlan
from samebits.errors import ConfigError, RunFailed
from samebits.testing import assert_undisturbed, compose, killed_at, result, start_run

pytestmark = needs("conf/data/parquet.yaml", "src/lab/datasets/parquet.py", "conf/data/order/row_groups.yaml")
pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
from lab.datasets.parquet import Parquet, open_files, row_groups  # noqa: E402

ROWS = (70, 65, 30, 35)  # of the files
ALL = {"train": {"rows": None}}
FIELDS = {"x": ["a", "b", "c"], "emb": "emb", "y": "y", "id": "id"}


def fill(folder: Path, rows: tuple[int, ...] = ROWS, group: int = 16) -> Path:
    """Files whose rows carry their number, in groups of 16 rows and shorter ones at the ends."""
    rng, begin = np.random.default_rng(0), 0
    folder.mkdir(parents=True)
    for k, count in enumerate(rows):
        label = rng.integers(0, 3, count)
        emb = pa.FixedSizeListArray.from_arrays(rng.normal(size=count * 4).astype("f4"), 4)
        columns = {"a": label + rng.normal(size=count) / 4, "b": rng.integers(0, 9, count),
                   "c": rng.normal(size=count).astype("f4"), "emb": emb,
                   "y": pa.array(np.array(["dog", "cat", "emu"])[label]).dictionary_encode(),
                   "id": np.arange(begin, begin + count), "patient": np.arange(count) // 5 + 100 * k}  # fmt: skip
        (folder / f"{k % 2}").mkdir(exist_ok=True)
        pq.write_table(pa.table(columns), folder / f"{k % 2}/part-{k}.parquet", row_group_size=group)
        begin += count
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return fill(tmp_path_factory.mktemp("data") / "rows")


def whole(folder: Path) -> Any:
    """All rows, by pyarrow, in the order of the names."""
    return pa.concat_tables([pq.read_table(file) for file in sorted(folder.rglob("*.parquet"))])


def opened(path: Path, fields: Any = None, **options: Any) -> Parquet:
    return Parquet(str(path), FIELDS if fields is None else fields, **{"splits": ALL, "split": "train", **options})


@pytest.mark.parametrize("cache_mb", [0, 1])
def test_values_are_those_of_pyarrow(folder: Path, cache_mb: int) -> None:
    data, table = opened(folder, cache_mb=cache_mb), whole(folder)
    rows = np.random.default_rng(1).permutation(len(data))[:90]
    batch = data.gather(rows)
    for k, name in enumerate("abc"):
        np.testing.assert_array_equal(batch["x"][:, k], table.column(name).to_numpy()[rows])
    np.testing.assert_array_equal(batch["emb"], np.stack(table.column("emb").to_pylist())[rows].astype("f4"))
    assert data.class_names == {"y": ["cat", "dog", "emu"]}
    assert [data.class_names["y"][y] for y in batch["y"]] == [table.column("y")[int(i)].as_py() for i in rows]
    assert {field: (tuple(v.shape[1:]), v.dtype) for field, v in batch.items()} == data.spec
    assert data.spec["x"] == ((3,), torch.float64)
    assert data[-1]["id"] == table.column("id")[-1].as_py()


def test_the_cache_is_bounded(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data, reads = opened(folder, {"emb": "emb"}), []
    read = data.files.read
    monkeypatch.setattr(data.files, "read", lambda *key: reads.append(key[0]) or read(*key))  # type: ignore[func-returns-value]
    data.cache_bytes = 3 * 16 * 16  # three row groups
    for _ in range(2):
        for row in range(len(data)):
            data.gather(np.array([row]))
            assert data._cached <= data.cache_bytes
            assert data._cached == sum(v.nbytes for one in data._cache.values() for v in one.values())
    assert reads == [*range(len(data.files.sizes))] * 2


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("ranks", [1, 2, 4])
def test_each_row_once_an_epoch_and_the_same_batches_on_any_ranks(folder: Path, window: int, ranks: int) -> None:
    data, batch, steps = opened(folder), 8, 75
    order = row_groups(data, 3, batch, window)

    def batches(ranks: int, start: int = 0) -> np.ndarray:
        plans = [TrainPlan(order, batch, [batch // ranks], rank, ranks, start) for rank in range(ranks)]
        return np.array([np.concatenate([plan(k)[1] for plan in plans]) for k in range(steps)])

    epochs = batches(ranks).reshape(3, len(data))  # 75 batches of 8: three epochs of 200 rows
    for epoch in epochs:
        np.testing.assert_array_equal(np.sort(epoch), np.arange(len(data)))
    assert not np.array_equal(epochs[0], epochs[1])
    np.testing.assert_array_equal(epochs.reshape(steps, batch), batches(1))
    np.testing.assert_array_equal(batches(ranks, 40 * batch)[: steps - 40], epochs.reshape(steps, batch)[40:])


def test_a_row_group_is_decoded_about_once_an_epoch(tmp_path: Path) -> None:
    data = opened(fill(tmp_path / "even", (640, 640)), {"id": "id"})
    reads: list[int] = []
    read = data.files.read
    data.files.read = lambda *key: reads.append(key[0]) or read(*key)  # type: ignore[method-assign, func-returns-value]
    data.cache_bytes = 16 * 8 * 6
    order = row_groups(data, 0, 8, window=4)
    for step in range(len(data) // 8):
        data.gather(order(np.arange(step * 8, step * 8 + 8)))
    assert sorted(reads) == [*range(80)]


def test_splits_are_disjoint_shares_columns_and_files(folder: Path) -> None:
    table = whole(folder)
    for by in ("random", "blocks", "patient"):
        splits = {name: {"rows": rows, "by": by} for name, rows in {"train": [0, 0.6], "val": [0.6, 1]}.items()}
        ids = {s: opened(folder, splits=splits, split=s).gather(np.arange(60))["id"] for s in splits}
        sizes = [len(opened(folder, splits=splits, split=s)) for s in splits]
        assert sum(sizes) == 200
        assert abs(sizes[0] - 120) <= (5 if by == "patient" else 0)
        if by == "patient":
            of = dict(zip(table.column("id").to_pylist(), table.column("patient").to_pylist()))
            assert not {of[int(i)] for i in ids["train"]} & {of[int(i)] for i in ids["val"]}
        assert not set(ids["train"].tolist()) & set(ids["val"].tolist())
    files = {"train": {"files": "0/*"}, "val": {"files": "*part-3*"}}
    assert [len(opened(folder, splits=files, split=s)) for s in files] == [70 + 30, 35]


def ids_of(*overrides: str) -> dict[str, list[int]]:
    config = Config.of(compose("data=parquet", "data.fields={x: emb, y: y}", "+data.fields.id=id", *overrides))
    sets = {split: make_dataset(config, split) for split in config.values["data"]["splits"]}
    return {s: one.gather(np.arange(len(one)))["id"].tolist() for s, one in sets.items() if one is not None}


@pytest.mark.slow
def test_folds_partition_the_training_rows_of_any_files(folder: Path, tmp_path: Path) -> None:
    table = whole(folder)
    pq.write_table(table, tmp_path / "one.parquet", row_group_size=1000)
    patient, label = (np.array(table.column(name).to_pylist()) for name in ("patient", "y"))
    options = ("data.folds=4", "data.split_by=patient", "data.stratify_by=y")
    vals, tests = [], []
    for fold in range(4):
        found = ids_of(f"data.path={folder}", "data.split_ratio=80/0/20", f"data.fold={fold}", *options)
        same = ids_of(f"data.path={tmp_path}", "data.split_ratio=80/0/20", f"data.fold={fold}", *options)
        assert found == same, "the division depends on the rows only"
        assert sorted(chain(*found.values())) == [*range(200)]
        assert not {*patient[found["val"]]} & {*patient[found["train"]], *patient[found["test"]]}
        assert {*label[found["val"]]} == {*label}
        vals += found["val"]
        tests.append(found["test"])
    assert sorted([*vals, *tests[0]]) == [*range(200)]
    assert tests == tests[:1] * 4
    of = {"train": "0/*", "test": "*part-3*"}
    files = [f"data.splits.{s}={{files: '{name}', rows: null, by: null}}" for s, name in of.items()]
    found = ids_of(
        f"data.path={folder}", *files, "data.splits.val=null", "data.folds=2", "data.fold=0", "data.fold_repeat=1"
    )
    assert [len(found[split]) for split in ("train", "val", "test")] == [50, 50, 35]
    assert {*found["train"], *found["val"]} == {*range(70), *range(135, 165)}
    with pytest.raises(
        ConfigError, match=r"^data\.splits\.train\.rows=.*: uses only a share of the rows of files=0/\*"
    ):
        ids_of(  # the fold that is the validation split does not use the rest
            f"data.path={folder}", "data.splits.train.files='0/*'", *files[1:], "data.splits.val=null", "data.folds=2",
            "data.fold=0",
        )  # fmt: skip


def test_options_of_folds_that_do_not_fit_are_one_line(folder: Path) -> None:
    for options, said in (
        (["data.folds=4"], r"^data\.folds=4: has no effect without data\.fold"),
        (["data.folds=4", "data.fold=1"], r"^data\.splits\.val: each fold .* data\.split_ratio=80/0/20, or data\.spl"),
        (["data.stratify_by=y"], r"^data\.stratify_by=y: has no effect without data\.folds"),
        (["data.folds=4", "data.fold=1", "data.split_ratio=100/0/0", "data.stratify_by=q"],
         r"^data\.stratify_by=q: .* has no such column"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=said):
            ids_of(f"data.path={folder}", *options)


@pytest.mark.slow
def test_columns_with_missing_values_are_marked_alike_in_all_folds(tmp_path: Path) -> None:
    x = np.arange(300.0).reshape(100, 3)
    x[5, 0] = x[::3, 2] = np.nan  # column 0 lacks a value in one row: in training in three of four folds
    pq.write_table(
        pa.table({**{k: x[:, i] for i, k in enumerate("abc")}, "y": np.arange(100) % 2}), tmp_path / "a.parquet"
    )
    options = ("data=parquet", f"data.path={tmp_path}", "data.fields={x: [a, b, c], y: y}", "data.missing=nan",
               "data/transforms=[to_float,missing]")  # fmt: skip
    folds = ("data.split_ratio=100/0/0", "data.folds=4")
    found = [compose(*options, *folds, f"data.fold={k}") for k in range(4)]
    check(found[0])  # Hydra reads nan as a number
    assert [one.data.transforms.missing.columns for one in found] == [[0, 2]] * 4
    assert [list(one.data.input_shape) for one in found] == [[5]] * 4
    alone = "data.splits={train: {rows: [0.1, 1], by: blocks}, val: {rows: [0, 0.1]}, test: null}"
    assert compose(*options, alone).data.transforms.missing.columns == [2]  # without folds: the training rows


def test_missing_floats_become_nan_if_asked(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [1.0, None, 3.0], "b": [1, None, 2]}), tmp_path / "a.parquet")
    found = opened(tmp_path, {"x": "a"}, missing="nan").gather(np.arange(3))["x"]
    np.testing.assert_array_equal(found, [1, np.nan, 3])
    with pytest.raises(ConfigError, match=r"column 'a': 1 of its values is missing \(null\) - set data\.missing=nan"):
        opened(tmp_path, {"x": "a"})
    for missing in ("nan", "refuse"):
        with pytest.raises(ConfigError, match=r"column 'b': 1 of its values is missing \(null\), and integers"):
            opened(tmp_path, {"x": "b"}, missing=missing)
    table = pa.table({"a": [1.0, None, 3.0]})
    pq.write_table(table, tmp_path / "a.parquet", write_statistics=False)  # found when it is read
    with pytest.raises(RunFailed, match=r"a\.parquet, row group 0: column 'a': 1 of its values is missing"):
        opened(tmp_path, {"x": "a"}).gather(np.arange(3))


@pytest.mark.parametrize(("columns", "fields", "options", "said"), [
    ({"a": [1.0]}, {"x": "q"}, {}, r"data\.fields\.x: .* has no column 'q'; it has \['a'\]"),
    ({"a": [1.0]}, {"x": 3}, {}, r"data\.fields\.x=3: must be a column or a list"),
    ({"a": [1.0]}, {}, {}, r"data\.fields is empty"),
    ({"a": [b"1"]}, {"x": "a"}, {}, r"column 'a' is binary; numbers, lists and strings are read - pack it"),
    ({"a": ["u"], "b": [1]}, {"x": ["a", "b"]}, {}, r"strings cannot be stacked"),
    ({"a": [[1, 2]], "b": [1]}, {"x": ["a", "b"]}, {}, r"must have equal shapes, but have \{'a': \(2,\), 'b': \(\)\}"),
    ({"a": [str(k) for k in range(99)]}, {"y": "a"}, {}, r"column 'a' has 99 different strings in 99 rows"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"row": [0, 1]}}}, r"data\.splits\.train has 'row'; allowed"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"rows": [0, 2]}}}, r"data\.splits\.train\.rows=\[0, 2\]"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"rows": "ab"}}}, r"data\.splits\.train\.rows=ab: must be two"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"by": "a"}}}, r"by=a: has no effect without"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"files": "z*"}}}, r"files=z\*: matches no file; .*a\.parquet"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"rows": [0, 0.1]}}}, r"data\.splits\.train: is empty in"),
    ({"a": [1.0]}, {"x": "a"}, {"splits": {"train": {"rows": [0, 1], "by": "z"}}}, r"\.by=z: .* has no such column"),
    ({"a": [1.0]}, None, {}, r"data\.fields\.x: .* has no column 'b'"),
])  # fmt: skip
def test_what_cannot_be_read_is_one_line(tmp_path: Path, columns: Any, fields: Any, options: Any, said: str) -> None:
    pq.write_table(pa.table(columns), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=said) as error:
        opened(tmp_path, fields, **options)
    assert "\n" not in str(error.value)


def test_a_path_of_data_h5_in_another_format_names_the_option_that_reads_it(folder: Path, tmp_path: Path) -> None:
    def given(path: Path) -> str:
        return shlex.quote(f"data.path={path}")

    part, arrow = folder / "0/part-0.parquet", tmp_path / "hf"
    packed = shlex.join([f"{tmp_path}/t.csv", f"{tmp_path}/t.h5"])
    arrow.mkdir()
    (arrow / "state.json").write_text("{}")
    shutil.copy(PROJECT.root / "data/digits.h5", tmp_path / "digits.npz")  # only its name is wrong
    for path, said in (
        (part, f"use data=parquet {given(part)} 'data.fields={{x: COLUMN, y: COLUMN}}' (docs/my_data.md)"),
        (folder / "0", f"use data=parquet {given(folder / '0')} "),
        (arrow, f"use data=huggingface {given(arrow)} "),
        (arrow / "data-00000-of-00001.arrow", f"use data=huggingface {given(arrow)} "),
        (tmp_path / "t.csv", f"use ./run h5 pack {packed}, then {given(tmp_path / 't.h5')}"),
    ):
        with pytest.raises(ConfigError, match=re.escape(f"data.path={path}: is not HDF5 - {said}")):
            compose(f"data.path={path}")
    assert compose(f"data.path={tmp_path / 'digits.npz'}").data.num_outputs == 10


def test_files_that_differ_or_are_none_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"no Parquet file found"):
        opened(tmp_path)
    for name, kind in {"a": pa.int64(), "b": pa.float32()}.items():
        pq.write_table(pa.table({"a": pa.array([1, 2], kind)}), tmp_path / f"{name}.parquet")
    with pytest.raises(ConfigError, match=r"column 'a' is int64 in .*a\.parquet, float in .*b\.parquet"):
        opened(tmp_path, {"x": "a"})
    (tmp_path / "b.parquet").write_bytes(b"PAR1 no")
    with pytest.raises(ConfigError, match=r"b\.parquet cannot be read as Parquet: "):
        opened(tmp_path, {"x": "a"})
    (tmp_path / "b.parquet").unlink()
    data = opened(tmp_path, {"x": "a"})
    pq.write_table(pa.table({"a": [3, 4, 5]}), tmp_path / "a.parquet")
    with pytest.raises(RunFailed, match=r"a\.parquet has changed since it was opened"):
        data.gather(np.arange(2))


def test_a_damaged_page_with_a_checksum_is_named(tmp_path: Path) -> None:
    options = {"compression": "none", "use_dictionary": False, "write_page_checksum": True}
    pq.write_table(pa.table({"x": np.arange(5000.0)}), tmp_path / "a.parquet", **options)
    damaged = bytearray((tmp_path / "a.parquet").read_bytes())
    damaged[2000] ^= 1
    (tmp_path / "a.parquet").write_bytes(damaged)
    data = opened(tmp_path / "a.parquet", {"x": "x"})
    with pytest.raises(RunFailed, match=r"a\.parquet, row group 0 cannot be read: .*page integrity"):
        data.gather(np.arange(3))


def test_lists_of_other_lengths_and_large_numbers_are_named(tmp_path: Path) -> None:
    pq.write_table(pa.table({"a": [[1, 2], [3]], "b": [2**53 + 1, 1], "f": [0.5, 1]}), tmp_path / "a.parquet")
    with pytest.raises(RunFailed, match=r"data\.fields\.x: .*column 'a' has a list .* of another length than 2"):
        opened(tmp_path, {"x": "a"}).gather(np.arange(2))
    with pytest.raises(RunFailed, match=r"column 'b' has a number that double cannot represent"):
        opened(tmp_path, {"x": ["b", "f"]}).gather(np.arange(2))


def test_a_window_must_fit_into_the_cache(folder: Path) -> None:
    data = opened(folder, cache_mb=0)
    with pytest.raises(ConfigError, match=r"data\.cache_mb=0: 2 row groups of .* give data\.cache_mb=1"):
        row_groups(data, 0, 8, 2)


def test_shards_of_a_server(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec = pytest.importorskip("fsspec")
    memory, table = fsspec.filesystem("memory"), whole(folder)
    for file in folder.rglob("*.parquet"):
        memory.pipe(f"/set/{file.name}", file.read_bytes())
        memory.pipe(f"/set/_temporary/0/{file.name}", file.read_bytes())  # of a job that failed; it was read, too
    order = [pq.read_table(file) for file in sorted(folder.rglob("*.parquet"), key=lambda file: file.name)]
    for path in ("memory://set", "memory://set/part-*.parquet"):
        data = Parquet(path, FIELDS, ALL, "train")
        found = data.gather(np.arange(len(data)))["id"]
        np.testing.assert_array_equal(found, pa.concat_tables(order).column("id").to_numpy())
    assert len(table) == len(data)
    memory.rm("/set", recursive=True)
    data._forget()
    with pytest.raises(RunFailed, match=r"data: memory://.*part-0\.parquet, row group 0 cannot be read"):
        data.gather(np.arange(2))


RUN = (*QUICK, "data=parquet", "data.fields={x: [a, b, c], y: y}", "trainer.global_batch_size=16",
       "trainer.eval_every=10", "trainer.save_every=10", "data.cache_mb=64")  # fmt: skip


def test_a_run_learns_and_knows_its_classes(folder: Path, tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *RUN, f"data.path={folder}", "trainer.max_steps=100",
                    "data.split_ratio=80/10/10", "optim.lr=0.03")  # fmt: skip
    assert result(run)["test/accuracy"] > 0.6
    assert json.loads((run / "classes.json").read_text()) == {"y": ["cat", "dog", "emu"]}
    assert "4 Parquet files, 200 rows in 15 row groups" in (run / "train.log").read_text()


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="an older pyarrow")
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view"])
def test_classes_may_be_any_kind_of_strings(tmp_path: Path, kind: str) -> None:
    cells = pa.array(["b", "a", "b"], getattr(pa, kind)())
    pq.write_table(pa.table({"y": cells, "x": [1.0, 2.0, 3.0]}), tmp_path / "t.parquet", row_group_size=2)
    data = opened(tmp_path, {"x": "x", "y": "y"})
    assert data.class_names == {"y": ["a", "b"]}
    assert data.gather(np.arange(3))["y"].tolist() == [1, 0, 1]


def test_class_numbers_that_are_floats_name_a_remedy_that_works(tmp_path: Path) -> None:
    x = np.random.default_rng(0).random(60)
    for dtype, path in (("float64", tmp_path / "floats.parquet"), ("int64", tmp_path / "integers.parquet")):
        pq.write_table(pa.table({"x": x, "label": (3 * x).astype(dtype)}), path)
    run = [f"data.{key}" for key in ("fields={x: [x], y: label}", "split_ratio=80/10/10")]
    with pytest.raises(ConfigError, match=r"if they are class numbers, write the column as integers .*'int64'"):
        start_run(tmp_path / "floats", *RUN, *run, f"data.path={tmp_path}/floats.parquet", "trainer.max_steps=1")
    start_run(tmp_path / "integers", *RUN, *run, f"data.path={tmp_path}/integers.parquet", "trainer.max_steps=1")


@pytest.mark.slow
@pytest.mark.parametrize("ways", [("data.order.window=3", "data.loader=threads"),
                                  ("data.order.window=2", "data.loader=workers", "data.num_workers=2")])  # fmt: skip
def test_a_killed_run_resumes_with_the_same_bits(folder: Path, tmp_path: Path, ways: tuple[str, ...]) -> None:
    options = (*RUN, f"data.path={folder}", "trainer.max_steps=30", "trainer.save_every=5", *ways)
    straight = start_run(tmp_path / "straight", *options)
    resumed = killed_at(tmp_path / "killed", (7, 18), options)
    assert_undisturbed(resumed, straight)


def test_the_config_finds_shape_and_classes(folder: Path) -> None:
    cfg = compose("data=parquet", f"data.path={folder}", "data.fields={x: emb, y: b}")
    assert (list(cfg.data.input_shape), cfg.data.num_outputs) == ([4], 9)
    config = Config.of(compose("data=parquet", f"data.path={folder}", "data.fields={x: emb, y: y}"))
    assert [len(make_dataset(config, split)) for split in ("train", "val", "test")] == [160, 20, 20]


def test_names_with_dots_and_lists_of_classes(tmp_path: Path) -> None:
    """`y.1` and `y.2` are no parts of `y`; the largest class of a list is that of its elements, also without
    statistics."""
    columns = {"x": np.arange(50.0), "y": np.arange(50) % 3, "y.1": 1000 + np.arange(50)}
    columns["many"] = pa.FixedSizeListArray.from_arrays(np.arange(100) % 7, 2)
    columns["y.2"] = pa.FixedSizeListArray.from_arrays(pa.array([None, *range(7, 106)]), 2)
    columns["z"] = pa.array([{"y": 300, "a": None}] * 50)
    for statistics in (True, False):
        file = tmp_path / f"{statistics}.parquet"
        pq.write_table(pa.table(columns), file, write_statistics=statistics)
        files = open_files(str(file))
        found = [files.extremes(name) for name in ("y", "y.1", "many", "y.2")]
        assert found == [(0, 2), (1000, 1049), (0, 6), (7, 105)]
        assert len(opened(file, {"x": "x", "y": "y"})) == 50  # nulls of y.2 are not those of y


def test_a_negative_label_is_refused_where_classes_are_counted(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "y": [1, -100], "many": [[1, 2], [3, -100]]}), tmp_path / "a.parquet")
    options = ("data=parquet", f"data.path={tmp_path}")
    with pytest.raises(ConfigError, match=r"data\.fields\.y=y: has the negative label -100; .* data\.num_outputs"):
        compose(*options, "data.fields={x: x, y: y}")
    assert compose(*options, "data.fields={x: x, y: y}", "data.num_outputs=2").data.num_outputs == 2
    assert compose(*options, "data.fields={x: x, y: many}").data.num_outputs == 4


@pytest.mark.parametrize(
    "group",
    [
        pa.array([2**62 + k // 2 for k in range(40)] + [2**63] * 2, pa.uint64()),
        pa.array([2**60 + k // 2 for k in range(42)], pa.int64()),
        pa.array([k // 2 for k in range(42)], pa.timestamp("ns")),
        pa.array([k // 2 for k in range(42)], pa.date32()),
        pa.array([f"p{k // 2}" for k in range(42)]).dictionary_encode(),
    ],
    ids=lambda column: str(column.type),
)
def test_groups_of_a_column_of_any_type_are_split(tmp_path: Path, group: pa.Array) -> None:
    """Pairs of rows: close numbers are different groups, in row groups of different values and beside an empty file."""
    table = pa.table({"x": np.arange(42.0), "g": group})
    pq.write_table(table, tmp_path / "a.parquet", row_group_size=8)
    pq.write_table(table.slice(0, 0), tmp_path / "b.parquet")
    splits = {name: {"rows": rows, "by": "g"} for name, rows in (("train", [0, 0.5]), ("val", [0.5, 1]))}
    parts = [opened(tmp_path, {"x": "x"}, splits=splits, split=split) for split in splits]
    rows = [part.gather(np.arange(len(part)))["x"].numpy().astype(int) for part in parts]
    assert sorted(np.concatenate(rows)) == list(range(42))
    assert not np.intersect1d(rows[0] // 2, rows[1] // 2).size
    assert 18 <= len(rows[0]) <= 24


def test_a_column_of_lists_cannot_group(tmp_path: Path) -> None:
    pq.write_table(pa.table({"x": [1.0, 2.0], "g": [[1], [2]]}), tmp_path / "a.parquet")
    with pytest.raises(ConfigError, match=r"data\.splits\.train\.by=g: .* is list<.*>, but must have one value"):
        opened(tmp_path, {"x": "x"}, splits={"train": {"rows": [0, 0.5], "by": "g"}})


def test_shards_that_are_missing_are_named_in_the_log(folder: Path, tmp_path: Path) -> None:
    """By the names that Hugging Face gives them, with a hash or without."""
    for name in ("train-00000-of-00004", "train-00003-of-00004-a09b74b3", "val-00000-of-00001", "part_2-of-9"):
        (tmp_path / f"{name}.parquet").symlink_to(next(folder.rglob("*.parquet")))
    (tmp_path / "__MACOSX").mkdir()
    (tmp_path / "__MACOSX/._val-00000-of-00001.parquet").touch()  # of a zip file; it was read, and is no Parquet file
    (tmp_path / "_SUCCESS.parquet").touch()
    assert opened(tmp_path).describe()[1:] == [
        f"{tmp_path}/part_*-of-9: has 1 of 9 shards, without number 0",
        f"{tmp_path}/train-*-of-00004: has 2 of 4 shards, without number 1",
    ]
    assert len(opened(folder).describe()) == 1


def test_a_file_that_is_named_twice_is_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match=r"^data\.path: .*part-0\.parquet is named twice"):
        Parquet([str(folder), str(next(folder.rglob("part-0.parquet")))], FIELDS, ALL, "train")


def test_nan_is_also_the_number_and_files_are_whole(folder: Path, tmp_path: Path) -> None:
    """As Hydra reads data.missing=nan; and a share of the rows of a split's own files is refused."""
    pq.write_table(pa.table({"a": pa.array([1.0, None, 3.0])}), tmp_path / "a.parquet")
    assert opened(tmp_path, {"x": "a"}, missing=float("nan")).gather(np.arange(3))["x"].isnan().sum() == 1
    with pytest.raises(ConfigError, match=r"^data\.missing=0: must be refuse or nan$"):
        opened(tmp_path, {"x": "a"}, missing=0)
    splits = {"train": {"rows": [0, 0.8], "files": "*/part-[0-2]*"}, "val": {"rows": None, "files": "*/part-3*"}}
    with pytest.raises(
        ConfigError, match=r"^data\.splits\.train\.rows=\[0, 0\.8\]: uses only a share of the rows of files"
    ):
        opened(folder, splits=splits)
    assert len(opened(folder, splits={**splits, "train": {"rows": None, "files": "*/part-[0-2]*"}})) == sum(ROWS[:3])


@pytest.mark.parametrize(
    ("changes", "shared"),
    [
        ([], set()),
        (["data.split_ratio=80/10/10", "data.split_by=patient"], set()),
        (["data.splits.train.by=patient"], {"val", "test"}),
        (["data.splits.val.rows=[0.7,0.9]"], {"val"}),
        (["data.splits.train={rows: null, by: null, files: 0/part-*}", "data.splits.val={rows: null, by: null, "
          "files: 1/part-*}", "data.splits.test={rows: null, by: null, files: 0/part-0*}"], {"test"}),
    ],
)  # fmt: skip
def test_rows_of_train_in_another_split_are_reported(folder: Path, changes: list[str], shared: set[str]) -> None:
    config = check(compose("data=parquet", f"data.path={folder}", "data.fields={x: [a, b], y: y}", *changes))
    sets = make_datasets(config)
    ids = {split: set(one._rows.tolist()) for split, one in sets.items()}
    expected = {split: len(ids[split] & ids["train"]) for split in ("val", "test") if ids[split] & ids["train"]}
    assert set(expected) == shared
    found = [re.match(r"data.splits.(\w+): (\d+) of its", line) for line in shared_rows(sets)]
    assert {one[1]: int(one[2]) for one in found if one} == expected
    assert len(found) == len(expected)


@pytest.mark.parametrize(("column", "field"), [("a", "x"), ("z", "z")])
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_not_finite_is_named(tmp_path: Path, value: float, column: str, field: str) -> None:
    """By field, row and file: also in a share of the rows, and in fields of one value or several per row."""
    ones, fields = {"a": np.ones(50), "b": np.ones(50), "z": np.ones(50)}, {"x": ["a", "b"], "z": "z"}
    for name in ("0", "1"):
        pq.write_table(pa.table(ones), tmp_path / f"{name}.parquet", row_group_size=16)
    assert opened(tmp_path, fields).find_non_finite() is None
    ones[column][41] = value
    pq.write_table(pa.table(ones), tmp_path / "1.parquet", row_group_size=16)
    line = f"{field} of row 41 of {tmp_path}/1.parquet contains {value}"
    assert opened(tmp_path, fields).find_non_finite() == line
    inside = [opened(tmp_path, fields, splits={"train": {"rows": rows}}) for rows in ([0, 0.5], [0.5, 1])]
    assert sorted(map(str, (one.find_non_finite() for one in inside))) == sorted(["None", line])


@pytest.mark.slow
def test_a_run_that_meets_nan_names_it(tmp_path: Path) -> None:
    a = np.linspace(0, 1, 64)
    a[7] = np.nan
    pq.write_table(pa.table({"a": a, "y": np.arange(64) % 3}), tmp_path / "a.parquet")
    options = ("data=parquet", f"data.path={tmp_path}/a.parquet", "data.fields={x: [a], y: y}", "trainer.max_steps=20")
    splits = ("data.splits.train={rows: null, by: null}", "data.splits.val=null", "data.splits.test=null")
    with pytest.raises(RunFailed, match=r"the data are not finite either: x of row 7 of .*a\.parquet contains nan"):
        start_run(tmp_path / "run", *QUICK, *options, *splits)
