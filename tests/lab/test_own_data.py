"""Data sets of the user's own, which draw, hold files or split by rank: each is right, or refused in one line."""

from __future__ import annotations

import os
import random
import time
from collections.abc import Iterator, Mapping
from contextlib import closing
from itertools import combinations
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import torch.distributed as dist
from common import QUICK, needs
from torch import Tensor, nn

import lab
import lab.datasets.synthetic as synthetic
import lab.metrics.confusion as confusion
import lab.models.mlp as mlp
from lab.metrics.base import SummedMetric
from lab.transforms.fields import ToFloat
from samebits.data import check_same_data
from samebits.errors import ConfigError
from samebits.testing import compose, result, start_run
from samebits.testing.processes import slow

MODEL = tuple(override for override in QUICK if override.startswith(("logger", "hardware", "model")))
DRAW = {
    "numpy": lambda: np.random.normal(size=8).astype(np.float32),
    "torch": lambda: torch.randn(8),
    "python": lambda: np.array([random.random() for _ in range(8)], np.float32),
}


class Drawn:
    """x is drawn when the sample is asked for, `once` by `__init__`."""

    def __init__(self, size: int, shape: list[int], num_classes: int, seed: int, split: str, how: str) -> None:
        self.size, self.how, self.once = size, how, DRAW[how]()

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": DRAW[self.how](), "once": self.once, "y": i % 2}


class Stateful(Drawn):
    """x depends on the samples that were read before."""

    def __init__(self, **given: Any) -> None:
        super().__init__(**given)
        self.own, self.held = torch.Generator().manual_seed(1), torch.zeros(8)

    def __getitem__(self, i: int) -> dict[str, Any]:
        own = torch.randn(8, generator=self.own)
        self.held += 1
        return {**super().__getitem__(i), "x": own if i % 2 else self.held.clone()}


class Collating(Drawn):
    """x is drawn by `collate`."""

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        batch = torch.utils.data.default_collate(samples)
        return {**batch, "x": torch.stack([torch.as_tensor(DRAW[self.how]()) for _ in samples])}


class Streamed:
    def __init__(self, size: int, shape: list[int], num_classes: int, seed: int, split: str, how: str) -> None:
        self.how, self.once = how, DRAW[how]()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield {"x": DRAW[self.how](), "once": self.once, "y": 0}


@pytest.fixture(autouse=True)
def allowed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A `_target_` may name the classes of this file, as if a module of data sets defined them."""
    for kind in (Drawn, Stateful, Collating, Streamed, ByRank, Halved, Packed, Nodes, Normed, Named, Embeds, Held):
        module = {Nodes: confusion, Normed: mlp, Embeds: mlp}.get(kind, synthetic)  # type: ignore[call-overload]
        monkeypatch.setattr(kind, "__module__", module.__name__)
        monkeypatch.setattr(module, kind.__name__, kind, raising=False)


class ByRank:
    """A stream that splits itself by rank, or shuffles without a seed."""

    def __init__(self, size: int, shape: list[int], num_classes: int, seed: int, split: str, how: str) -> None:
        self.how = how if split in ("train", "val") else "whole"
        if how == "val" and split == "train":
            self.how = "whole"

    def __iter__(self) -> Iterator[dict[str, Any]]:
        rank = dist.get_rank() if dist.is_initialized() else 0
        begin, step = (0, 1) if self.how == "whole" else (rank, 2)
        yield from ({"x": np.full(8, i, np.float32), "y": i % 2} for i in range(begin, 1000, step))


class Halved(Drawn):
    """Rows by rank: rank 0 has one more, or as many others."""

    def __init__(self, size: int, shape: list[int], num_classes: int, seed: int, split: str, how: str) -> None:
        self.rank = dist.get_rank() if dist.is_initialized() else 0
        self.size, self.how = size - self.rank * (how == "lengths"), how

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": np.full(8, self.rank, np.float32), "y": i % 2}


class Packed(Halved):
    """Sample i has i % 3 + 1 nodes; all nodes of a batch are one field, `pair` has by chance as many as a batch."""

    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.full((8,), float(i)), "y": i % 2, "nodes": torch.ones(i % 3 + 1)}

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {
            "x": torch.stack([one["x"] for one in samples]),
            "y": torch.tensor([one["y"] for one in samples]),
            "nodes": torch.cat([one["nodes"] for one in samples]),
            "pair": torch.ones(8),
        }


class Nodes(SummedMetric):
    """All nodes that an evaluation has seen, and the least entries of `pair`."""

    def __init__(self) -> None:
        super().__init__(2)

    def count(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        return torch.tensor([len(batch["nodes"]), int(len(batch["pair"]) != 8)])

    def score(self, total: Tensor) -> dict[str, float]:
        return {"seen": float(total[0]), "cut": float(total[1])}


class Held(Drawn):
    """Rows of a file that was open before the ranks were forked, as one of a module's is."""

    fd = -1

    def __getitem__(self, i: int) -> dict[str, Any]:
        os.lseek(self.fd, 3 * i, os.SEEK_SET)
        time.sleep(0.001)
        if (read := int(os.read(self.fd, 3))) != i:
            raise ValueError(f"row {i} is {read}")
        return {"x": torch.full((8,), float(i)), "y": i % 2}


