"""The rows that are labelled are those of which the model is least sure, for any number of ranks."""

from __future__ import annotations

from pathlib import Path

import h5py
import pytest
import torch
from conftest import ROOT, assert_equal, last_checkpoint, metrics, raise_at_step, result, slow, start_run
from method import SMALL, WAYS, Killed, go_on, values

import lab
from engine.errors import ConfigError, RunFailed
from lab.callbacks.active_learning import Labelled

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
@pytest.mark.parametrize("ranks", [2, slow(3)])
def test_ranks_label_the_same(tmp_path: Path, straight: Path, ranks: int) -> None:
    other = start_run(tmp_path, *POOL, *WAYS[f"{ranks} ranks"])
    assert torch.equal(labelled(other), labelled(straight))
    assert result(other)["test/loss"] == pytest.approx(result(straight)["test/loss"], rel=1e-4)


@pytest.mark.slow
def test_killed_behind_a_label_it_is_undisturbed(
    tmp_path: Path, straight: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        raise_at_step(patch, 7, Killed)
        with pytest.raises((Killed, RunFailed)):
            start_run(tmp_path, *POOL)
    go_on(tmp_path)
    assert_equal(last_checkpoint(tmp_path), last_checkpoint(straight))
    assert metrics(tmp_path) == metrics(straight)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "message"),
    [
        (("data.order.begin=2000",), "data.order.begin=2000: the training split holds 1297 samples"),
        (
            ("data.order._target_=engine.data.order.sequential", "~data.order.begin"),
            "has no state that could change",
        ),
    ],
)
def test_mistakes_are_one_line(tmp_path: Path, more: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        start_run(tmp_path, *POOL, *more)
