"""Study and Job: run directories in any state, read into memory. study.py builds a Study.

This module imports neither torch nor Hydra, and does not change run directories.
"""

from __future__ import annotations

import logging
import math
import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import yaml

from samebits.code import ENVIRONMENT, Code, changes_of, codes_of
from samebits.files import read_json, records
from samebits.project import Project
from samebits.runs import NOT_COMPUTED, current_status, files_of, seconds_until_last_record
from samebits.saved import (
    CONFIG,
    OVERRIDES,
    check_run_dir,
    folds_of,
    is_seed,
    load_flat,
    load_plain,
    one_spelling,
    same_value,
    translate_override,
)
from samebits.schema import show
from samebits.status import METRICS, RESULT, STATUS

log = logging.getLogger("samebits")
SWEEP = "sweep.json"


@dataclass(frozen=True)
class Objective:
    """A score. mode: min or max. sign: factor that makes lower scores better."""

    key: str
    mode: str

    @property
    def sign(self) -> int:
        """Return 1 for min, -1 for max."""
        return 1 if self.mode == "min" else -1


@dataclass(frozen=True)
class Job:
    """One run directory. curves: {key: [(step, value), ...]} without values that are not finite."""

    key: str  # shortest path of its directory that is unique among the jobs
    number: int
    path: Path
    overrides: tuple[str, ...]  # all overrides of its command
    status: str  # as in status.json; killed: the status is running, but the process is gone
    error: str | None  # one line
    traceback: str | None
    config: Mapping[str, Any]  # {dotted key: value}
    result: Mapping[str, Any]
    curves: Mapping[str, list[tuple[int, float]]]
    seconds: Sequence[tuple[int, float]]  # (step, seconds since the first record)
    code: Sequence[Code] = ()  # code versions, in the order of its resumes
    files: Mapping[str, str] = field(default_factory=dict)  # {config key: digest of the data that it names}
    spent_s: float | None = None  # seconds of all its commands; of an unfinished job until its last record
    gpus: Sequence[str] | None = None  # name of each rank's GPU; None: not recorded
    before: Sequence[str] = ()  # values that a resume has replaced: optim.lr=0.1 until step 50

    def score(self, objective: Objective) -> float | None:
        """Return the score from result.json; None if the job has not finished or the value is not finite."""
        value = self.result.get(objective.key) if self.status == "finished" else None
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def so_far(self, objective: Objective) -> float | None:
        """Return the best logged value, in any state of the job; None if none was logged."""
        values = [value for _, value in self.curves.get(objective.key, ())]
        return (min if objective.mode == "min" else max)(values) if values else None

    def provisional(self, objective: Objective) -> float | None:
        """Return, for pictures, the score of a finished job, otherwise the best value so far; None for a failed job
        without values."""
        if self.died or self.status == "finished":
            return self.score(objective)
        return self.so_far(objective)

    @property
    def died(self) -> bool:
        """Return True if the job failed or was killed."""
        return self.status in ("failed", "killed")

    @property
    def step(self) -> int:
        """Return the last logged step."""
        return max((points[-1][0] for points in self.curves.values() if points), default=0)

    @property
    def reason(self) -> str | None:
        """Return the reason why the job has no score, as one line."""
        if self.status == "killed":
            return f"its process is gone without a word (killed, or out of memory) after step {self.step}"
        if self.status == "finished":
            return "finished, but its score is not finite"
        return self.error or (f"{self.status} at step {self.step}" if self.step else self.status)


@dataclass(frozen=True, eq=False)
class Study:
    """The jobs of a report. swept: dotted keys or config groups in which they differ."""

    name: str
    directory: Path  # where the report is written
    jobs: tuple[Job, ...]
    swept: tuple[str, ...]
    objectives: tuple[Objective, ...]
    is_sweep: bool
    created: str | None = None
    commands: tuple[tuple[str, ...], ...] = ()  # overrides of each command that has added jobs
    unswept: tuple[str, ...] = ()  # keys of `swept` that differ although they were not swept
    log_keys: frozenset[str] = field(default_factory=frozenset)  # keys swept with tag(log, ...)
    is_search: bool = False  # the jobs are trials

    @property
    def objective(self) -> Objective:
        """Return the first objective."""
        return self.objectives[0]

    @cached_property
    def fold_keys(self) -> tuple[str, ...]:
        """Return the swept keys that number the folds of a cross-validation: data.fold, data.fold_repeat."""
        counts = {key: folds_of(key) for key in self.swept}
        return tuple(key for key, n in counts.items() if n and any(job.config.get(n) for job in self.jobs))

    def is_repeat(self, key: str) -> bool:
        """Return True if jobs that differ only in this key repeat one configuration: a seed, or a fold."""
        return is_seed(key) or key in self.fold_keys

    @cached_property
    def zipped(self) -> tuple[tuple[str, ...], ...]:
        """Return the groups of keys whose values form pairs (sweep.zip), as the commands or the jobs' configs have
        them."""
        texts = [o.partition("=")[2] for command in self.commands for o in command if o.startswith("sweep.zip=")]
        given = [*map(yaml.safe_load, texts), *(job.config.get("sweep.zip") for job in self.jobs)]
        groups = [group for one in given if one for group in ([one] if isinstance(one[0], str) else one)]
        return tuple(dict.fromkeys(map(tuple, groups)))

    @property
    def repeats(self) -> str:
        """Return "folds" or "seeds", over which scores are averaged."""
        return "folds" if self.fold_keys else "seeds"

    def worded(self, text: str) -> str:
        """Return a text about seeds, with folds instead if scores are averaged over folds."""
        return text.replace("seeds", self.repeats)

    @property
    def typed(self) -> list[str]:
        """Return the overrides of each command, quoted for a shell."""
        return [shlex.join(overrides) for overrides in self.commands if overrides]

    def lacks(self, job: Job, key: str) -> bool:
        """Return True if the job does not have a key that others have, e.g. optim.momentum with optim=adamw."""
        return key not in job.config and key in self._config_keys

    @cached_property
    def _config_keys(self) -> frozenset[str]:
        return frozenset(key for job in self.jobs for key in job.config)

    def value(self, job: Job, key: str) -> Any:
        """Return a job's value of a swept key, or its option of a swept config group; None if it has none."""
        if key in job.config:
            return one_spelling(job.config[key])
        texts = (o.partition("=")[2] for o in reversed(job.overrides) if o.partition("=")[0].lstrip("+") == key)
        return next((text.strip("'\"") for text in texts), None)


