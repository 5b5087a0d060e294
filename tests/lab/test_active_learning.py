"""The rows that are labelled are those of which the model is least sure, for any number of ranks."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
import torch
from common import ROOT

import lab
from lab.callbacks.active_learning import Labelled
from samebits.errors import ConfigError
from samebits.testing import SMALL, WAYS, assert_undisturbed, broken_off, last_checkpoint, result, start_run, values

POOL = (
    *SMALL, "experiment=active_learning", "model.hidden=[16]", "data.order.begin=16",
    "callback.active_learning.count=8", "callback.active_learning.most=30",
)  # fmt: skip


def labelled(folder: Path) -> torch.Tensor:
    rows: torch.Tensor = last_checkpoint(folder)["order"]["order"]["rows"]
    return rows


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return start_run(tmp_path_factory.mktemp("straight"), *POOL)


@pytest.mark.slow
def test_each_evaluation_labels_some_up_to_the_most(straight: Path) -> None:
    rows = labelled(straight)
    assert values(straight, "train/labelled") == [16, 24, 30, 30]
    assert len(rows.unique()) == 30
    assert torch.equal(rows[:16], Labelled(range(1297), 0, 16).rows)


def test_the_most_uncertain_are_chosen(tmp_path: Path) -> None:
    """By the weights of the checkpoint, computed here."""
    folder = start_run(tmp_path, *POOL, "trainer.max_steps=4", "trainer.keep_best=0")
    rows = labelled(folder)
    model, _ = lab.load_run(folder)
    with h5py.File(ROOT / "data/digits.h5") as file:
        images = torch.from_numpy(file["train/image"][:]) / 255
    with torch.no_grad():
        probabilities = model(images).softmax(1)
    entropy = -(probabilities * probabilities.log()).sum(1)
    entropy[rows[:16]] = -1
    assert set(rows[16:].tolist()) == set(entropy.topk(8).indices.tolist())


@pytest.mark.slow
def test_ranks_label_the_same(tmp_path: Path, straight: Path) -> None:
    other = start_run(tmp_path, *POOL, *WAYS["3 ranks"])
    assert torch.equal(labelled(other), labelled(straight))
    assert result(other)["test/loss"] == pytest.approx(result(straight)["test/loss"], rel=1e-4)


@pytest.mark.slow
def test_killed_behind_a_label_it_is_undisturbed(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert_undisturbed(broken_off(tmp_path, monkeypatch, [7], *POOL), straight)


@pytest.mark.slow
def test_mistakes_are_one_line(tmp_path: Path) -> None:
    unsaved = ("data.order._target_=samebits.data.order.sequential", "~data.order.begin")
    for more, message in (
        (("data.order.begin=2000",), "data.order.begin=2000: the training split has only 1297 samples"),
        (unsaved, "data.order has no state - choose"),
    ):
        with pytest.raises(ConfigError, match=message):
            start_run(tmp_path, *POOL, *more)
