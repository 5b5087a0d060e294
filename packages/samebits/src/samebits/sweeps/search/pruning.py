"""Pruning: a callback in a trial's run that reports each score to the study and stops the run if Optuna prunes it.

Only rank 0 uses the storage and broadcasts the decision, so all ranks stop together. If the storage cannot be reached,
the run continues without pruning and logs a warning.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.credentials import restored
from samebits.files import read_json
from samebits.project import Project
from samebits.schema import passed
from samebits.sweeps.search.storage import attached, open_study
from samebits.targets import build_target

if TYPE_CHECKING:
    from optuna.trial import Trial

log = logging.getLogger("samebits")
TRIAL = "trial.json"
PRUNERS_ALLOWED = ("optuna.pruners.*",)


class Pruning:
    """The callback. facts: content of trial.json, which the search writes: study, storage, trial, objective, pruner."""

    run: Any  # set by the training loop

    def __init__(self, project: Project, run_dir: Path, facts: Mapping[str, Any]) -> None:
        self._project, self._run_dir, self._facts = project, run_dir, facts
        self._trial: Trial | None = None
        self._given_up = False

    @staticmethod
    def of(project: Project, run_dir: Path) -> Pruning | None:
        """Return the callback for this run; None if it is not a trial of a search that prunes."""
        facts = read_json(run_dir / TRIAL)
        return Pruning(project, run_dir, facts) if facts.get("pruner") else None

    def on_eval(self, state: Any, scores: Mapping[str, float]) -> bool:
        """Return True to stop the run, and write the reason to the state. All ranks must call this; the result is
        broadcast."""
        run = self.run
        if state.step >= run.total_steps:
            return False
        evaluation = passed(state.step, run.eval_every) - 1  # from 0
        answer = self._ask(evaluation, scores[self._facts["objective"]]) if run.world.is_main else False
        pruned = bool(run.world.broadcast_object(bool(answer)))  # Optuna may return a numpy bool
        if pruned:
            state.stop_reason = "pruned"
        return pruned

    def _ask(self, evaluation: int, value: float) -> bool:
        if self._given_up:
            return False
        try:
            if self._trial is None:
                facts = self._facts
                study = open_study(
                    facts["storage"] and restored(facts["storage"]), facts["study"], self._run_dir.parent
                )
                study.pruner = build_target(self._project, facts["pruner"], "trial.json: pruner", PRUNERS_ALLOWED)
                self._trial = attached(study, facts["trial"])
            with warnings.catch_warnings():  # a resumed run reports some values twice
                warnings.filterwarnings("ignore", message=".*already reported")
                self._trial.report(value, evaluation)
            return self._trial.should_prune()
        except Exception as error:  # from the database, the network, or a search that has ended this trial
            log.warning("this run continues without pruning (%s: %s)", type(error).__name__, error)
            self._given_up = True
            return False
