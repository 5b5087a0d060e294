"""Build a Study from a sweep, from parts of a sweep in several folders, or from any runs. Imports neither torch nor
Hydra."""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError
from samebits.files import read_json
from samebits.project import Project
from samebits.saved import CONFIG, JobConfig, unswept
from samebits.sweeps.report.read import SWEEP, Job, Objective, Study, differing, read_job, runs_below

log = logging.getLogger("samebits")
CONTENT = " (content "  # appended to a path if its data have different contents
TOGETHER = "outputs/compare"  # output directory for reports of several folders


def read_study(
    project: Project, paths: Sequence[Path], out: Path | None = None, objective: Objective | None = None
) -> Study:
    """Read directories into a study: a sweep, parts of a sweep in several folders, or runs (or folders of runs) to
    compare. Raise ConfigError if no run is found."""
    for path in paths:
        if not path.is_dir():
            what = "is a file" if path.exists() else "no such directory"
            raise ConfigError(f"{path}: {what}; give a sweep, run directories, or a folder that contains some")
    if all((path / SWEEP).exists() for path in paths):
        return _sweeps(project, [path.absolute() for path in paths], out, objective)
    below = {path: list(runs_below(path.absolute())) for path in paths}
    folders = list(dict.fromkeys(folder for found in below.values() for folder in found))
    if not folders:
        raise ConfigError(f"{', '.join(map(str, paths))}: contains no run directory (with a {CONFIG})")
    for path in (path for path, found in below.items() if not found):
        log.warning("%s: contains no run directory, so it is not in the report", path)
    above = Path(os.path.commonpath([folder.parent for folder in folders]))  # keys are the shortest unique paths
    keys = [str(folder.relative_to(above)) for folder in folders]
    jobs = same_data([read_job(project, f, n, (), key) for n, (f, key) in enumerate(zip(folders, keys))])
    lone_folder = len(paths) == 1 and folders != [paths[0].absolute()]
    directory = out or (paths[0].absolute() if lone_folder else project.root / TOGETHER)
    found = (objective,) if objective else _monitored(jobs)
    return Study(directory.name, directory, jobs, differing(jobs), found, is_sweep=False)


def _sweeps(project: Project, paths: Sequence[Path], out: Path | None, objective: Objective | None) -> Study:
    """Read one sweep, or its parts in several folders."""
    books = [read_json(path / SWEEP) for path in paths]
    read: list[Job] = []
    above = paths[0] if len(paths) == 1 else Path(os.path.commonpath([path.parent for path in paths]))
    for path, book in zip(paths, books):
        for job in book.get("jobs") or []:
            number = job.get("number", len(read)) if len(paths) == 1 else len(read)
            folder, overrides = path / job["key"], tuple(job.get("overrides") or ())
            read.append(read_job(project, folder, number, overrides, str(folder.relative_to(above))))
    if not read:
        raise ConfigError(f"{', '.join(str(path / SWEEP) for path in paths)}: contains no job yet")
    asked = tuple(Objective(o["key"], o["mode"]) for o in books[0].get("objectives") or ())
    given = [command for book in books for command in book.get("commands") or ()]
    commands = tuple(dict.fromkeys(tuple(o for o in c if not o.startswith(("sweep=", "sweep.name="))) for c in given))
    typed = [override for command in commands for override in command]
    log_keys = frozenset(o.partition("=")[0].lstrip("+") for o in typed if re.search(r"\blog\b", o.partition("=")[2]))
    listed = [key for book in books for key in book.get("swept") or ()]
    jobs = same_data(read, but=listed)
    swept = list(dict.fromkeys(listed or differing(jobs)))
    compared = [JobConfig(job.config, job.overrides, job.path.name) for job in jobs]
    follows: dict[str, list[str]] = {}
    for key, keys in ((key, keys) for book in books for key, keys in (book.get("follows") or {}).items()):
        follows[key] = [*follows.get(key, ()), *keys]
    more = unswept(project, compared, swept, follows)
    if len(paths) > 1 and more and (choices := choices_between(jobs, swept, more)):
        swept += choices
        more = unswept(project, compared, swept, follows)
    directory = out or (paths[0] if len(paths) == 1 else project.root / TOGETHER)
    name = books[0].get("name") or paths[0].name if len(paths) == 1 else directory.name
    return Study(
        name, directory, jobs, (*swept, *more), (objective,) if objective else asked or _monitored(jobs), True,
        books[0].get("created"), commands, tuple(more), log_keys,
        is_search=all(job.path.name.startswith("trial_") for job in jobs),
    )  # fmt: skip


def _monitored(jobs: Sequence[Job]) -> tuple[Objective, ...]:
    """Return the monitor (key, mode) that most of these runs have."""
    found = [(job.config.get("monitor.key"), job.config.get("monitor.mode")) for job in jobs]
    known = [(key, mode) for key, mode in found if key and mode]
    key, mode = max(known, key=known.count) if known else ("val/loss", "min")
    return (Objective(str(key), str(mode)),)


# ---- make runs of several folders comparable: equal data get one name, different data different names


def choices_between(jobs: Sequence[Job], swept: Sequence[str], unlike: Sequence[str]) -> list[str]:
    """Return the config groups, such as model=gpt, whose option differs between these sweeps but not within a sweep.
    The option is more informative than the differing keys below it, `unlike`."""
    chosen = [{o.partition("=")[0].lstrip("+"): o.partition("=")[2] for o in job.overrides} for job in jobs]
    groups = [key for key in dict.fromkeys(key for one in chosen for key in one) if key not in swept]
    groups = [key for key in groups if any(k.startswith(f"{key.replace('/', '.')}.") for k in unlike)]
    return [key for key in groups if len({one.get(key) for one in chosen}) > 1]


def same_data(jobs: Sequence[Job], but: Collection[str] = ()) -> tuple[Job, ...]:
    """Return the jobs with one text for equal data at different paths, and different texts for different data at one
    path.

    If a run has no fingerprints, only its path is compared. but: keys that are not changed.
    """
    known: dict[tuple[str, str], Any] = {}  # {(key, digest): its text}
    digests: dict[tuple[str, str], dict[str, None]] = {}  # {(key, path): digests of the jobs with this path}
    for job in jobs:
        for key, digest in job.files.items():
            known.setdefault((key, digest), job.config.get(key))
            digests.setdefault((key, str(job.config.get(key))), {})[digest] = None
    doubtful = {(key, digest) for (key, _), several in digests.items() if len(several) > 1 for digest in several}
    known |= {(key, digest): f"{known[key, digest]}{CONTENT}{digest[:6]})" for key, digest in doubtful}

    def config(job: Job) -> Mapping[str, Any]:
        found = {}
        for key in {key for key, _ in known} & job.config.keys() - {*but}:
            of_path = digests.get((key, str(job.config[key])), {})
            digest = job.files.get(key) or (next(iter(of_path)) if len(of_path) == 1 else None)
            if digest is not None:
                found[key] = known[key, digest]
        return {**job.config, **found}

    return tuple(replace(job, config=config(job)) for job in jobs) if known else tuple(jobs)