def read_job(project: Project, path: Path, number: int, overrides: tuple[str, ...], key: str | None = None) -> Job:
    """Read one run directory in any state; a missing one is a queued job. overrides: used if the directory has no
    overrides.yaml."""
    check_run_dir(path)
    status, environment, result = (read_json(path / name) for name in (STATUS, ENVIRONMENT, RESULT))
    curves, seconds = read_metrics(path / METRICS)
    state = current_status(path) if "status" in status else "queued"
    error = str(status.get("error") or "").strip().splitlines()
    return Job(
        key=key or path.name,
        number=number,
        path=path,
        overrides=tuple(
            translate_override(project, str(one)) for one in load_plain(path / OVERRIDES, list) or overrides
        ),
        status="queued" if state == "created" else state,
        error=error[0] if error else None,
        traceback=status.get("traceback"),
        config=load_flat(project, path),
        result=result,
        curves=curves,
        seconds=seconds,
        code=codes_of(path) if curves or state == "finished" else (),
        files={file: str(one["digest"]) for file, one in files_of(path).items()},
        spent_s=_spent(path, status, result),
        gpus=_gpus(environment.get("machine")),
        before=tuple(
            f"{key}={show(value)} until step {change['after']}"
            for change in changes_of(path)
            for key, value in change.get("was", {}).items()
            if key.split(".")[0] not in (*project.neutral_groups, "process")
        ),
    )


def _spent(path: Path, status: Mapping[str, Any], result: Mapping[str, Any]) -> float | None:
    seconds = result.get("seconds")
    if isinstance(seconds, (int, float)):
        return float(seconds)
    return seconds_until_last_record(path) if "seconds" in status else None  # a job that has not begun has none


def _gpus(machine: Any) -> tuple[str, ...] | None:
    if not isinstance(machine, dict):
        return None
    own = machine.get("gpus_of_ranks") or ([machine["gpu"]] if machine.get("gpu") else [])
    return tuple(str(gpu["name"]) for gpu in own)


def read_metrics(path: Path) -> tuple[dict[str, list[tuple[int, float]]], list[tuple[int, float]]]:
    """Return ({key: [(step, value), ...]}, [(step, seconds), ...]) of metrics.jsonl; both are empty without the
    file."""
    curves: dict[str, list[tuple[int, float]]] = {}
    seconds: list[tuple[int, float]] = []
    began: float | None = None
    for _, record in records(path):
        try:
            step, now = int(record.pop("step")), float(record.pop("time"))
        except (ValueError, KeyError, TypeError):
            continue
        began = now if began is None else began
        if not seconds or seconds[-1][0] != step:
            seconds.append((step, round(now - began, 3)))
        for key, value in record.items():
            if isinstance(value, (int, float)):
                curves.setdefault(key, []).append((step, float(value)))
    return curves, seconds


def runs_below(path: Path) -> Iterator[Path]:
    """Yield the run directories at or below `path` in the order of their names (9 before 10). Links are not followed,
    because they may form a cycle."""
    folders = [path]
    while folders:
        folder = folders.pop()
        if os.path.lexists(folder / CONFIG):
            yield folder
            continue
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        for link in (entry.path for entry in shown if entry.is_symlink()):
            log.warning("%s: is a link and was not followed; name its target to include it", link)
        below = [entry.path for entry in shown if not entry.is_symlink()]
        ordered = sorted(below, key=lambda p: (len(Path(p).name), p) if Path(p).name.isdigit() else (99, p))
        folders += [Path(one) for one in reversed(ordered)]


def differing(jobs: Sequence[Job]) -> tuple[str, ...]:
    """Return the dotted keys whose values differ among these jobs, without the groups NOT_COMPUTED."""
    jobs = [job for job in jobs if job.config]
    keys = dict.fromkeys(key for job in jobs for key in job.config if key.split(".")[0] not in NOT_COMPUTED)
    absent = object()
    first = {key: jobs[0].config.get(key, absent) for key in keys}
    return tuple(key for key in keys if not all(same_value(job.config.get(key, absent), first[key]) for job in jobs))
