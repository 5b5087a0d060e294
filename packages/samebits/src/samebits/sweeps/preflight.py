"""Before a sweep starts: build every job, run one batch of each distinct shape, estimate the sweep's time and memory.

Each job is tried in a process of its own, which does one rank's work; nothing is written. With several ranks, times are
without communication, and a model that would be sharded is whole.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from samebits import early_signals
from samebits.children import run_in_subprocess
from samebits.files import aligned, in_words
from samebits.host import cores, limited_to
from samebits.project import Program, Project
from samebits.sweeps.screen import clock


@dataclass(frozen=True)
class Candidate:
    """A job before it is written."""

    number: int
    label: str
    cfg: DictConfig


@dataclass(frozen=True)
class Trial:
    """Measurements of one rank of a job. shape: key of all that decides times and memory. step_s, eval_s, end_s:
    seconds of one optimizer step, of one evaluation, of the final scores; None: the shape was timed before. memory:
    bytes."""

    shape: str
    batch: str
    steps: int
    evaluations: int
    step_s: float | None
    eval_s: float | None
    end_s: float | None
    memory: int


def preflight(project: Project, candidates: Sequence[Candidate], at_once: int) -> str:
    """The table for the user. Raises ConfigError or RunFailed for the first job that cannot be built or run."""
    import torch  # noqa: F401 - once, for all processes

    known: dict[str, Trial] = {}
    rows = [["job", "steps", "ms a step", "memory", "time", "batch", "overrides"]]
    seconds, memory = 0.0, 0
    for candidate in candidates:
        early_signals.leave_if_asked()
        where = f"preflight: job {candidate.number} ({candidate.label})"
        shares = max(1, cores() // at_once), sorted(known)
        trial = Trial(**run_in_subprocess(where, _try_out, project, candidate.cfg, *shares))
        timed = known.setdefault(trial.shape, trial)
        assert timed.step_s is not None and timed.eval_s is not None and timed.end_s is not None  # noqa: PT018
        job_s = trial.steps * timed.step_s + trial.evaluations * timed.eval_s + timed.end_s
        seconds, memory = seconds + job_s, max(memory, timed.memory)
        figures = [f"{trial.steps:,}", f"{1e3 * timed.step_s:.1f}", in_words(timed.memory), clock(job_s)]
        rows.append([str(candidate.number), *figures, trial.batch, candidate.label])
    total = f"preflight: {len(candidates)} jobs of {len(known)} shapes, about {clock(seconds)} one after the other"
    if at_once > 1:
        total += f", {clock(seconds / at_once)} with {at_once} at once"
    return f"{aligned(rows, len(rows[0]))}\n\n{total}; memory of a rank: up to {in_words(memory)}"


def _try_out(project: Program, cfg: DictConfig, num_cores: int, known: list[str]) -> dict[str, Any]:
    os.environ.update(limited_to(num_cores))
    return project.try_out(cfg, known)
