"""Restore a trained run to evaluate or predict: its model, task, data set and config; score a checkpoint."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import nn

from lab.builders import make_task, task_run
from lab.checks import check_holds_no_weights
from lab.config import Config, check, set_processes
from lab.evaluation import evaluate
from lab.experiment import Experiment
from lab.frozen_networks import provide_frozen
from lab.groups import RootConfig
from lab.loaders import check_classes_of_run, make_dataset
from lab.model_io import restore_model
from lab.project import PROJECT
from lab.tasks.base import Task
from samebits.checkpoints import load_weights
from samebits.compiling import compile_blocks
from samebits.device import resolve_auto_as_recorded, resolve_hardware
from samebits.errors import ConfigError
from samebits.runs import warn_of_changed_files
from samebits.steps import seeded
from samebits.world import check_no_rank, dist_env, process_group, world_of_one

# an evaluation reads these groups and, of `trainer`, the keys that choose its samples and batches
READ = ("data", "hardware", "model", "quantization", "rules", "seed", "task")
READ_OF_TRAINER = ("global_batch_size", "max_eval_batches", "pad_eval_batches")
GROUPS = [each.name for each in fields(RootConfig)]
# keys of READ that only training reads; hardware.micro_batch_size is not one: it replaces a null eval_batch_size
ONLY_TRAINING = ("data.overfit", "hardware.cuda_graph")


@dataclass(frozen=True)
class Restored:
    """A trained model and the data of a split. model, task: on the CPU. experiment: its `sets` has only this split.
    file: the checkpoint."""

    model: nn.Module
    task: Task
    experiment: Experiment
    file: Path


def restore(path: Path, split: str, overrides: Sequence[str], num_procs: int = 1) -> Restored:
    """Return the trained run for one split. Raise ConfigError if there is no such split, or an override has no effect.

    path: a run directory or checkpoint. overrides: key=value for the run's config. num_procs: processes that will share
    the samples of the split."""
    check_effects(overrides, split)
    model, cfg, file, payload = restore_model(path, overrides)
    set_processes(cfg, num_procs)
    config = check(cfg, trains=False)
    hardware = resolve_auto_as_recorded(resolve_hardware(config.hardware, config.trainer), file.parent.parent)
    splits = config.dataset.get("splits")
    if isinstance(splits, dict) and split not in splits:
        raise ConfigError(f"--split {split}: no such split (data.splits has {', '.join(splits)})")
    dataset = make_dataset(config, split)
    if dataset is None:
        raise ConfigError(f"--split {split}: data.splits.{split} is null in this run's config")
    check_classes_of_run(dataset, file.parent.parent)
    if dist_env.rank == 0:
        warn_of_changed_files(PROJECT.root, file.parent.parent, cfg)
    task = restore_task(config, model, file, payload)
    return Restored(model, task, Experiment(config, hardware, world_of_one(), {split: dataset}), file)


def check_effects(overrides: Sequence[str], split: str) -> None:
    """Raise ConfigError for an override without effect: only training reads its key, or only the start of a run."""
    for override in overrides:
        key, _, value = override.partition("=")
        key = key.lstrip("+~")
        group, _, name = key.partition(".")
        group = group.partition("/")[0].partition("@")[0]
        if group not in GROUPS:
            continue  # restore_model names the unknown key
        if found := re.fullmatch(r"(data(?:\.parts\.[^.]+)?)\.(split_ratio|split_by)", key):
            raise ConfigError(
                f"{override}: has no effect on a trained model, because its config has the splits that a new run makes "
                f"of it - set {found[1]}.splits.{split}.rows, such as {found[1]}.splits.{split}.rows=[0.9, 1]"
            )
        if key == "hardware.num_procs":
            raise ConfigError(
                f"{override}: has no effect on a trained model - remove it; evaluate uses one process, and predict "
                f"takes --procs {value}"
            )
        only_training = key in ONLY_TRAINING or re.match(r"data(\.parts\.[^.]+)?[./]order\b", key)
        if only_training or (group not in READ and not (group == "trainer" and name in READ_OF_TRAINER)):
            raise ConfigError(
                f"{override}: has no effect on a trained model, because only training reads it - remove it; to change "
                "training, start a run with it"
            )


def restore_task(config: Config, model: nn.Module, file: Path, payload: dict[str, Any]) -> Task:
    """Return the task of a run with its frozen networks, on the CPU. file, payload: as restore_model returns them."""
    known = {key: payload[key] for key in ("total_steps", "epoch_samples") if key in payload}  # not in old ones
    with seeded(payload["rng_of_task"]):
        task = make_task(config)
        task.run = replace(task_run(config, world_of_one()), **known)
        task.setup(model)
    check_holds_no_weights(task, model)
    provide_frozen(task, model, config.values["model"], file.parent.parent, is_new=False, writes=False)
    if "task" in payload:
        load_weights(task, payload["task"], str(file), "task")
    return task


def score_checkpoint(path: Path, split: str, overrides: list[str]) -> dict[str, float]:
    """Return {loss, <metric>, ...} of the checkpoint on a split. overrides: key=value for the run's config."""
    if dist_env.size not in (None, 1):
        check_no_rank("an evaluation uses one process")
    run = restore(path, split, overrides)
    hardware = run.experiment.hardware
    hardware.apply(run.experiment.config.hardware)
    compile_blocks(run.model, hardware)
    with (
        process_group(hardware.device, timeout_s=60.0) as alone,
        replace(run.experiment, world=alone).eval_loader(split) as loader,
    ):
        on = alone.device
        return evaluate(run.model.to(on), run.task.to(on), loader, alone, hardware, loader.size_and_real)
