"""Check a sweep before it starts: build every job, run one batch of each distinct shape, estimate time and memory.

Each job runs in its own process, which does the work of one rank and writes nothing. With several ranks, times do not
include communication, and a model is not sharded.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from omegaconf import DictConfig

from samebits import early_signals
from samebits.children import run_in_subprocess
from samebits.files import aligned, amount, in_words
from samebits.host import cores, limited_to
from samebits.project import Program, Project
from samebits.sweeps.screen import clock


@dataclass(frozen=True)
class Candidate:
    """A job that has not been written yet."""

    number: int
    label: str
    cfg: DictConfig


@dataclass(frozen=True)
class Trial:
    """Measurements of one rank of a job.

    shape: identifies everything that determines time and memory. step_s, eval_s, end_s: seconds per optimizer step, per
    evaluation and for the final scores; None if the shape was measured before. memory: bytes.
    """

    shape: str
    batch: str
    steps: int
    evaluations: int
    step_s: float | None
    eval_s: float | None
    end_s: float | None
    memory: int


def preflight(project: Project, candidates: Sequence[Candidate], at_once: int) -> str:
    """Return the table of steps, time and memory. Raise ConfigError or RunFailed for the first job that cannot be built
    or run."""
    import torch  # noqa: F401 - imported once for all processes

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
    total = f"preflight: {amount(len(candidates), 'job')} of {amount(len(known), 'shape')}, about {clock(seconds)}"
    total += " one after the other" * (len(candidates) > 1)
    if at_once > 1:
        total += f", {clock(seconds / at_once)} with {at_once} at once"
    return f"{aligned(rows, len(rows[0]))}\n\n{total}; memory of a rank: up to {in_words(memory)}"


def _try_out(project: Program, cfg: DictConfig, num_cores: int, known: list[str]) -> dict[str, Any]:
    os.environ.update(limited_to(num_cores))
    return project.try_out(cfg, known)
