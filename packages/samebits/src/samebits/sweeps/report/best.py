"""Save the best configuration for reuse: as overrides, and as an experiment yaml that gives the same config."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from samebits.config import written
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.runs import NOT_COMPUTED
from samebits.saved import flat, is_seed, portable, same_value
from samebits.schema import join, plain
from samebits.status import shown
from samebits.sweeps.report.analyse import Group, caution, show
from samebits.sweeps.report.read import CONFIG, Job, Study
from samebits.sweeps.report.study import CONTENT

NOT_PART = (*NOT_COMPUTED, "hydra", "experiment", "debug")
MACHINE = "hardware"  # this group is part of the best config only if it was swept


def override_list(group: Group) -> list[str]:
    """Return the overrides that reproduce this configuration, without seed, logger and sweep. With folds they train
    the first fold."""
    overrides = group.jobs[0].overrides
    tops = {o: re.split(r"[./@]", _key(o))[0] for o in overrides}
    kept = [o for o, top in tops.items() if top not in (*NOT_COMPUTED, "hydra") and not is_seed(_key(o))]
    silent = {k: v.partition(CONTENT)[0] if isinstance(v, str) else v for k, v in group.unswept.items()}
    return [*kept, *(f"{key}={written(value)}" for key, value in silent.items())]


def best_command(group: Group) -> str:
    """Return the command that trains this configuration."""
    return shlex.join(["./run", "train", *override_list(group)])


def save_best(project: Project, study: Study, group: Group, overwrite: bool = False) -> Path:
    """Write conf/experiment/best_<name>.yaml: experiment=best_<name> gives the config of the group's run.

    It contains the resolved values that differ from the default config, without seed and logger. Raise ConfigError if a
    yaml cannot express the config, or if the file exists and `overwrite` is False.
    """
    job = group.jobs[0]
    left_out = NOT_PART if any(key.split(".")[0] == MACHINE for key in group.values) else (*NOT_PART, MACHINE)
    name = "best_" + re.sub(r"\W+", "_", study.name).strip("_")
    path = project.conf / "experiment" / f"{name}.yaml"
    before = path.read_text() if path.exists() else None
    if before is not None and not overwrite:
        raise ConfigError(f"{shown(path)}: exists - move it away, or add --overwrite")
    choices, base_choices = _choices(project, list(job.overrides)), _choices(project, [])
    chosen = {g: o for g, o in choices.items() if o != base_choices.get(g) and g.split("/")[0] not in left_out}
    if lost := [g for g, o in chosen.items() if o is None]:
        raise ConfigError(f"{job.path}: {lost[0]}=null cannot be written into an experiment; use the list of overrides")
    base = _composed(project, [*(f"{g}={o}" for g, o in chosen.items()), *_seeds(job)])
    wanted = _whole(project, job)
    differ = _differing(project, flat(base), flat(wanted), job)
    values = portable(project.root, _only(_part(wanted, left_out), {*differ, *group.values}))
    dumped = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110) if values else ""
    defaults = ["defaults:", *(f"  - override /{g}: {option}" for g, option in chosen.items()), ""] if chosen else []
    path.write_text("\n".join([_header(study, group, name), *defaults, dumped]).rstrip() + "\n")
    try:
        again = _resolved(project, [f"experiment={name}", *_seeds(job)])
        _verify(project, again, job, left_out)
    except Exception:
        path.unlink() if before is None else path.write_text(before)
        raise
    return path


def _header(study: Study, group: Group, name: str) -> str:
    lines = ["# @package _global_", f"# ./run train experiment={name}"]
    lines.append(f"# The best of the sweep {study.name}: {group.label}")
    if group.folds:
        lines.append("# It trains one fold, as the job did: for the final model, remove the keys of folds from data")
    if said := caution(study.objectives):
        lines.append(f"# {said}")
    for objective in study.objectives:
        mean, std = group.mean(objective), group.std(objective)
        spread = f" +- {show(std)}" if std is not None else ""
        lines.append(
            f"# {objective.key} {show(mean)}"
            + (f"{spread}, mean of {group.averaged(objective)}" if std is not None else "")
        )
    return "\n".join(lines)


def _verify(project: Project, again: dict[str, Any], job: Job, left_out: Sequence[str]) -> None:
    wanted, got = (flat(_part(cfg, left_out)) for cfg in (_whole(project, job), again))
    absent = object()
    for key in [*wanted, *got]:
        if not same_value(wanted.get(key, absent), got.get(key, absent)):
            raise ConfigError(
                f"{job.path / CONFIG}: {key} cannot be reproduced by an experiment yaml (a deletion, or conf/ has "
                "changed since); use the list of overrides"
            )


def _differing(project: Project, base: dict[str, Any], wanted: dict[str, Any], job: Job) -> Iterator[str]:
    """Yield the keys whose values in `wanted` differ from those in `base`; both are {dotted key: value}.

    An interpolation in `base` follows other values, unless an override of the job has replaced it.
    """
    keys = [key for override in job.overrides if not (project.conf / (key := _key(override))).is_dir()]  # no groups
    given = tuple(f"{key}." for key in keys)
    for key, value in wanted.items():
        follows = "${" in str(base.get(key)) and not f"{key}.".startswith(given)
        if not follows and (key not in base or not same_value(base[key], value)):
            yield key


def _only(node: dict[str, Any], keys: Collection[str], at: str = "") -> dict[str, Any]:
    """Return the part of a node with these dotted keys."""
    out: dict[str, Any] = {}
    for name, value in node.items():
        key = join(at, str(name))
        if isinstance(value, dict) and value:
            if inner := _only(value, keys, key):
                out[name] = inner
        elif key in keys:
            out[name] = value
    return out


def _choices(project: Project, overrides: list[str]) -> dict[str, Any]:
    """Return {group: option} that these overrides select."""
    from samebits.config import composed

    found = composed(project, [o for o in overrides if not _key(o).startswith("hydra.")])["hydra"]["runtime"]["choices"]
    return {group: option for group, option in found.items() if not group.startswith("hydra/")}


def _composed(project: Project, overrides: list[str]) -> dict[str, Any]:
    from samebits.config import composed

    return {key: node for key, node in composed(project, overrides).items() if key != "hydra"}


def _resolved(project: Project, overrides: list[str]) -> dict[str, Any]:
    from samebits.config import resolved

    found: dict[str, Any] = plain(resolved(project, DictConfig(_composed(project, overrides)), Path.cwd()))
    return found


def _whole(project: Project, job: Job) -> dict[str, Any]:
    from samebits.saved import read_config

    found: dict[str, Any] = plain(read_config(project, job.path))
    return found


def _part(cfg: dict[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in cfg.items() if key not in left_out}


def _seeds(job: Job) -> list[str]:
    """Return an override with the run's seed, so that values derived from the seed do not count as differences."""
    return [f"seed={job.config['seed']}"] if "seed" in job.config else []


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