class Normed(nn.Sequential):
    def __init__(self, norm: str) -> None:
        super().__init__(nn.Flatten(), nn.Linear(8, 4), getattr(nn, norm)(4), nn.Linear(4, 2))


class Named(Drawn):
    """With arguments that have the names of the run's own keys of other data sets."""

    def __init__(self, splits: Any, parts: Any, **given: Any) -> None:
        super().__init__(**given)


class Embeds(nn.Sequential):
    def __init__(self) -> None:
        super().__init__(nn.Embedding(10, 4), nn.Flatten(), nn.Linear(20, 3))


STREAM = ("data/order=sequential", "trainer.max_steps=4", "trainer.eval_every=2", "trainer.save_every=2",
          "trainer.max_epochs=null", "trainer.max_eval_batches=2")  # fmt: skip


PART = ["data=mixed", "data.num_workers=0", "trainer.global_batch_size=16"]
for name in "ab":
    PART += [f"+data@data.parts.{name}=synthetic", f"data.parts.{name}.size=64", f"data.parts.{name}.shape=[8]",
             f"data.parts.{name}.num_classes=2", f"data.parts.{name}._target_={synthetic.__name__}.Drawn",
             f"data.parts.{name}.input_shape=[8]", f"data.parts.{name}.num_outputs=2", f"+data.parts.{name}.how=numpy",
             f"+data.weights.{name}=1"]  # fmt: skip
MIXED = [*MODEL, *PART]


def own(kind: type, *overrides: str) -> tuple[str, ...]:
    """The overrides of a run with this data set of 64 samples. It does not measure how many workers are fastest."""
    return (*MODEL, "data=synthetic", "data.size=64", "data.shape=[8]", "data.num_classes=2", "data.num_workers=0",
            f"data._target_={synthetic.__name__}.{kind.__name__}", "trainer.global_batch_size=16",
            *overrides)  # fmt: skip


def first_batches(*overrides: str) -> dict[str, dict[str, Tensor]]:
    parts = lab.build(compose(*overrides))
    try:
        return {split: {f: v.clone() for f, v in next(iter(of)).items()} for split, of in parts.loaders.items()}
    finally:
        parts.close()


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        (Drawn, ["+data.how=numpy"]),
        (Drawn, ["+data.how=torch", "data.num_workers=2"]),
        slow(Drawn, ["+data.how=python", "data/order=sequential"]),
        (Collating, ["+data.how=torch"]),
        slow(Streamed, ["+data.how=numpy", *STREAM]),
        (Streamed, ["+data.how=torch", *STREAM]),
        pytest.param(None, MIXED, marks=needs("conf/data/mixed.yaml")),
    ],
)
def test_no_split_draws_what_another_draws(kind: type | None, overrides: list[str]) -> None:
    """And the training split draws what it drew when all splits had one seed."""
    given = own(kind, *overrides) if kind else overrides
    batches = first_batches(*given)
    assert len(batches) == 3
    for a, b in combinations(batches.values(), 2):
        assert not set(a["x"].flatten().tolist()) & set(b["x"].flatten().tolist())
        assert not torch.equal(a["once"][0], b["once"][0])
    before = first_batches(*given, "rules=1")
    assert torch.equal(before["train"]["x"], batches["train"]["x"])
    assert torch.equal(before["val"]["x"], before["test"]["x"])  # so an old run resumes with its own bits


