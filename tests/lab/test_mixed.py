"""data=mixed: several training sets in one step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from torch import Tensor

import lab
from lab.datasets.mixed import Mixed, mixture
from lab.datasets.mixture import assign
from lab.loaders import shared_rows
from lab.transforms.parts import PartTransforms
from samebits.data import TrainPlan
from samebits.errors import ConfigError
from samebits.testing import compose

SHUFFLED = {"_target_": "samebits.data.order.shuffled", "_partial_": True}
SIZES = {"a": 30, "b": 70, "c": 11}
ALL = {"train": "all", "val": "all", "test": "all"}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files a, b, c of the field x, (2,) uint8, which tells part and row; a has labels y too."""
    folder = tmp_path_factory.mktemp("parts")
    for k, (name, size) in enumerate(SIZES.items()):
        with h5py.File(folder / f"{name}.h5", "w") as file:
            for split, count in (("train", size), ("val", 5), ("test", 4)):
                file[f"{split}/x"] = np.stack([np.full(count, k), np.arange(count)], 1).astype(np.uint8)
                if name == "a":
                    file[f"{split}/y"] = np.arange(count) % 3
    return folder


def node(folder: Path, name: str, **changed: Any) -> dict[str, Any]:
    fields = {"x": "x", "y": "y"} if name == "a" else {"x": "x"}
    splits = {split: {"group": split} for split in ALL}
    target = {"_target_": "lab.datasets.h5.Dataset", "path": str(folder / f"{name}.h5")}
    return {**target, "fields": fields, "splits": splits, "order": SHUFFLED, "transforms": {}, **changed}


def mixed(folder: Path, weights: dict[str, Any], split: str = "train", splits: Any = ALL, **changed: Any) -> Mixed:
    return Mixed({name: node(folder, name, **changed.get(name, {})) for name in weights}, weights, splits, split)


def rows_of(order: Any, global_batch: int, micro: list[int], ranks: int, start: int, steps: int) -> np.ndarray:
    """(steps, global batch): the rows of each step, as ranks and micro-batches read them."""
    plans = [TrainPlan(order, global_batch, micro, rank, ranks, start) for rank in range(ranks)]
    parts = [[plan(k)[1] for k in range(s * len(micro), (s + 1) * len(micro))] for s in range(steps) for plan in plans]
    return np.concatenate([np.concatenate(one) for one in parts]).reshape(steps, global_batch)


def test_ranks_micro_batches_and_resumes_see_the_same_rows(folder: Path) -> None:
    order = mixture(mixed(folder, {"a": 1, "b": 2.5, "c": [[0, 0.5], [50, 3]]}), seed=3)
    one = rows_of(order, 24, [24], 1, 0, 12)
    for ranks, micro in ((2, [12]), (2, [5, 5, 2]), (3, [8]), (1, [7, 7, 7, 3])):
        assert np.array_equal(rows_of(order, 24, micro, ranks, 0, 12), one)
    again = mixture(mixed(folder, {"a": 1, "b": 2.5, "c": [[0, 0.5], [50, 3]]}), seed=3)
    for sample in (1, 24, 50, 61, 239):
        assert np.array_equal(rows_of(again, 24, [24], 1, sample, 1)[0], one.ravel()[sample : sample + 24])
    assert not np.array_equal(rows_of(mixture(mixed(folder, {"a": 1, "b": 1, "c": 1}), seed=4), 24, [24], 1, 0, 1), one)


@pytest.mark.parametrize(
    ("weights", "batch", "wanted"),
    [([1, 7], 64, [8, 56]), ([1, 2, 5], 16, [2, 4, 10]), ([3, 0, 1], 8, [6, 0, 2]), ([1], 5, [5])],
)
def test_each_batch_has_each_parts_share(weights: list[int], batch: int, wanted: list[int]) -> None:
    of, index = assign(np.arange(50 * batch), weights)
    assert (np.stack([(of.reshape(50, batch) == k).sum(1) for k in range(len(weights))], 1) == wanted).all()
    for k in range(len(weights)):
        assert np.array_equal(index[of == k], np.arange((of == k).sum()))


