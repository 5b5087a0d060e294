"""Objectives of a search: keys of result.json to minimize or maximize. Imports neither torch nor optuna."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine.app import app
from engine.config.schema import did_you_mean, show
from engine.errors import ConfigError
from engine.runs.logger import METRICS

MODES = ("min", "max")
# numbers in result.json beside the scores; a fork whose runs write more adds their keys here
RESULT_KEYS = ("step", "best_step", "seconds", "train/loss")


@dataclass(frozen=True)
class Objective:
    key: str
    mode: str  # min or max


def choose(node: Mapping[str, Any] | None, cfg: Mapping[str, Any]) -> list[Objective]:
    """Objectives from hydra.sweeper.objectives, {key: min or max}; null: the monitor of `cfg`, a trial's config."""
    if not node:
        return [Objective(cfg["monitor"]["key"], cfg["monitor"]["mode"])]
    scores = app().scores(cfg, "val", "test")
    known = scores + list(RESULT_KEYS)
    for key, mode in node.items():
        if key not in known and not str(key).startswith(tuple(f"{score}/" for score in scores)):  # one of several
            hint = did_you_mean(str(key), known)
            raise ConfigError(
                f"hydra.sweeper.objectives: result.json has no {show(key)}{hint} (it has: {', '.join(known)})"
            )
        if mode not in MODES:
            raise ConfigError(f"hydra.sweeper.objectives: {key}: no mode {show(mode)} (modes: {', '.join(MODES)})")
    return [Objective(str(key), mode) for key, mode in node.items()]


def read(result: Mapping[str, Any], objectives: Sequence[Objective]) -> tuple[list[float], str]:
    """(values (objectives,), ""), or ([], reason) if one is missing or NaN. result: result.json of a finished run."""
    values = [result.get(objective.key) for objective in objectives]
    for objective, value in zip(objectives, values):
        if objective.key in result and (value is None or math.isnan(value)):  # JSON has no NaN: null
            return [], f"{objective.key} is not a number (NaN)"
        if not isinstance(value, (int, float)):
            return [], f"result.json has no number for {objective.key}"
    return [float(value) for value in values if value is not None], ""


def evaluations(run_dir: Path, objective: Objective) -> list[float | None]:
    """The objective's logged values in order; None: not finite."""
    found = []
    for line in (run_dir / METRICS).read_text().splitlines() if (run_dir / METRICS).exists() else ():
        try:
            record = json.loads(line)
        except ValueError:  # the half line of a killed process
            continue
        if objective.key in record:
            found.append(record[objective.key])
    return found
