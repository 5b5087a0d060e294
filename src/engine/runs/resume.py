"""Decide whether a command begins a new run or resumes one. Imports no torch."""

from __future__ import annotations

from pathlib import Path

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from engine.config import CONF, absolute, composed, flat, plain, read_config, read_overrides, resolved, show
from engine.errors import ConfigError
from engine.runs.directory import BEFORE, CONFIG, check_free, claimed, holds_run, undo_resume

REPLACEABLE = ("hardware", "logger", "callback", "profiler")  # groups that a resume may replace: not the algorithm


def choose_run(cfg: DictConfig, run_dir: Path, overrides: list[str], cwd: Path) -> tuple[DictConfig, Path]:
    """Returns (resolved config, directory) of the run to begin or resume. cfg: as composed. run_dir: for a new run.

    A resumed run keeps its saved config, even if conf/ has changed, except for the command's overrides; with
    resume=auto only for overrides that the run was not given before.
    """
    resume = cfg.resume
    directory = run_dir if resume in (None, "auto") else Path(absolute(resume, cwd))
    if resume is None and holds_run(directory):
        raise ConfigError(
            f"hydra.run.dir={directory}: it holds a run; add resume=auto to go on with it, or choose another"
        )
    if resume not in (None, "auto") and not holds_run(directory):
        raise ConfigError(
            f"resume={directory}: no run directory (it has no {CONFIG}); give the one that a run has printed"
        )
    if (directory / BEFORE).exists():
        with claimed(directory):  # left by a resume that was killed before its first step
            undo_resume(directory)
    if not holds_run(directory):
        check_free(directory)
        new = resolved(cfg, cwd)
        new.resume = None
        return new, directory
    saved = read_config(directory)
    typed = read_overrides(directory)
    given, changed = set(typed), []
    for override in overrides:
        key = override.partition("=")[0]
        # the same command with resume=auto is often repeated: overrides it had before are no change
        repeated = override in given and (resume in (None, "auto") or (CONF / key).is_dir())
        if not repeated and key != "resume" and not key.startswith("hydra."):
            for each in leaves_of(override):
                change_value(saved, cfg, each, override, directory)
                changed.append(each)
    check_followers(saved, typed, changed)
    if "path" in saved.data:
        saved.data.path = absolute(plain(saved.data.path), cwd)
    return saved, directory


def leaves_of(override: str) -> list[str]:
    """The keys that an override gives values to: its own, or those in its mapping, a={b: 1}: all others of a stay."""
    parsed = OverridesParser.create().parse_override(override)
    if parsed.is_sweep_override() or parsed.is_delete() or not isinstance(parsed.value(), dict):
        return [override.partition("=")[0]]
    return list(flat({parsed.key_or_group: parsed.value()}))


def change_value(saved: DictConfig, cfg: DictConfig, key: str, override: str, directory: Path) -> None:
    """Copy the value that `override` has set in `cfg` into a run's saved config."""
    if key in REPLACEABLE:
        OmegaConf.update(saved, key, OmegaConf.to_container(cfg[key], resolve=True), merge=False)
    elif (has_key(saved, key) or has_key(saved, override.partition("=")[0])) and not (CONF / key).is_dir():
        OmegaConf.update(saved, key, OmegaConf.select(cfg, key))
    else:
        raise ConfigError(
            f"{override}: the run in {directory} keeps its groups; what can be changed when it goes on are values "
            f"(trainer.max_epochs=40) and the groups {', '.join(REPLACEABLE)} - for another run leave out resume"
        )


def check_followers(saved: DictConfig, typed: list[str], changed: list[str]) -> None:
    """ConfigError if a value that was interpolated from a changed one (data.order.batch_size from
    trainer.global_batch_size) would keep its old value, as saved configs are resolved: it must be given too.
    typed: the run's overrides, to find interpolations in conf/; if they no longer compose, nothing is checked."""
    if all(key.split(".")[0] in REPLACEABLE for key in changed):
        return
    try:
        raw = flat({name: node for name, node in composed(typed).items() if name not in (*REPLACEABLE, "hydra")})
    except (ConfigError, HydraException, OmegaConfBaseException):
        return
    for key in changed:
        new = plain(OmegaConf.select(saved, key))
        for at, text in raw.items():
            follows = text == f"${{{key}}}" and at not in changed and has_key(saved, at)
            if follows and plain(OmegaConf.select(saved, at)) != new:
                raise ConfigError(f"{key}={show(new)}: {at} follows from it; give it too: {at}={show(new)}")


def has_key(cfg: DictConfig, key: str) -> bool:
    """Whether the key exists, null or not, or is an argument of a `_target_`, which may be newer than the run."""
    parent, _, name = key.rpartition(".")
    node = OmegaConf.select(cfg, parent) if parent else cfg
    return isinstance(node, DictConfig) and (name in node or "_target_" in node)
