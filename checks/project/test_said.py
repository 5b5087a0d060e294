"""What a run says: what is trained with what, what a resume changed, how far it is, whose scores are shown."""

from __future__ import annotations

import math
import re
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import QUICK
from sweeps import call

import samebits.loggers.logger
from lab.metrics.accuracy import Accuracy
from samebits.files import read_json, write_json
from samebits.process.header import node_text
from samebits.testing import result, start_run

RUN = (*QUICK, "trainer.max_steps=8", "trainer.eval_every=2", "trainer.save_every=4", "trainer.log_every=4")


def test_the_log_says_what_is_trained_with_what_and_what_a_resume_changes(tmp_path: Path) -> None:
    run = tmp_path / "run"
    with pytest.raises(SystemExit, match="75"):
        start_run(run, *RUN, "optim.lr=0.02", "seed=3", "trainer.ema_decay=0.9", "process.stop_at_step=4")
    log = (run / "train.log").read_text()
    assert "Supervised(criterion=CrossEntropy(label_smoothing=0.0), metrics={accuracy}) of MLP(hidden=[16]" in log
    what = r"AdamW\(lr=0\.02, .*\), Cosine\(warmup=0\.05, .*\), clip_norm=1\.0, ema_decay=0\.9, seed=3\n"
    assert re.search(what, log)
    assert re.search(r"overrides: .*optim\.lr=0\.02 seed=3 ", log)
    assert "logger=none" not in log
    assert "changed:" not in log
    known = read_json(run / "environment.json")
    began_with = {"rows_of": {"version": "0.2.0", "source": "a", "place": "/site"}}
    write_json(run / "environment.json", {**known, "libraries": {**known["libraries"], **began_with}})
    done = call(f"resume={run}", "trainer.clip_norm=null", "optim.lr=0.01", "process.stop_at_step=null")
    line = "changed: optim.lr 0.02 -> 0.01, trainer.clip_norm 1.0 -> null, process.stop_at_step 4 -> null"
    line += ", rows_of 0.2.0 -> none"
    assert sorted(line[9:].split(", ")) == sorted(
        next(text for text in done.stderr.splitlines() if text.startswith("changed: "))[9:].split(", ")
    )
    assert "changed: " in (run / "train.log").read_text()


def test_a_node_is_told_by_its_class_and_values() -> None:
    node = {"_target_": "a.b.C", "_partial_": True, "x": 1, "none": None, "inner": {"_target_": "d.E", "y": "text"}}
    assert node_text({**node, "named": {"one": {"_target_": "f.G"}}}) == "C(x=1, inner=E(y=text), named={one})"


def test_fresh_weights_are_scored_and_the_run_goes_on_as_if_begun_with_its_steps(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    run = start_run(tmp_path / "run", *RUN, "trainer.max_steps=0")
    assert result(run)["step"] == 0
    assert result(run)["val/accuracy"] < 0.5
    assert re.search(r"val/loss +\d\.\d+ +fresh weights, step 0\n", capfd.readouterr().err)
    call(f"resume={run}", "trainer.max_steps=8")
    straight = start_run(tmp_path / "straight", *RUN)
    assert {**result(run), "seconds": 0} == {**result(straight), "seconds": 0}


def test_the_last_table_says_of_which_weights_each_score_is(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    run = start_run(tmp_path / "run", *RUN)
    shown, best = capfd.readouterr().err, result(run)["best_step"]
    assert re.search(r"  train/loss +\d\.\d+ +in training, until step 8\n", shown)
    assert re.search(rf"  test/loss +\d\.\d+ +best weights, step {best}\n", shown)


def test_a_line_now_and_then_says_how_far_a_run_is_that_has_no_terminal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    start_run(tmp_path / "one", *RUN)
    assert "s each" not in capfd.readouterr().err  # of a short run nothing
    monkeypatch.setattr(samebits.loggers.logger, "PROGRESS_S", 0.0)
    start_run(tmp_path / "two", *RUN)
    shown = capfd.readouterr().err
    assert re.search(r"\nstep 1 of 8, \d\S* s each\n", shown)
    assert re.search(r"\nstep 7 of 8, \d\S* s each; val/loss \d\S*, val/accuracy \d\S*, train/loss \d\S*\n", shown)


def test_a_score_that_is_never_finite_and_a_split_of_another_shape_are_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(Accuracy, "__call__", lambda self, output, batch: output[:, 0] * math.nan)
    with h5py.File(tmp_path / "unlike.h5", "w") as file:
        for split, side in (("train", 8), ("val", 10)):
            file[f"{split}/image"] = np.random.default_rng(0).random((40, 1, side, side), np.float32)
            file[f"{split}/label"] = np.arange(40) % 10
    own = (f"data.path={tmp_path}/unlike.h5", "data.splits.test=null", "model=resnet", "model.width=4")
    quick = [override for override in QUICK if not override.startswith("model.")]
    quick += ["trainer.max_steps=2", "trainer.eval_every=1", "monitor.key=val/accuracy", "monitor.mode=max"]
    start_run(tmp_path / "run", *quick, *own)
    said = capfd.readouterr().err
    assert "x of val: (1, 10, 10) float32, unlike that of train, (1, 8, 8) float32\n" in said
    assert said.count("scores are NaN") == said.count("step 1: these scores are NaN: val/accuracy\n") == 1
    assert "monitor.key=val/accuracy: was not finite in any evaluation; scoring the last weights" in said