def test_where_shares_are_no_whole_numbers_they_are_even_and_exact_in_the_long_run() -> None:
    of, _ = assign(np.arange(17_000), [3, 10, 4])
    assert np.bincount(of).tolist() == [3000, 10000, 4000]
    for size in (5, 12, 64):
        for k, weight in enumerate((3, 10, 4)):
            found = (of[: 17_000 // size * size].reshape(-1, size) == k).sum(1)
            assert np.abs(found - size * weight / 17).max() < 2


def test_each_row_of_a_part_comes_once_a_pass_whatever_the_others_do(folder: Path) -> None:
    data = mixed(folder, {"a": 1, "b": 3, "c": [[0, 0], [100, 2]]})
    rows = mixture(data, seed=0)(np.arange(1500))
    of = data.part_of(rows)
    assert not (of[:100] == 2).any()
    for k, size in enumerate(SIZES.values()):
        own = rows[of == k] - data.starts[k]
        for begin in range(0, len(own) - size, size):
            assert sorted(own[begin : begin + size]) == list(range(size))
    alone = mixed(folder, {"a": 1, "b": 1})
    mine = mixture(alone, seed=0)(np.arange(60))
    assert np.array_equal(
        mine[alone.part_of(mine) == 0], rows[of == 0][:30]
    )  # other weights, other parts: a's order stays


def test_rows_are_those_of_the_parts_and_what_a_part_lacks_is_filled(folder: Path) -> None:
    data = mixed(folder, {"b": 1, "a": 1, "c": 1})
    rows = np.random.default_rng(0).permutation(len(data))
    out = {field: torch.empty((200, *shape), dtype=dtype) for field, (shape, dtype) in data.spec.items()}
    batch = data.gather(rows, out)
    assert batch["x"].data_ptr() == out["x"].data_ptr()
    of = data.part_of(rows)
    assert batch["set"].tolist() == of.tolist()
    local = rows - data.starts[of]
    assert batch["x"][:, 1].tolist() == local.tolist()
    assert batch["x"][:, 0].tolist() == np.array([1, 0, 2])[of].tolist()
    assert batch["y"].tolist() == np.where(of == 1, local % 3, -1).tolist()
    for row in (0, 69, 70, 110):
        sample = data[row]
        assert {f: torch.as_tensor(v).tolist() for f, v in sample.items()} == {
            f: v[0].tolist() for f, v in data.gather(np.array([row])).items()
        }


def test_an_evaluation_counts_the_parts_that_a_split_names(folder: Path) -> None:
    splits = {"train": "all", "val": ["b"], "test": "all"}
    assert len(mixed(folder, {"a": 1, "b": 1}, "test", splits)) == 8
    val = mixed(folder, {"a": 1, "b": 1}, "val", splits)
    assert set(val.gather(np.arange(len(val)))["set"].tolist()) == {1}  # the number that it has in training
    assert "y" not in val.spec


def test_rows_of_train_in_parts_of_another_split_are_counted(folder: Path) -> None:
    """Also in a part of another name; parts of other types, and without rows to compare, count nothing."""
    wild = {"_target_": "lab.datasets.synthetic.Synthetic", "size": 8, "shape": [2], "num_classes": 3, "seed": 0}
    other = {"splits": {"train": None, "val": {"group": "train", "rows": [0, 0.5]}}}
    splits = {**ALL, "train": ["a", "b"]}
    nodes = {"a": node(folder, "a"), "b": node(folder, "b"), "again": node(folder, "b", **other)}
    sets = {split: Mixed(nodes, dict.fromkeys(nodes, 1), splits, split) for split in ("train", "val")}
    assert len(sets["val"]) == 5 + 5 + 35
    assert shared_rows(sets)[0].startswith("data.splits.val: 35 of its 45 rows are rows of train too")
    nodes = {"a": node(folder, "a", fields={"y": "y"}), "wild": {**wild, "order": SHUFFLED, "transforms": {}}}
    assert shared_rows({split: Mixed(nodes, {"a": 1, "wild": 1}, ALL, split) for split in ("train", "val")}) == []


class Plus:
    def __init__(self, value: int, to: str) -> None:
        self.value, self.to = value, to

    def __call__(self, batch: dict[str, Tensor], sample_ids: Tensor) -> dict[str, Tensor]:
        assert "set" in batch
        return {**batch, self.to: batch["x"].float() + self.value}


def test_each_parts_transforms_see_its_rows_alone(folder: Path) -> None:
    data = mixed(folder, {"a": 1, "b": 1})
    fields = {name: list(spec) for name, spec in data.specs.items()}
    built = {"a": [Plus(1, "x"), Plus(1, "view")], "b": [Plus(100, "x")]}
    apply = PartTransforms(data.part_of, fields, built, True, lambda chain: chain)
    rows = np.array([3, 40, 31, 7, 99, 30])
    batch = data.gather(rows)
    out = apply(batch, torch.arange(6), rows)
    first = torch.from_numpy(rows < 30)
    assert torch.equal(out["x"], batch["x"] + torch.where(first, 1, 100)[:, None].float())
    assert torch.equal(out["view"], torch.where(first[:, None], out["x"] + 1, 0))
    assert torch.equal(out["y"], batch["y"])
    for own in (np.array([40, 41]), np.array([2])):  # a micro-batch without one of the parts has all fields
        assert apply(data.gather(own), torch.arange(len(own)), own).keys() == out.keys()
    built["b"] = []
    with pytest.raises(ConfigError, match=r"data\.parts\.b\.transforms: .*'x' becomes \(2,\) uint8.*data\.parts\.a"):
        PartTransforms(data.part_of, fields, built, True, lambda chain: chain)(batch, torch.arange(6), rows)


def test_a_mistake_in_a_part_names_its_key(folder: Path) -> None:
    for changed, says in (
        ({"path": "/no/where.h5"}, r"^data\.parts\.b\.path=/no/where\.h5: no such file"),
        ({"fields": {"x": "xx"}}, r"data\.parts\.b\.fields\.x"),
        ({"splits": {"train": None}}, r"^data\.parts\.b\.splits\.train: null"),
        ({"splits": {"train": {"group": "train", "rows": [0, 0.001]}}}, r"^data\.parts\.b\.splits"),
        ({"fields": {"y": "x"}}, r"^data\.parts\.b\.fields\.y: \(2,\) uint8, but \(\) int64 in da"),
        ({"fields": {"set": "x"}}, r"^data\.parts\.b\.fields\.set: "),
    ):
        with pytest.raises(ConfigError, match=says):
            mixed(folder, {"a": 1, "b": 1}, b=changed)


def test_weights_that_do_not_fit_are_named(folder: Path) -> None:
    data = mixed(folder, {"a": 1, "b": 1})
    for given, says in (
        ({"a": 1}, r"data\.weights: has \['a'\]; give one for each part: \['a', 'b'\]"),
        ({"a": 0, "b": 0}, r"data\.weights=.*: the weights from sample 0 on are all 0"),
        ({"a": 1, "b": -1}, r"data\.weights\.b=-1: must be a number >= 0"),
        ({"a": 1, "b": [[5, 1]]}, r"data\.weights\.b=\[\[5, 1\]\]: .*that starts at 0"),
        ({"a": 1, "b": 0.12345678901234}, "too many digits"),
    ):
        data.weights = given
        with pytest.raises(ConfigError, match=says):
            mixture(data, seed=0)


TWO = (
    "data=mixed", "+data@data.parts.old=h5", "+data@data.parts.new=h5", "+data.weights.old=1", "+data.weights.new=2",
)  # fmt: skip


@pytest.mark.slow
def test_a_typo_in_a_command_is_one_line_that_names_the_part() -> None:
    for changed, says in (
        ("+data.parts.new.pth=x.h5", r"data\.parts\.new\.pth: .*did you mean 'path'"),
        ("data.parts.new.loader=device", r"data\.parts\.new\.loader=device: .*share data\.loader - set that"),
        ("+data.parts.new.transforms.to_float.fields=x", r"data\.parts\.new\.transforms\.to_float\.fields"),
        ("+data.parts.third=7", r"data\.parts\.third: is not a data set"),
    ):
        with pytest.raises(ConfigError, match=says):
            compose(*TWO, changed)
    with pytest.raises(ConfigError, match=r"^data\.parts: is empty - add parts, such as \+data@data\.parts"):
        compose("data=mixed")


@pytest.mark.slow
def test_a_command_mixes_two_options_of_data() -> None:
    """Paths of parts are made absolute as data.path is, the whole batch is what the config says."""
    parts = lab.build(
        lab.compose([*TWO, "data.parts.new.path=data/digits.h5", "hardware=cpu", "trainer.global_batch_size=9"])
    )
    try:
        batch = next(iter(parts.loaders["train"]))
        assert batch["set"].bincount().tolist() == [3, 6]
        assert batch["x"].dtype == torch.float32
    finally:
        parts.close()


def test_parts_of_several_files_and_of_python_are_read_alike(folder: Path) -> None:
    """What h5py gives, whether a part writes its samples into their places itself, is of shards, or works in Python."""
    data = mixed(
        folder, {"a": 1, "b": 1}, b={"path": [str(folder / "c.h5"), str(folder / "b.h5"), str(folder / "c.h5")]}
    )
    rows = np.random.default_rng(1).permutation(len(data))
    batch = data.gather(rows)
    data.parts["b"] = Python(data.parts["b"])
    for field, values in data.gather(rows).items():
        assert torch.equal(values, batch[field])
    assert batch["x"][data.part_of(rows) == 1].flatten(1).unique(dim=0).shape[0] == 11 + 70  # c's rows come twice


class Python:
    """Knows nothing of places."""

    def __init__(self, inner: Any) -> None:
        self.inner, self.spec = inner, inner.spec

    def gather(self, rows: np.ndarray, out: Any) -> dict[str, Tensor]:
        return self.inner.gather(rows, out)
