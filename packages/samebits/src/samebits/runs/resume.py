"""Decide whether a command starts a new run or resumes one. Imports no torch."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from samebits.config import absolute, agents_run, check_used, composed, is_agent_retry, quote_value, resolved
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.runs.directory import BEFORE, CONFIG, check_free, claimed, holds_run, undo_resume
from samebits.saved import flat, read_config, read_overrides, same_value
from samebits.schema import no_such_key, plain, show
from samebits.status import new_wandb_id, read_status, shown

log = logging.getLogger("samebits")
LOGGER = "logger"
CHOICE = re.compile(r"(?P<group>\w+(/\w+)*)=(?P<options>[\w-]+|\[[\w-]+(,[\w-]+)*\])")


def choose_run(
    project: Project, cfg: DictConfig, run_dir: Path, overrides: list[str], cwd: Path
) -> tuple[DictConfig, Path]:
    """Return (resolved config, directory) of the run to start or resume.

    cfg: the composed config. run_dir: directory of a new run. A resumed run keeps its saved config, even if conf/ has
    changed, and applies the command's overrides; with resume=auto only the overrides that are new. Its logger comes
    from the present config, because a run of another person could name a server that would get your data or passwords.
    Raise ConfigError if there is no run to resume, or if an override cannot be applied.
    """
    resume = cfg.resume
    if resume is not None and not isinstance(resume, str):  # Hydra reads a directory named 1 or 007 as a number
        typed = [text for text in overrides if text.startswith("resume=")] or [f"resume={resume}"]
        resume = cfg.resume = typed[-1].removeprefix("resume=")
    directory = run_dir if resume in (None, "auto") else Path(absolute(resume, cwd, "resume"))
    if resume is None and holds_run(directory):
        raise ConfigError(
            f"hydra.run.dir={directory}: contains a run; add resume=auto to resume it, or choose another directory"
        )
    if resume not in (None, "auto") and not holds_run(directory):
        run = next((folder for folder in list(directory.parents)[:2] if holds_run(folder)), None)  # of a checkpoint
        remedy = f"resume={run}" if run else "the directory that the run printed"
        raise ConfigError(f"resume={directory}: not a run directory ({CONFIG} is missing); give {remedy}")
    if (directory / BEFORE).exists():
        with claimed(directory):  # left by a resume that was killed before its first step
            undo_resume(directory)
    if not holds_run(directory):
        check_free(directory)
        new_wandb_id()  # raises an error for an invalid id before anything is written
        if is_agent_retry(project):
            log.warning(
                "W&B has assigned this run again, but %s is missing: the run starts from scratch", shown(directory)
            )
        check_used(project.conf, cfg, overrides)
        new = resolved(project, cfg, cwd)
        new.resume = None
        return new, directory
    saved = read_config(project, directory)
    typed = read_overrides(project, directory)
    ids = agents_run() if resume == "auto" else None
    if ids:
        check_id(directory, ids[1])
    given, changed, before = set(typed), [], flat(plain(saved))
    for override in overrides:
        key = override.partition("=")[0]
        # a command with resume=auto is often repeated: overrides that the run already has are not changes
        repeated = override in given and (resume in (None, "auto") or (project.conf / key).is_dir())
        if not repeated and key != "resume" and not key.startswith("hydra."):
            check_changes(saved, key, override)
            for each in leaves_of(override):
                if ids:
                    check_same(project, saved, cfg, each, ids[1], directory)
                change_value(project, saved, cfg, each, override, directory)
                changed.append(each)
    check_followers(project, saved, before, typed, changed)
    saved.logger = own_logger(project, saved, cfg, typed, overrides)
    if "path" in saved.data:
        saved.data.path = absolute(plain(saved.data.path), cwd, "data.path")
    return saved, directory


def own_logger(
    project: Project, saved: DictConfig, cfg: DictConfig, typed: Sequence[str], overrides: Sequence[str]
) -> dict[str, Any]:
    """Return the group `logger` of conf/ and this command, with the run's name and its choices (logger=none, ...).

    Warn in one line about values that differ from the run's. cfg: the composed config of this command. typed: the run's
    overrides; only choices of options are used, not values. overrides: the overrides of this command.
    """
    if any(override.partition("=")[0] == LOGGER and not is_choice(project, override) for override in overrides):
        return OmegaConf.to_container(cfg[LOGGER], resolve=True)  # type: ignore[return-value] # of --config-dir
    tops = {o: o.lstrip("+~").split("=")[0].split(".")[0] for o in overrides}
    given = [o for o, top in tops.items() if top in (LOGGER, "name") or is_choice(project, o)]
    keys = {override.partition("=")[0] for override in given}
    kept = [override for override in typed if is_choice(project, override) and override.partition("=")[0] not in keys]
    kept += [] if "name" in keys else [f"name={quote_value(str(saved.name))}"]
    whole = DictConfig({key: node for key, node in composed(project, [*kept, *given]).items() if key != "hydra"})
    logger: dict[str, Any] = OmegaConf.to_container(whole[LOGGER], resolve=True)  # type: ignore[assignment]
    was, now = flat(plain(saved[LOGGER])), flat(logger)
    unlike = [
        f"{LOGGER}.{key}={show(now.get(key))} ({show(value)} in the run)"
        for key, value in was.items()
        if not same_value(now.get(key), value) and not any(f"{LOGGER}.{key}".startswith(k) for k in keys)
    ]
    if unlike:
        log.warning(
            "a resumed run uses the logger options of this command: %s; to keep a value, add it to the command",
            ", ".join(unlike),
        )
    return logger


def is_choice(project: Project, override: str) -> bool:
    """Return whether the override chooses existing options of a group in conf/ by name: logger=[wandb,mlflow]."""
    found = CHOICE.fullmatch(override)
    return (
        found is not None
        and not found["group"].startswith("hydra")
        and all(
            (project.conf / found["group"] / f"{name}.yaml").is_file()
            for name in found["options"].strip("[]").split(",")
        )
    )


def leaves_of(override: str) -> list[str]:
    """Return the keys that an override sets: its key, or the keys in a mapping (a={b: 1} sets a.b)."""
    parsed = OverridesParser.create().parse_override(override)
    if parsed.is_sweep_override() or parsed.is_delete() or not isinstance(parsed.value(), dict):
        return [override.partition("=")[0]]
    return list(flat({parsed.key_or_group: parsed.value()}))


def change_value(
    project: Project, saved: DictConfig, cfg: DictConfig, key: str, override: str, directory: Path
) -> None:
    """Copy the value that `override` has set in `cfg` into the saved config of a run.

    Raise ConfigError if the override cannot be applied.
    """
    key = key.removeprefix("+")
    if key in project.neutral_groups:
        OmegaConf.update(saved, key, OmegaConf.to_container(cfg[key], resolve=True), merge=False)
    elif key.startswith("~") or (project.conf / key.partition("@")[0]).is_dir():
        raise ConfigError(
            f"{override}: the run in {directory} keeps its groups; a resume can change only values "
            f"(process.timeout=20m) and the groups {', '.join(project.neutral_groups)} - for a new run, remove resume"
        )
    elif has_key(saved, key) or has_key(saved, override.partition("=")[0]) or adds(saved, override):
        OmegaConf.update(saved, key, OmegaConf.select(cfg, key), force_add=True)
    else:
        parent = OmegaConf.select(saved, key.rpartition(".")[0]) if "." in key else saved
        line = no_such_key(key, list(map(str, parent or ())), moved=project.moved_keys)
        raise ConfigError(f"{line}, in the config of the run in {directory}")


def check_id(directory: Path, wandb_id: str) -> None:
    """Raise ConfigError if the directory contains another W&B run: the sweep's command has one directory for all."""
    if (other := read_status(directory).get("wandb_id")) != wandb_id:
        raise ConfigError(
            f"hydra.run.dir={directory}: contains W&B's run {other}, not {wandb_id}; remove hydra.run.dir from the "
            "sweep's command, or end it with /${oc.env:WANDB_RUN_ID}"
        )


