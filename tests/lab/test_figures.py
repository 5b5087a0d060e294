"""callback=curves and callback=confusion: pictures of a run in its directory."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest
from common import QUICK, needs

from lab.callbacks import confusion, curves
from lab.callbacks.curves import panels_of
from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, result, resume_run, start_run

pytestmark = needs("conf/callback/curves.yaml", "conf/callback/confusion.yaml", "conf/task/classification.yaml")
Image = pytest.importorskip("PIL.Image")
pytest.importorskip("matplotlib")
SHORT = (*QUICK, "trainer.max_steps=6", "trainer.log_every=2", "trainer.eval_every=3", "trainer.save_every=3")


@pytest.mark.slow
def test_both_are_drawn_and_the_run_is_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The counts are those of the best weights on each split."""
    shown = {}
    original = confusion.drawn
    monkeypatch.setattr(
        confusion,
        "drawn",
        lambda table, names, title: shown.setdefault(title, (table, original(table, names, title)))[1],
    )
    plain = start_run(tmp_path / "plain", *SHORT)
    run = start_run(tmp_path / "run", *SHORT, "callback=[curves,confusion]")
    assert_equal(last_checkpoint(run)["model"], last_checkpoint(plain)["model"])
    assert result(run).keys() == result(plain).keys()
    for split in ("val", "test"):
        table, _ = shown[split]
        assert table.sum() == 250
        assert table.trace() / 250 == pytest.approx(result(run)[f"{split}/accuracy"])
        assert Image.open(run / f"media/{split}/confusion/00000006.png").size > (400, 400)
    assert Image.open(run / "curves.png").size > (1000, 300)


@pytest.mark.slow
def test_two_ranks_draw_what_one_does(tmp_path: Path) -> None:
    both, tables = ("callback=[curves,confusion]", *SHORT), []
    for name, ways in (("one", ()), ("two", ("trainer=ddp", "hardware.num_procs=2"))):
        run = start_run(tmp_path / name, *both, *ways)
        tables.append((run / "test_confusion.csv").read_text())
        assert (run / "curves.png").exists()
        assert (run / "media/val/confusion/00000006.png").exists()
    assert tables[0] == tables[1]


@pytest.mark.slow
def test_after_a_resume_the_curves_are_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn = []
    original = curves.drawn
    monkeypatch.setattr(curves, "drawn", lambda panels, best: drawn.append(panels) or original(panels, best))
    run = start_run(tmp_path, *SHORT, "callback=curves", "trainer.log_every=1")
    for file in (run / "checkpoints").glob("*6*"):
        file.unlink()
    (run / "curves.png").unlink()
    resume_run(run)
    assert (run / "curves.png").exists()
    for panels in drawn:
        assert list(panels) == ["loss", "accuracy", "grad_norm", "lr"]
        assert list(panels["loss"]) == ["train", "val"]
        assert panels["loss"]["train"][0].tolist() == [1, 2, 3, 4, 5, 6]
        assert panels["loss"]["val"][0].tolist() == [3, 6]


def test_what_a_curve_is() -> None:
    """Of training and of evaluations, without what was not finite, epochs and speeds."""
    lines = [
        {"step": 1, "time": 3.0, "train/loss": 2.0, "train/epoch": 0.1, "perf/samples_per_s": 5.0, "train/lr": 0.1},
        {"step": 2, "train/loss": None, "val/loss": 1.5, "val/f1": 0.3, "balance/own": 1.0},
        {"step": 3, "train/loss": 1.0, "val_hard/loss": 1.6},
    ]
    found = panels_of(lines)
    assert list(found) == ["loss", "f1", "lr"]
    assert {split: values.tolist() for split, (_, values) in found["loss"].items()} == {
        "train": [2.0, 1.0], "val": [1.5], "val_hard": [1.6],
    }  # fmt: skip
    assert found["loss"]["train"][0].tolist() == [1, 3]


def test_class_names_are_on_the_axes(tmp_path: Path) -> None:
    table = np.diag([3, 0, 5])
    axis = confusion.drawn(table, ["cat", "dog", "albatross"], "val").axes[0]
    assert [text.get_text() for text in axis.get_yticklabels()] == ["cat", "dog", "albatross"]
    assert [text.get_text() for text in axis.texts] == ["3", "5"]
    assert axis.get_title() == "val: 8 labels, 100.0% right"
    many = confusion.drawn(np.eye(300, dtype=int), [str(k) for k in range(300)], "val").axes[0]
    assert len(many.get_yticklabels()) <= 40
    assert not many.texts


@pytest.mark.slow
def test_mistakes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        ConfigError, match=r"^callback\.confusion\.metric=accurac: task\.metrics has no ConfusionMatrix"
    ):
        start_run(tmp_path / "a", *SHORT, "callback=confusion", "callback.confusion.metric=accurac")
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    for name in ("curves", "confusion", "pictures"):
        with pytest.raises(ConfigError, match=rf"^callback={name} needs matplotlib, which .*pip install"):
            start_run(tmp_path / name, *SHORT, f"callback={name}")
