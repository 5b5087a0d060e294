"""Read the config and checkpoint of a run, to predict with it or to export its weights."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf

from samebits.checkpoints.checkpoint import eval_state_dict, find_checkpoint, save_checkpoint
from samebits.checkpoints.integrity import failure_line
from samebits.checkpoints.sharded import SUFFIX
from samebits.config import INVALID_OVERRIDE, absolute
from samebits.errors import ConfigError, RunFailed
from samebits.extras import need
from samebits.files import replace_text
from samebits.project import Project
from samebits.runs import check_changes, has_key
from samebits.saved import CONFIG, read_config, translate_typed_override
from samebits.schema import check_resolved, no_such_key

Change = Callable[[dict[str, Any], Path], dict[str, Any]]


def read_run(project: Project, path: Path, overrides: Sequence[str] = ()) -> tuple[DictConfig, Path, dict[str, Any]]:
    """Return (resolved config, path of the checkpoint, its payload).

    path: a run directory or one of its checkpoints. overrides: key=value, applied to the config. Raise ConfigError if
    the config or the checkpoint is missing, or if an override is invalid.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or checkpoint")
    file, payload = find_checkpoint(path)
    config = file.parent.parent / CONFIG
    if not config.exists():
        raise ConfigError(f"{file}: the {CONFIG} of its run is missing in {config.parent}; keep them together")
    cfg = read_config(project, config.parent)
    for override in overrides:
        key, _, value = override.partition("=")
        if key in project.paths:
            absolute(value.strip("'\""), Path.cwd(), key)  # raises an error for an empty path
        change_value(cfg, translate_typed_override(project, override))
    return cfg, file, payload


def change_value(cfg: DictConfig, override: str) -> None:
    """Apply key=value to `cfg`, in Hydra's syntax. Raise ConfigError if it is not valid, if the key is missing, or if
    it chooses an option of a group: a saved config has only the values of the options."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException:
        if override.endswith((".pt", SUFFIX)) or os.path.isfile(os.path.join(override, CONFIG)):
            raise ConfigError(
                f"{override}: is a second run, but this command reads one - repeat it for each, or average their "
                "outputs with ./run predict RUN RUN"
            ) from None
        raise ConfigError(f"{override}: {INVALID_OVERRIDE}") from None
    key = parsed.key_or_group
    if parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.package:
        raise ConfigError(f"{override!r}: the keys of a run cannot be added or deleted; change a value with key=value")
    if parsed.is_sweep_override():
        raise ConfigError(f"{override!r}: several values; give only one (a list is written {key}=[1,2])")
    path, value = key.split("/")[0], parsed.value()
    group = OmegaConf.select(cfg, path) if has_key(cfg, path) else None
    if isinstance(group, DictConfig) and ("/" in key or isinstance(value, str)):
        example = next((name for name in ("path", *group) if name in group and name != "_target_"), "NAME")
        raise ConfigError(
            f"{override}: chooses an option of a group, but the config of a trained run has only values - give a "
            f"value, such as {path}.{example}=..."
        )
    inner, parent = "", cfg
    for name in key.split(".")[:-1]:  # the first part that is missing is named
        if name not in parent:
            break
        inner, parent = f"{inner}.{name}".lstrip("."), parent[name]
        if not isinstance(parent, DictConfig):
            raise ConfigError(f"{key}: {inner} is a value, not a group")
    if not has_key(cfg, key):
        missing = key[len(inner) :].lstrip(".").partition(".")[0]
        raise ConfigError(no_such_key(f"{inner}.{missing}".lstrip("."), [str(name) for name in parent]))
    check_resolved(value, key)
    check_changes(cfg, key, override)
    OmegaConf.update(cfg, key, value)


def export(
    path: Path, target: Path, overwrite: bool, to: str = "pt", change: Change = lambda state, source: state
) -> tuple[Path, int]:
    """Write the weights of a run or checkpoint as a state dict. Return (checkpoint path, number of values).

    to: pt, the format of torch.save, or safetensors. Raise ConfigError as `check_target` does, if the library
    safetensors is missing, or if the disk is full.
    change: called with the state dict and the checkpoint's path; returns the state dict to write.
    """
    check_target(path, target, overwrite)
    library: Any = None
    if to == "safetensors":
        library = need("safetensors.torch", "--to safetensors", "safetensors", "export")
    source, payload = find_checkpoint(path)
    state = change(eval_state_dict(payload), source)
    try:
        if library is None:
            save_checkpoint(state, target)
        else:
            # a copy of each: the format refuses tensors that share memory, such as tied weights
            whole = {name: value.detach().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
            replace_text(target, library.save(whole, {"format": "pt"}))
    except (OSError, RunFailed) as error:
        raise ConfigError(f"{target}: cannot be written: {failure_line(error)}") from error
    return source, sum(value.numel() for value in state.values())


def run_directory(path: Path) -> Path:
    """Return the run directory of a path, which is it or one of its checkpoints. A sharded checkpoint is a folder."""
    return path if path.is_dir() and path.suffix != SUFFIX else path.absolute().parents[1]


def check_target(path: Path, target: Path, overwrite: bool) -> None:
    """Raise ConfigError if there is no run at `path`, or if `target` cannot be written, or exists and overwrite is
    false."""
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or checkpoint")
    if target.is_dir() or not (target.parent.is_dir() and os.access(target.parent, os.W_OK)):
        raise ConfigError(f"{target}: must be a file in an existing folder that you can write to")
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists; add --overwrite to replace it")
