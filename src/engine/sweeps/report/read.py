"""Reads a sweep, or any set of run directories in any state, into a Study.

Imports neither torch nor Hydra; changes nothing in a run directory.
"""

from __future__ import annotations

import logging
import math
import os
import platform
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from engine.config import CONFIG, OVERRIDES, enter, load_flat, load_plain, unswept
from engine.errors import ConfigError
from engine.files import read_json, records
from engine.project import ROOT
from engine.runs import ENVIRONMENT, METRICS, NOT_COMPUTED, RESULT, STATUS, Code, codes_of, files_of, is_claimed
from engine.sweeps.report.merging import choices_between, same_data

log = logging.getLogger("engine")
SWEEP = "sweep.json"
FAILED = ("failed", "killed")
TOGETHER = ROOT / "outputs" / "compare"  # where a report of several folders goes


@dataclass(frozen=True)
class Objective:
    key: str
    mode: str  # min or max

    def best(self, values: Sequence[float]) -> float:
        return min(values) if self.mode == "min" else max(values)


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
        return objective.best(values) if values else None

    def provisional(self, objective: Objective) -> float | None:
        """For pictures: the score of a finished job, else the best value so far; None for a failed job without one."""
        if self.status in FAILED or self.status == "finished":
            return self.score(objective)
        return self.so_far(objective)

    @property
    def step(self) -> int:
        return max((points[-1][0] for points in self.curves.values() if points), default=0)

    @property
    def epochs_per_step(self) -> float | None:
        epochs = self.curves.get("train/epoch")
        return epochs[-1][1] / epochs[-1][0] if epochs and epochs[-1][0] else None

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


def read_study(paths: Sequence[Path], out: Path | None = None, objective: Objective | None = None) -> Study:
    """Read directories into a study: a sweep, also one that was run in several folders, or runs (or folders of runs) to
    compare. ConfigError: none found."""
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"{path}: no such directory; give a sweep, run directories, or a folder that holds some")
    if all((path / SWEEP).exists() for path in paths):
        return _sweeps([path.absolute() for path in paths], out, objective)
    folders = list(dict.fromkeys(folder for path in paths for folder in runs_below(path.absolute())))
    if not folders:
        raise ConfigError(f"{', '.join(map(str, paths))}: no run there (a run directory has a {CONFIG})")
    above = Path(os.path.commonpath([folder.parent for folder in folders]))  # keys: as short as they stay unique
    jobs = same_data([read_job(f, number, (), key=str(f.relative_to(above))) for number, f in enumerate(folders)])
    lone_folder = len(paths) == 1 and folders != [paths[0].absolute()]
    directory = out or (paths[0].absolute() if lone_folder else TOGETHER)
    found = (objective,) if objective else _monitored(jobs)
    return Study(directory.name, directory, jobs, differing(jobs), found, is_sweep=False)


def _sweeps(paths: Sequence[Path], out: Path | None, objective: Objective | None) -> Study:
    """One sweep, or the parts of one that were run in several folders."""
    books = [read_json(path / SWEEP) for path in paths]
    read: list[Job] = []
    above = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.parent for path in paths]))
    for path, book in zip(paths, books):
        for job in book.get("jobs") or []:
            number = job.get("number", len(read)) if len(paths) == 1 else len(read)
            folder = path / job["key"]
            read.append(read_job(folder, number, tuple(job.get("overrides") or ()), str(folder.relative_to(above))))
    if not read:
        raise ConfigError(f"{', '.join(str(path / SWEEP) for path in paths)}: lists no job yet")
    asked = tuple(Objective(o["key"], o["mode"]) for o in books[0].get("objectives") or ())
    # the first version kept the last command's
    given = [command for book in books for command in book.get("commands") or [book.get("overrides") or ()]]
    commands = tuple(dict.fromkeys(tuple(o for o in c if not o.startswith(("sweep=", "sweep.name="))) for c in given))
    typed = [override for command in commands for override in command]
    log_keys = frozenset(o.partition("=")[0].lstrip("+") for o in typed if re.search(r"\blog\b", o.partition("=")[2]))
    listed = [key for book in books for key in book.get("swept") or ()]
    jobs = same_data(read, but=listed)
    swept = list(dict.fromkeys(listed or differing(jobs)))
    configs, overrides = [job.config for job in jobs], [job.overrides for job in jobs]
    names = [job.path.name for job in jobs]
    follows: dict[str, list[str]] = {}
    for key, keys in ((key, keys) for book in books for key, keys in (book.get("follows") or {}).items()):
        follows[key] = [*follows.get(key, ()), *keys]
    more = unswept(configs, overrides, names, swept, follows)
    if len(paths) > 1 and more and (choices := choices_between(jobs, swept, more)):
        swept += choices
        more = unswept(configs, overrides, names, swept, follows)
    directory = out or (paths[0] if len(paths) == 1 else TOGETHER)
    name = books[0].get("name") or paths[0].name if len(paths) == 1 else directory.name
    return Study(
        name, directory, jobs, (*swept, *more), (objective,) if objective else asked or _monitored(jobs), True,
        books[0].get("created"), commands, tuple(more), log_keys,
        is_search=all(job.path.name.startswith("trial_") for job in jobs),
    )  # fmt: skip


def read_job(path: Path, number: int, overrides: tuple[str, ...], key: str | None = None) -> Job:
    """Read one run directory in any state; a missing one is a queued job. overrides: used if it has no file of them."""
    enter(path)
    status = read_json(path / STATUS)
    curves, seconds = read_metrics(path / METRICS)
    state = status.get("status", "queued")
    if state == "running" and not is_held(path):
        state = "killed"
    error = str(status.get("error") or "").strip().splitlines()
    return Job(
        key=key or path.name,
        number=number,
        path=path,
        overrides=tuple(map(str, load_plain(path / OVERRIDES, list) or overrides)),
        status="queued" if state == "created" else state,
        error=error[0] if error else None,
        traceback=status.get("traceback"),
        config=load_flat(path),
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


def is_held(path: Path) -> bool:
    """Whether a process of this machine runs there; True for runs of other machines, whose status is trusted."""
    return read_json(path / ENVIRONMENT).get("host") != platform.node() or is_claimed(path)


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
    return tuple(
        key for key in keys if any(job.config.get(key, absent) != jobs[0].config.get(key, absent) for job in jobs)
    )


def _monitored(jobs: Sequence[Job]) -> tuple[Objective, ...]:
    """The monitor (key, mode) that most of these runs have."""
    found = [(job.config.get("monitor.key"), job.config.get("monitor.mode")) for job in jobs]
    known = [(key, mode) for key, mode in found if key and mode]
    key, mode = max(known, key=known.count) if known else ("val/loss", "min")
    return (Objective(str(key), str(mode)),)
