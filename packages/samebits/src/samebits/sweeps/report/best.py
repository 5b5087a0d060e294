"""Save the best configuration for reuse: as overrides, and as an experiment yaml that gives the same config."""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig

from samebits.config import written
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.runs import NOT_COMPUTED
from samebits.saved import flat, is_seed, portable, read_config, same_value
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
    wanted: dict[str, Any] = plain(read_config(project, job.path))
    base = _defaults(project, [*(f"{g}={o}" for g, o in chosen.items()), *_seeds(job)], wanted, job)
    swept = [key.split(".") for key in group.values]
    values = portable(project.root, _difference(_part(base, left_out), _part(wanted, left_out), swept))
    dumped = yaml.safe_dump(values, sort_keys=False, default_flow_style=None, width=110) if values else ""
    defaults = ["defaults:", *(f"  - override /{g}: {option}" for g, option in chosen.items()), ""] if chosen else []
    path.write_text("\n".join([_header(study, group, name), *defaults, dumped]).rstrip() + "\n")
    try:
        again = _resolved(project, [f"experiment={name}", *_seeds(job)])
        _verify(_part(wanted, left_out), _part(again, left_out), job)
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


def _verify(config: dict[str, Any], again: dict[str, Any], job: Job) -> None:
    wanted, got = flat(config), flat(again)
    absent = object()
    for key in [*wanted, *got]:
        if not same_value(wanted.get(key, absent), got.get(key, absent)):
            raise ConfigError(
                f"{job.path / CONFIG}: {key} cannot be reproduced by an experiment yaml (a deletion, or conf/ has "
                "changed since); use the list of overrides"
            )


def _difference(base: Any, wanted: dict[str, Any], always: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Return the values of `wanted` that differ from `base`, and the values at the key paths `always`."""
    out: dict[str, Any] = {}
    for key, value in wanted.items():
        below = [path[1:] for path in always if path[0] == key]
        if isinstance(value, dict) and isinstance(base.get(key), dict):
            if inner := _difference(base[key], value, [path for path in below if path]):
                out[key] = inner
        elif [] in below or key not in base or type(base[key]) is not type(value) or not same_value(base[key], value):
            out[key] = value
    return out


def _choices(project: Project, overrides: list[str]) -> dict[str, Any]:
    """Return {group: option} that these overrides select."""
    from samebits.config import composed

    found = composed(project, [o for o in overrides if not _key(o).startswith("hydra.")])["hydra"]["runtime"]["choices"]
    return {group: option for group, option in found.items() if not group.startswith("hydra/")}


def _defaults(project: Project, overrides: list[str], wanted: dict[str, Any], job: Job) -> dict[str, Any]:
    """Return the default config of these options. Its interpolations are resolved with the values of the run, `wanted`:
    the options may lack a value (data.path: ???), and the shape of a sample may be read from the run's data.

    An interpolation that an override of the job replaced stays unresolved, so it counts as a difference.
    """
    from samebits.config import composed, resolved

    raw = composed(project, overrides)
    raw.pop("hydra")
    keys = [key for override in job.overrides if not (project.conf / (key := _key(override))).is_dir()]  # no groups
    given = tuple(f"{key}." for key in keys)
    derived = {key for key, value in flat(raw).items() if "${" in str(value) and not f"{key}.".startswith(given)}
    of_run = {**raw, **_replaced(wanted, raw, derived)}
    return _replaced(raw, plain(resolved(project, DictConfig(of_run), Path.cwd())), derived)


def _replaced(node: dict[str, Any], by: dict[str, Any], keys: Collection[str], at: str = "") -> dict[str, Any]:
    """Return the node with the values of `by` at these dotted keys, if it has them."""
    out: dict[str, Any] = {}
    for name, value in node.items():
        key, other = join(at, str(name)), by.get(name)
        if isinstance(value, dict) and isinstance(other, dict):
            out[name] = _replaced(value, other, keys, key)
        else:
            out[name] = other if key in keys and name in by else value
    return out


def _resolved(project: Project, overrides: list[str]) -> dict[str, Any]:
    from samebits.config import composed, resolved

    cfg = composed(project, overrides)
    cfg.pop("hydra")
    found: dict[str, Any] = plain(resolved(project, DictConfig(cfg), Path.cwd()))
    return found


def _part(cfg: dict[str, Any], left_out: Sequence[str]) -> dict[str, Any]:
    return {key: value for key, value in cfg.items() if key not in left_out}


def _seeds(job: Job) -> list[str]:
    """Return an override with the run's seed, so that values derived from the seed do not count as differences."""
    return [f"seed={job.config['seed']}"] if "seed" in job.config else []


def _key(override: str) -> str:
    return override.partition("=")[0].lstrip("+~")
