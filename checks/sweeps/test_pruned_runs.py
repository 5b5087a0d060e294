"""Runs that a search prunes, and that cannot reach their search."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from samebits.status import write_status
from samebits.sweeps.search.storage import open_study
from samebits.testing import start_run, status


def study_with_good_trials(sweep_dir: Path, evaluations: int = 20) -> Any:
    """A study whose one complete trial had no loss at all, at every evaluation."""
    study = open_study(None, "s", sweep_dir, ["min"])
    trial = study.ask()
    for evaluation in range(evaluations):
        trial.report(0.0, evaluation)
    study.tell(trial, 0.0)
    return study


def trial_directory(sweep_dir: Path, **arguments: Any) -> tuple[Path, Any]:
    study = study_with_good_trials(sweep_dir)
    trial = study.ask()
    run_dir = sweep_dir / "trial_0001"
    run_dir.mkdir()
    facts = {"study": "s", "storage": None, "trial": trial.number, "params": {}, "objective": "val/loss"}
    facts["pruner"] = {"_target_": "optuna.pruners.MedianPruner", "n_startup_trials": 1, **arguments}
    (run_dir / "trial.json").write_text(json.dumps(facts))
    return run_dir, study


PRUNED = [*QUICK, "trainer.max_steps=40", "trainer.eval_every=4", "trainer.log_every=10"]


@pytest.mark.slow
def test_a_pruned_run_stops_and_stays_so(tmp_path: Path) -> None:
    """Of several ranks: test_optuna_runs.py."""
    run_dir, study = trial_directory(tmp_path, n_warmup_steps=2)
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "pruned"
    assert status(run_dir)["step"] == 12  # the third evaluation: two are never the last
    assert not (run_dir / "result.json").exists()
    assert study.trials[1].intermediate_values.keys() == {0, 1, 2}
    evaluated = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(evaluated) == 12
    write_status(run_dir, "running")  # as one that was killed before it could say how it ended
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "pruned"
    assert not (run_dir / "result.json").exists()


@pytest.mark.slow
def test_a_run_goes_on_where_its_search_cannot_be_reached(tmp_path: Path) -> None:
    run_dir, _ = trial_directory(tmp_path)
    os.remove(tmp_path / "study.db")
    (tmp_path / "study.db").mkdir()
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "finished"
    assert (run_dir / "train.log").read_text().count("continues without pruning") == 1
