"""Data sets of the user's own, which draw, hold files or split by rank: each is right, or refused in one line."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import combinations
from typing import Any

import numpy as np
import pytest
import torch
from conftest import QUICK, compose
from torch import Tensor

import lab
import lab.datasets.synthetic as synthetic

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
    for kind in (Drawn, Collating, Streamed):
        monkeypatch.setattr(kind, "__module__", synthetic.__name__)
        monkeypatch.setattr(synthetic, kind.__name__, kind, raising=False)


STREAM = ("data/order=sequential", "trainer.max_steps=4", "trainer.eval_every=2", "trainer.save_every=2",
          "trainer.max_epochs=null", "trainer.max_eval_batches=2")  # fmt: skip


PART = ["data=mixed", "trainer.global_batch_size=16"]
for name in "ab":
    PART += [f"+data@data.parts.{name}=synthetic", f"data.parts.{name}.size=64", f"data.parts.{name}.shape=[8]",
             f"data.parts.{name}.num_classes=2", f"data.parts.{name}._target_={synthetic.__name__}.Drawn",
             f"data.parts.{name}.input_shape=[8]", f"data.parts.{name}.num_outputs=2", f"+data.parts.{name}.how=numpy",
             f"+data.weights.{name}=1"]  # fmt: skip
MIXED = [*MODEL, *PART]


def own(kind: type, *overrides: str) -> tuple[str, ...]:
    """The overrides of a run with this data set of 64 samples."""
    return (*MODEL, "data=synthetic", "data.size=64", "data.shape=[8]", "data.num_classes=2",
            f"data._target_={synthetic.__name__}.{kind.__name__}", "trainer.global_batch_size=16",
            *overrides)  # fmt: skip


def first_batches(*overrides: str) -> dict[str, dict[str, Tensor]]:
    parts = lab.build(compose(*overrides))
    try:
        return {split: {f: v.clone() for f, v in next(iter(of)).items()} for split, of in parts.loaders.items()}
    finally:
        parts.close()


@pytest.mark.parametrize(
    ("kind", "overrides"),
    [
        (Drawn, ["+data.how=numpy"]),
        (Drawn, ["+data.how=torch", "data.num_workers=2"]),
        (Drawn, ["+data.how=python", "data/order=sequential"]),
        (Collating, ["+data.how=torch"]),
        (Streamed, ["+data.how=numpy", *STREAM]),
        (Streamed, ["+data.how=torch", *STREAM]),
        (None, MIXED),
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
