"""Load a trained model from a run directory; score it; export its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from torch import nn

from engine.config.resume import has_key
from engine.config.saved import read_config
from engine.config.schema import check_resolved, no_such_key
from engine.errors import ConfigError
from engine.ranks import hardware
from engine.ranks.distributed import world
from engine.ranks.threads import of_run
from engine.runs import checkpoint, directory
from lab.build import Config, make_dataset, make_eval_loader, make_model, make_task
from lab.groups import as_single, check
from lab.loop import evaluate


def restore_model(path: Path, overrides: Sequence[str] = ()) -> tuple[nn.Module, DictConfig, Path, dict[str, Any]]:
    """path: a run directory or one of its checkpoints. Returns (model in eval mode on the CPU, resolved config,
    checkpoint path, its payload).

    overrides: key=value, applied to the run's config before the model is built.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or checkpoint")
    file, payload = checkpoint.find(path)
    config = file.parent.parent / directory.CONFIG
    if not config.exists():
        raise ConfigError(f"{file}: its run's {directory.CONFIG} is missing from {config.parent}; keep them together")
    cfg = read_config(config.parent)
    for override in overrides:
        change_value(cfg, override)
    model = make_model(Config.of(cfg))
    checkpoint.load_weights(model, checkpoint.weights(payload), str(file))
    return model.eval(), cfg, file, payload


def change_value(cfg: DictConfig, override: str) -> None:
    """Apply key=value to `cfg`, in Hydra's syntax: numbers, true, null, [lists], 'text'."""
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        parsed = OverridesParser.create().parse_override(override)
    except HydraException as error:
        raise ConfigError(
            f"{override!r}: overrides are written key=value, with quotes around text of special characters, "
            f"key='a=b' ({str(error).splitlines()[0]})"
        ) from None
    key = parsed.key_or_group
    if parsed.is_add() or parsed.is_force_add() or parsed.is_delete() or parsed.package:
        raise ConfigError(f"{override!r}: a run has the keys that it has; change the value of one with key=value")
    if parsed.is_sweep_override():
        raise ConfigError(f"{override!r}: several values; give one (a list is written {key}=[1,2])")
    if not has_key(cfg, key):
        parent = OmegaConf.select(cfg, key.rpartition(".")[0]) or cfg
        raise ConfigError(no_such_key(key, [str(name) for name in parent]))
    value = parsed.value()
    check_resolved(value, key)
    OmegaConf.update(cfg, key, value)


def export(path: Path, target: Path, overwrite: bool) -> tuple[Path, int]:
    """Write the weights of a run or checkpoint as a state dict. Returns (checkpoint path, number of values)."""
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or checkpoint")
    if target.is_dir() or not target.parent.is_dir():
        raise ConfigError(f"{target}: must be a file in a folder that exists")
    if target.exists() and not overwrite:
        raise ConfigError(f"{target} exists; add --overwrite to replace it")
    source, payload = checkpoint.find(path)
    state = checkpoint.weights(payload)
    checkpoint.save(state, target)
    return source, sum(value.numel() for value in state.values())


def score_checkpoint(path: Path, split: str, overrides: list[str]) -> dict[str, float]:
    """Returns {loss, <metric>, ...} of the checkpoint on a split. overrides: key=value for the run's config."""
    model, cfg, file, payload = restore_model(path, overrides)
    as_single(cfg)
    check(cfg, trains=False)
    config = Config.of(cfg)
    machine = hardware.resolve(config.hardware, config.trainer)
    machine = replace(machine, threads=of_run(machine.threads, file.parent.parent))
    hardware.apply(config.hardware, machine)
    splits = config.dataset.get("splits")
    if isinstance(splits, dict) and split not in splits:
        raise ConfigError(f"--split {split}: data.splits has {', '.join(splits)}")
    dataset = make_dataset(config, split)
    if dataset is None:
        raise ConfigError(f"--split {split}: data.splits.{split} is null in this run's config")
    task = make_task(config)
    task.attach(model)
    if "task" in payload:
        checkpoint.load_weights(task, payload["task"], str(file), "task")
    with world(machine.device, timeout_s=60.0) as own:
        loader = make_eval_loader(config, machine, dataset, own)
        try:
            on = own.device
            return evaluate(model.to(on), task.to(on), loader, own, machine, loader.lengths)
        finally:
            loader.close()
