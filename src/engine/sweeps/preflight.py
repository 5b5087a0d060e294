"""Before a sweep starts: build every job, run one batch of each distinct shape, estimate the sweep's time and memory.

Each job is tried in a process of its own, which does one rank's work; nothing is written. With several ranks, times are
without communication, and a model that would be sharded is whole.
"""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from omegaconf import DictConfig

from engine import early
from engine.app import App, app
from engine.config.explain import one_line
from engine.errors import ConfigError, RunFailed
from engine.ranks.cores import CORES_LIMIT, cores
from engine.ranks.cuda import start_method
from engine.ranks.parent import die_with
from engine.sweeps.screen import aligned, clock


@dataclass(frozen=True)
class Candidate:
    """A job before it is written."""

    number: int
    label: str
    cfg: DictConfig


@dataclass(frozen=True)
class Trial:
    """Measurements of one rank of a job. shape: key of all that decides times and memory. step_s, eval_s: seconds of
    one optimizer step, of one evaluation; None: the shape was timed before. memory: bytes. threads: CPU threads."""

    shape: str
    batch: str
    steps: int
    evaluations: int
    step_s: float | None
    eval_s: float | None
    memory: int
    threads: int


def preflight(candidates: Sequence[Candidate], at_once: int) -> str:
    """The table for the user. Raises ConfigError or RunFailed for the first job that cannot be built or run."""
    import torch  # noqa: F401 - once, for all processes

    known: dict[str, Trial] = {}
    rows = [["job", "steps", "ms a step", "memory", "time", "batch", "overrides"]]
    seconds, memory = 0.0, 0
    for candidate in candidates:
        early.leave_if_asked()
        trial = in_a_process(candidate, sorted(known), max(1, cores() // at_once))
        timed = known.setdefault(trial.shape, trial)
        assert timed.step_s is not None and timed.eval_s is not None  # noqa: PT018
        job_s = trial.steps * timed.step_s + trial.evaluations * timed.eval_s
        seconds, memory = seconds + job_s, max(memory, timed.memory)
        figures = [f"{trial.steps:,}", f"{1e3 * timed.step_s:.1f}", megabytes(timed.memory), clock(job_s)]
        rows.append([str(candidate.number), *figures, trial.batch, candidate.label])
    total = f"preflight: {len(candidates)} jobs of {len(known)} shapes, about {clock(seconds)} one after the other"
    if at_once > 1:
        total += f", {clock(seconds / at_once)} with {at_once} at once"
    return f"{aligned(rows)}\n\n{total}; memory of a rank: up to {megabytes(memory)}"


def in_a_process(candidate: Candidate, known: Sequence[str], num_cores: int) -> Trial:
    context: Any = multiprocessing.get_context(start_method())
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(app(), candidate.cfg, num_cores, list(known), send, os.getpid()))
    process.start()
    send.close()
    try:
        kind, value = receive.recv()
    except EOFError:
        process.join()
        kind, value = (
            "failed",
            f"it ended with status {process.exitcode} (below 0: by that signal; -9: no memory left?)",
        )
    finally:
        receive.close()
        process.join()
    where = f"preflight: job {candidate.number} ({candidate.label}): "
    if kind == "mistake":
        raise ConfigError(where + value)
    if kind == "failed":
        raise RunFailed(where + value)
    return Trial(**value)


def _child(project: App, cfg: DictConfig, num_cores: int, known: list[str], send: Connection, parent: int) -> None:
    die_with(parent)
    os.environ[CORES_LIMIT] = str(num_cores)
    try:
        send.send(("good", project.try_out(cfg, known)))
    except ConfigError as error:
        send.send(("mistake", str(error)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]  # a run of this job alone shows the rest
        send.send(("failed", f"{type(error).__name__}: {one_line(error)} ({at.filename}:{at.lineno})"))
    except KeyboardInterrupt:
        os._exit(130)


def megabytes(size: int) -> str:
    return f"{size / 2**20:,.0f} MB"