RANKS = ("trainer=ddp", "hardware.num_procs=2")


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("kind", "overrides", "said"),
    [
        (ByRank, ["+data.how=split", *STREAM], "ByRank, split train: the ranks read different samples"),
        slow(ByRank, ["+data.how=val", *STREAM], "ByRank, split val: the ranks read different samples"),
        (Halved, ["+data.how=lengths"], "Halved, split train: has 64, 63 samples"),
    ],
    ids=["stream", "stream of val", "lengths"],
)
def test_a_set_that_splits_by_rank_ends_the_run(kind: type, overrides: list[str], said: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=said) as refused:
        start_run(tmp_path / "run", *own(kind, *overrides, *RANKS))
    assert "\n" not in str(refused.value)


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("kind", "overrides", "said"),
    [
        slow(ByRank, ["+data.how=whole", *STREAM], False),
        (Halved, ["+data.how=rows", "trainer.max_epochs=1"], True),
        (Drawn, ["+data.how=numpy", "trainer.max_epochs=1"], False),
    ],
)
def test_rows_that_differ_between_ranks_are_told(
    kind: type, overrides: list[str], said: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    """A sound set on two ranks is told nothing; and what __init__ draws is equal on both."""
    run = start_run(tmp_path / "run", *own(kind, *overrides, *RANKS))
    assert result(run)["step"] == 4
    assert ("row 0 differs between the ranks" in "".join(capfd.readouterr())) == said


@pytest.mark.parametrize("kind", [Drawn, Stateful, Collating, Streamed])
def test_a_row_that_differs_when_it_is_read_again_is_told(kind: type) -> None:
    """A resumed run would train on other samples. Random numbers of torch, numpy and Python are equal each time."""
    parts = lab.build(compose(*own(kind, "+data.how=torch", *(STREAM if kind is Streamed else ()))))
    with closing(parts):
        told = check_same_data(parts.world, parts.loaders)
    assert ["row 0 differs when it is read again" in line for line in told] == [True] * 3 * (kind is Stateful)


@pytest.mark.parametrize(
    "overrides",
    [slow(["trainer=ddp", "trainer.pad_eval_batches=true"]), slow(["trainer=fsdp"]), ["trainer=ddp"]],
    ids=["pad_eval_batches", "fsdp", "ddp"],
)
def test_packed_entries_count_once(overrides: list[str], tmp_path: Path) -> None:
    """255 samples with 510 nodes, on two ranks in batches of 8: one rank has a sample less."""
    metric = f"+task.metrics.nodes._target_={confusion.__name__}.Nodes"
    short = ("data.size=255", "trainer.max_steps=1", "trainer.max_epochs=null", "+data.how=rows", metric)
    run = start_run(tmp_path / "run", *own(Packed, *short), *overrides, "hardware.num_procs=2")
    scores = result(run)
    assert (scores["test/nodes/seen"], scores["test/nodes/cut"]) == (510, 0)


@pytest.mark.parametrize(
    ("norm", "size", "said"), [("BatchNorm1d", 70, True), slow("BatchNorm1d", 64, False), slow("LayerNorm", 70, False)]
)
def test_statistics_that_count_a_filled_batch_are_told(
    norm: str, size: int, said: bool, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    overrides = own(Drawn, "+data.how=numpy", "trainer.max_epochs=1", "data/order=epochs", "data.order.drop_last=false")
    given = [override for override in overrides if not override.startswith(("model", "data.size"))]
    model = f"+model={{_target_: {mlp.__name__}.Normed, norm: {norm}}}"
    start_run(tmp_path / "run", *given, f"data.size={size}", "~model", model)
    assert ("but the statistics of 2 (BatchNorm1d) include them" in "".join(capfd.readouterr())) == said


@pytest.mark.one_quick
@pytest.mark.parametrize("value", ["[1,2]", "true", "3", "text"])
def test_an_own_argument_may_be_called_splits_or_parts(value: str) -> None:
    assert set(first_batches(*own(Named, "+data.how=numpy", f"+data.splits={value}", f"+data.parts={value}"))) == {
        "train", "val", "test",
    }  # fmt: skip


def test_float64_fields_that_become_float32_are_told() -> None:
    spec = {"x": ((3,), torch.float64), "z": ((3,), torch.float32)}
    assert ToFloat(["x", "z"]).describe(spec) == [
        "x: float64 -> float32, rounded to 7 digits (data.transforms.to_float)"
    ]


def test_tokens_that_a_transform_makes_floats_are_named_with_it(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "tokens.h5", "w") as file:
        for split in ("train", "val", "test"):
            file[f"{split}/x"] = np.arange(64 * 5).reshape(64, 5) % 10
            file[f"{split}/y"] = np.arange(64) % 3
    given = [override for override in QUICK if not override.startswith("model")]
    data = (f"data.path={tmp_path}/tokens.h5", "data.fields.x=x", "data.fields.y=y", "trainer.max_steps=1")
    with pytest.raises(ConfigError, match=r"x: int64 -> float32, their values.*~data.transforms.to_float") as refused:
        start_run(tmp_path / "run", *given, *data, "~model", f"+model={{_target_: {mlp.__name__}.Embeds}}")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists() or not list((tmp_path / "run").iterdir())
    start_run(tmp_path / "run", *given, *data, "~data.transforms.to_float", "~model",
              f"+model={{_target_: {mlp.__name__}.Embeds}}")  # fmt: skip


@pytest.mark.slow
def test_each_rank_has_its_own_position_in_an_open_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "rows").write_text("".join(f"{i:03}" for i in range(64)))
    with open(tmp_path / "rows", "rb") as file:
        monkeypatch.setattr(Held, "fd", file.fileno())
        run = own(Held, "+data.how=numpy", "trainer.max_epochs=2", *RANKS)
        assert result(start_run(tmp_path / "run", *run))["step"] == 8