def check_same(project: Project, saved: DictConfig, cfg: DictConfig, key: str, wandb_id: str, directory: Path) -> None:
    """Raise ConfigError if a run of a W&B sweep would be resumed with another value.

    W&B attributes the scores to the values that it chose at the start of the run.
    """
    was, now = (plain(OmegaConf.select(one, key.lstrip("+~"))) for one in (saved, cfg))
    is_free = (project.conf / key).is_dir() or key.split(".")[0] in project.neutral_groups
    if not is_free and not same_value(was, now):
        raise ConfigError(
            f"{key}={show(now)}: W&B's run {wandb_id} has {show(was)}, and is resumed with its initial "
            f"values; move {shown(directory)} away to start it from scratch"
        )


def check_changes(saved: DictConfig, key: str, override: str) -> None:
    """Raise ConfigError for an override that cannot change a saved config: key={} if the key has entries, because
    mappings are merged, and keys from which a new run makes its splits."""
    if re.fullmatch(r"\+*data(\.parts\.\w+)?\.split_(ratio|by)", key):
        raise ConfigError(f"{override}: has no effect, because the run keeps its data.splits - start a new run with it")
    if override.endswith("={}") and OmegaConf.select(saved, key.lstrip("+")):
        raise ConfigError(f"{override}: has no effect, because the entries of {key.lstrip('+')} stay - remove it")


def adds(saved: DictConfig, override: str) -> bool:
    """Return whether the override adds a key to a node of the run's config. A later check validates the key."""
    parent = override.partition("=")[0].rpartition(".")[0]
    return override.startswith("+") and isinstance(OmegaConf.select(saved, parent.removeprefix("+")), DictConfig)


def check_followers(
    project: Project, saved: DictConfig, before: dict[str, Any], typed: list[str], changed: list[str]
) -> None:
    """Raise ConfigError if a value that was interpolated from a changed value would keep its old value.

    An example is data.order.batch_size, from trainer.global_batch_size. Saved configs are resolved, so the command must
    give both. The check includes keys of older versions whose value is a default argument today. before: the run's
    values. typed: its overrides, to find interpolations in conf/; if they no longer compose, nothing is checked.
    """
    if all(key.split(".")[0] in project.neutral_groups for key in changed):
        return
    try:
        left_out = (*project.neutral_groups, "hydra")
        raw = flat({name: node for name, node in composed(project, typed).items() if name not in left_out})
    except (ConfigError, HydraException, OmegaConfBaseException):
        return
    for key in changed:
        new = plain(OmegaConf.select(saved, key))
        names = {name for name, given in project.default_arguments.items() if given == key}
        own = [at for at in before if at.rpartition(".")[2] in names and at not in raw]
        older = [at for at in own if same_value(before[at], before.get(key))]
        for at in [*(at for at, text in raw.items() if text == f"${{{key}}}"), *older]:
            follows = at not in changed and has_key(saved, at)
            if follows and not same_value(plain(OmegaConf.select(saved, at)), new):
                raise ConfigError(f"{key}={show(new)}: {at} depends on it; add {at}={show(new)}")


def has_key(cfg: DictConfig, key: str) -> bool:
    """Return whether the key exists, or is an argument of a `_target_`, which may be newer than the run."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return isinstance(node, DictConfig) and (name in node or "_target_" in node)
