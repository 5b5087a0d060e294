"""Objectives of a search: keys of result.json to minimize or maximize. Imports neither torch nor optuna."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError
from samebits.files import records
from samebits.project import Program
from samebits.schema import did_you_mean, show
from samebits.status import METRICS
from samebits.sweeps.report import Objective

MODES = ("min", "max")
# numbers in result.json in addition to the scores; a fork whose runs write more adds their keys here
RESULT_KEYS = ("step", "best_step", "seconds", "train/loss")


def choose(project: Program, node: Mapping[str, Any] | None, cfg: Mapping[str, Any]) -> list[Objective]:
    """Return the objectives from hydra.sweeper.objectives, {key: min or max}; null: the monitor of `cfg`, a trial's
    config."""
    if not node:
        return [Objective(cfg["monitor"]["key"], cfg["monitor"]["mode"])]
    scores = project.scores(cfg, "val", "test")
    known = scores + list(RESULT_KEYS)
    for key, mode in node.items():
        if key not in known and not str(key).startswith(tuple(f"{score}/" for score in scores)):  # one of several
            hint = did_you_mean(str(key), known)
            raise ConfigError(
                f"hydra.sweeper.objectives: {show(key)} is not in result.json{hint} (it contains: {', '.join(known)})"
            )
        if mode not in MODES:
            raise ConfigError(f"hydra.sweeper.objectives: {key}: unknown mode {show(mode)} (modes: {', '.join(MODES)})")
    return [Objective(str(key), mode) for key, mode in node.items()]


def read(result: Mapping[str, Any], objectives: Sequence[Objective]) -> tuple[list[float], str]:
    """Return (values (objectives,), ""), or ([], reason) if one is missing or NaN. result: result.json of a finished
    run."""
    values = {objective.key: result.get(objective.key, "none") for objective in objectives}
    for key, value in values.items():
        if value is None or value != value:  # NaN is null in JSON
            return [], f"{key} is not a number (NaN)"
        if not isinstance(value, (int, float)):
            return [], f"result.json has no number for {key}"
    return [float(value) for value in values.values()], ""


def evaluations(run_dir: Path, objective: Objective) -> list[float | None]:
    """Return the objective's logged values in order; None for values that are not finite."""
    return [record[objective.key] for _, record in records(run_dir / METRICS) if objective.key in record]
