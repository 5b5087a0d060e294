"""What a Study is, and its Jobs: run directories in any state, read. study.py makes the Study.

Imports neither torch nor Hydra; changes nothing in a run directory.
"""

from __future__ import annotations

import logging
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from samebits.code import ENVIRONMENT, Code, codes_of
from samebits.files import read_json, records
from samebits.project import Project
from samebits.runs import NOT_COMPUTED, files_of, is_claimed
from samebits.saved import CONFIG, OVERRIDES, enter, load_flat, load_plain, override_of_now
from samebits.status import METRICS, RESULT, STATUS

log = logging.getLogger("samebits")
SWEEP = "sweep.json"


@dataclass(frozen=True)
class Objective:
    """A score. mode: min or max. sign: that by which scores are multiplied so that less is better."""

    key: str
    mode: str

    @property
    def sign(self) -> int:
        return 1 if self.mode == "min" else -1


@dataclass(frozen=True)
class Job:
    """One run directory. curves: {key: [(step, value), ...]}, non-finite values left out."""

    key: str  # its directory's path, as short as unique among these jobs
    number: int
    path: Path
    overrides: tuple[str, ...]  # all it was started with
    status: str  # as in status.json; killed: status running, but its process is gone
    error: str | None  # one line
    traceback: str | None
    config: Mapping[str, Any]  # dotted key -> value
    result: Mapping[str, Any]
    curves: Mapping[str, list[tuple[int, float]]]
    seconds: Sequence[tuple[int, float]]  # (step, seconds since the first record)
    code: Sequence[Code] = ()  # with which it ran, in the order of its resumes
    files: Mapping[str, str] = field(default_factory=dict)  # config key -> digest of the data that it names

    def score(self, objective: Objective) -> float | None:
        """Score of a finished job from result.json; None: the job has not finished, or the value is NaN or inf."""
        value = self.result.get(objective.key) if self.status == "finished" else None
        return float(value) if isinstance(value, (int, float)) and math.isfinite(value) else None

    def so_far(self, objective: Objective) -> float | None:
        """The best logged value, in any state of the job; None: none was logged."""
        values = [value for _, value in self.curves.get(objective.key, ())]
        return (min if objective.mode == "min" else max)(values) if values else None

    def provisional(self, objective: Objective) -> float | None:
        """For pictures: the score of a finished job, else the best value so far; None for a failed job without one."""
        if self.died or self.status == "finished":
            return self.score(objective)
        return self.so_far(objective)

    @property
    def died(self) -> bool:
        return self.status in ("failed", "killed")

    @property
    def step(self) -> int:
        return max((points[-1][0] for points in self.curves.values() if points), default=0)

    @property
    def reason(self) -> str | None:
        """Why the job has no score, in one line."""
        if self.status == "killed":
            return f"its process is gone without a word (killed, or out of memory) after step {self.step}"
        if self.status == "finished":
            return "finished, but its score is not finite"
        return self.error or (f"{self.status} at step {self.step}" if self.step else self.status)


@dataclass(frozen=True, eq=False)
class Study:
    """Jobs to report on. swept: the dotted keys, or config groups, in which they differ."""

    name: str
    directory: Path  # where the report goes
    jobs: tuple[Job, ...]
    swept: tuple[str, ...]
    objectives: tuple[Objective, ...]
    is_sweep: bool
    created: str | None = None
    commands: tuple[tuple[str, ...], ...] = ()  # the overrides of each command that has added jobs
    unswept: tuple[str, ...] = ()  # those of `swept` that differ without having been swept
    log_keys: frozenset[str] = field(default_factory=frozenset)  # keys swept with tag(log, ...)
    is_search: bool = False  # its jobs are trials

    @property
    def objective(self) -> Objective:
        return self.objectives[0]

    @property
    def typed(self) -> list[str]:
        """The commands, one line each."""
        return [" ".join(overrides) for overrides in self.commands if overrides]

    def lacks(self, job: Job, key: str) -> bool:
        """Whether the job has no such key where others have it: optim.momentum with optim=adamw."""
        return key not in job.config and key in self._config_keys

    @cached_property
    def _config_keys(self) -> frozenset[str]:
        return frozenset(key for job in self.jobs for key in job.config)

    def value(self, job: Job, key: str) -> Any:
        """A job's value of a swept key, or its option of a swept config group; None: it has none."""
        if key in job.config:
            return job.config[key]
        texts = (o.partition("=")[2] for o in reversed(job.overrides) if o.partition("=")[0].lstrip("+") == key)
        return next((text.strip("'\"") for text in texts), None)


def read_job(project: Project, path: Path, number: int, overrides: tuple[str, ...], key: str | None = None) -> Job:
    """Read one run directory in any state; a missing one is a queued job. overrides: used if it has no file of them."""
    enter(path)
    status = read_json(path / STATUS)
    curves, seconds = read_metrics(path / METRICS)
    state = status.get("status", "queued")
    here = read_json(path / ENVIRONMENT).get("host") == platform.node()  # of other machines the status is trusted
    if state == "running" and here and not is_claimed(path):
        state = "killed"
    error = str(status.get("error") or "").strip().splitlines()
    return Job(
        key=key or path.name,
        number=number,
        path=path,
        overrides=tuple(override_of_now(project, str(one)) for one in load_plain(path / OVERRIDES, list) or overrides),
        status="queued" if state == "created" else state,
        error=error[0] if error else None,
        traceback=status.get("traceback"),
        config=load_flat(project, path),
        result=read_json(path / RESULT),
        curves=curves,
        seconds=seconds,
        code=codes_of(path) if curves or state == "finished" else (),
        files={file: str(one["digest"]) for file, one in files_of(path).items()},
    )


def read_metrics(path: Path) -> tuple[dict[str, list[tuple[int, float]]], list[tuple[int, float]]]:
    """({key: [(step, value), ...]}, [(step, seconds), ...]) of a metrics.jsonl; both empty without the file."""
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
    """The run directories at or below `path`, in the order of their names (9 before 10). Links are not followed: they
    may lead round in a ring, or anywhere."""
    folders = [path]
    while folders:
        folder = folders.pop()
        if os.path.lexists(folder / CONFIG):
            yield folder
            continue
        with os.scandir(folder) as entries:
            shown = [entry for entry in entries if not entry.name.startswith(".") and entry.is_dir()]
        for link in (entry.path for entry in shown if entry.is_symlink()):
            log.warning("%s: a link, not followed; name its folder for what lies there", link)
        below = [entry.path for entry in shown if not entry.is_symlink()]
        ordered = sorted(below, key=lambda p: (len(Path(p).name), p) if Path(p).name.isdigit() else (99, p))
        folders += [Path(one) for one in reversed(ordered)]


def differing(jobs: Sequence[Job]) -> tuple[str, ...]:
    """The dotted keys whose values differ among these jobs, without the groups NOT_COMPUTED."""
    jobs = [job for job in jobs if job.config]
    keys = dict.fromkeys(key for job in jobs for key in job.config if key.split(".")[0] not in NOT_COMPUTED)
    absent = object()
    first = {key: jobs[0].config.get(key, absent) for key in keys}
    return tuple(key for key in keys if any(job.config.get(key, absent) != first[key] for job in jobs))
