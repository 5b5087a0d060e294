"""Load a trained model from a run directory; score it; export its weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch import nn

from engine.checkpoints import find_checkpoint, load_weights, save_checkpoint, weights_of
from engine.config import CONFIG, check_resolved, no_such_key, read_config
from engine.errors import ConfigError
from engine.ranks import Hardware, World, apply_hardware, process_group, resolve_hardware, threads_of_run
from engine.runs import has_key
from lab.evaluation import evaluate
from lab.frozen import provide_frozen
from lab.groups import check, share_evaluation
from lab.make import Config, make_dataset, make_eval_loader, make_model, make_task, task_run
from lab.tasks.base import Task


def restore_model(path: Path, overrides: Sequence[str] = ()) -> tuple[nn.Module, DictConfig, Path, dict[str, Any]]:
    """path: a run directory or one of its checkpoints. Returns (model in eval mode on the CPU, resolved config,
    checkpoint path, its payload).

    overrides: key=value, applied to the run's config before the model is built.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such run directory or checkpoint")
    file, payload = find_checkpoint(path)
    config = file.parent.parent / CONFIG
    if not config.exists():
        raise ConfigError(f"{file}: its run's {CONFIG} is missing from {config.parent}; keep them together")
    cfg = read_config(config.parent)
    for override in overrides:
        change_value(cfg, override)
    model = make_model(Config.of(cfg))
    load_weights(model, weights_of(payload), str(file))
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
    source, payload = find_checkpoint(path)
    state = weights_of(payload)
    save_checkpoint(state, target)
    return source, sum(value.numel() for value in state.values())


@dataclass(frozen=True)
class Restored:
    """A trained model and what it is applied to. model, task: on the CPU. machine: for the eval loader."""

    model: nn.Module
    task: Task
    dataset: Any
    config: Config
    machine: Hardware
    file: Path


def restore(path: Path, split: str, overrides: Sequence[str], num_procs: int = 1) -> Restored:
    """path: a run directory or checkpoint. overrides: key=value for the run's config. num_procs: processes that
    will share the samples of the split."""
    model, cfg, file, payload = restore_model(path, overrides)
    share_evaluation(cfg, num_procs)
    check(cfg, trains=False)
    config = Config.of(cfg)
    machine = resolve_hardware(config.hardware, config.trainer)
    machine = replace(machine, threads=threads_of_run(machine.threads, file.parent.parent))
    splits = config.dataset.get("splits")
    if isinstance(splits, dict) and split not in splits:
        raise ConfigError(f"--split {split}: data.splits has {', '.join(splits)}")
    dataset = make_dataset(config, split)
    if dataset is None:
        raise ConfigError(f"--split {split}: data.splits.{split} is null in this run's config")
    task = restore_task(config, model, file, payload)
    return Restored(model, task, dataset, config, machine, file)


def restore_task(config: Config, model: nn.Module, file: Path, payload: dict[str, Any]) -> Task:
    """The task of the run whose checkpoint `file` is, with its frozen networks, on the CPU."""
    task = make_task(config)
    task.run = task_run(config, World(0, 1, 0, torch.device("cpu")))
    task.attach(model)
    provide_frozen(task, model, config.cfg.model, file.parent.parent, begins=False, writes=False)
    if "task" in payload:
        load_weights(task, payload["task"], str(file), "task")
    return task


def score_checkpoint(path: Path, split: str, overrides: list[str]) -> dict[str, float]:
    """Returns {loss, <metric>, ...} of the checkpoint on a split. overrides: key=value for the run's config."""
    own = restore(path, split, overrides)
    apply_hardware(own.config.hardware, own.machine)
    with process_group(own.machine.device, timeout_s=60.0) as alone:
        loader = make_eval_loader(own.config, own.machine, own.dataset, split, alone)
        try:
            on = alone.device
            return evaluate(own.model.to(on), own.task.to(on), loader, alone, own.machine, loader.lengths)
        finally:
            loader.close()
