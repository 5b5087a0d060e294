"""The first lines of a run's log: what is trained, with what, on what, and what a resume has changed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.config import Config
from lab.project import PROJECT
from lab.state import Run
from samebits.data import Loader, Stream
from samebits.device import LAUNCHES_BOUND_FLOP, Hardware, HardwareConfig
from samebits.loggers import Logger
from samebits.parallel import class_name, describe_shards, padding_note
from samebits.runs import BEFORE, code_changes, codes_of
from samebits.saved import load_flat, read_overrides
from samebits.schema import plain, show
from samebits.shards import is_sharded

SAID_ELSEWHERE = ("resume", "sweep", "logger")  # groups whose values are not what is trained


def what_is_trained(config: Config, directory: Path) -> list[str]:
    """The method and the model, then what moves the weights, then the command's overrides and a resume's changes."""
    task, model = plain(config.cfg.task), plain(config.cfg.model)
    model = {key: value for key, value in model.items() if key not in ("input_shape", "num_outputs")}
    trainer = config.trainer
    limits = {"clip_norm": trainer.clip_norm, "ema_decay": trainer.ema_decay, "seed": config.cfg.seed}
    values = [f"{key}={show(value)}" for key, value in limits.items() if value is not None]
    lines = [
        f"{node_text(task)} of {node_text(model)}",
        ", ".join([node_text(config.optimizer), node_text(config.optim.schedule), *values]),
    ]
    given = [text for text in read_overrides(PROJECT, directory) if group_of(text) not in SAID_ELSEWHERE]
    lines += [f"given: {' '.join(given)}"] if given else []
    return lines + ([f"changed: {changed}"] if (changed := changes_of_resume(directory)) else [])


def changes_of_resume(directory: Path) -> str:
    """optim.lr 0.001 -> 0.01, ...: what differs from the config and code before a resume, until its first step; else
    empty."""
    if not (directory / BEFORE).exists():
        return ""
    was, now = load_flat(PROJECT, directory / BEFORE), load_flat(PROJECT, directory)
    keys = [key for key in {**was, **now} if was.get(key) != now.get(key) and group_of(key) not in SAID_ELSEWHERE]
    values = [f"{key} {show(was.get(key))} -> {show(now.get(key))}" for key in keys]
    before, after = codes_of(directory / BEFORE), codes_of(directory)
    # without a step that counts the run begins with the present code
    return ", ".join([*values, *(code_changes(before[-1], after[-1]) if len(after) > len(before) else [])])


def group_of(key: str) -> str:
    return key.lstrip("+~").partition("=")[0].partition(".")[0]


def node_text(node: Mapping[str, Any]) -> str:
    """AdamW(lr=0.001, betas=[0.9, 0.99]), of a node with a _target_; arguments that are null are left out."""

    def text(value: Any) -> str:
        if not isinstance(value, Mapping):
            return str(value) if isinstance(value, str) else show(value)
        return node_text(value) if "_target_" in value else f"{{{', '.join(value)}}}"

    given = {key: value for key, value in node.items() if not key.startswith("_") and value not in (None, {}, [])}
    arguments = ", ".join(f"{key}={text(value)}" for key, value in given.items())
    return f"{str(node['_target_']).rpartition('.')[2]}({arguments})"


def describe(
    logger: Logger,
    machine: Hardware,
    model: nn.Module,
    run: Run,
    sets: dict[str, Any],
    loader: Loader,
    changes: list[str],
    hardware: HardwareConfig,
) -> None:
    """Log the model's and the data's sizes, device, batch sizes, steps, the loader, and `changes`: of transforms."""
    parameters = sum(p.numel() for p in model.parameters())
    streams = {split for split, data in sets.items() if isinstance(data, Stream)}
    sizes = ", ".join(f"{split} {'a stream' if split in streams else f'{len(data):,}'}" for split, data in sets.items())
    micro = machine.micro_batch_sizes
    batches = f"{run.trainer.global_batch_size} samples a step = {run.world.size} x {sum(micro)}"
    if len(micro) > 1:
        batches += f" in {len(micro)} micro-batches of up to {micro[0]}"
    kind = class_name(model) if is_sharded(model) else type(model).__name__
    logger.say(f"{kind}, {parameters:,} parameters; samples: {sizes}")
    count = f"threads: {machine.threads.count}" + f" ({machine.threads.why})" * bool(machine.threads.why)
    whose = "rank 0 " * (run.world.size > 1)
    place = f"{machine.device}, {whose}on {machine.binding}" if machine.binding else machine.device
    precision = machine.precision + f" ({machine.precision_why})" * bool(machine.precision_why)
    logger.say(f"{place}, {precision}, {count}; {batches}; {run.total_steps:,} steps")
    flop = (run.work.flop or math.inf) * sum(micro)  # of a step of this rank
    if machine.device == "cuda" and run.world.size == 1 and not machine.cuda_graph and flop < LAUNCHES_BOUND_FLOP:
        logger.say(
            f"a small step, {flop / 1e6:,.0f} MFLOP: to launch its kernels takes longer than to run them; "
            "hardware.cuda_graph=true launches them at once"
        )
    for line in unheeded(run, model, sets["train"], hardware):
        logger.warn(line)
    if is_sharded(model):
        logger.say(describe_shards(model))
        if note := padding_note(model):
            logger.warn(note)
    for line in [f"loader {loader.why}", *getattr(sets["train"], "describe", list)(), *changes]:
        logger.say(line)


def unheeded(run: Run, model: nn.Module, train: Any, hardware: HardwareConfig) -> list[str]:
    """Return a line for each value that has no effect, or costs more time than it seems to."""
    lines = []
    if hardware.deterministic and hardware.cudnn_benchmark:
        lines.append("hardware.cudnn_benchmark=true: has no effect with hardware.deterministic=true")
    tries = not hardware.deterministic and hardware.cudnn_benchmark is not False
    varies = hasattr(train, "collate") or any(-1 in shape for shape, _ in getattr(train, "spec", {}).values())
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    if run.machine.device == "cuda" and tries and varies and convolves:
        lines.append(
            "batches may differ in shape, and cuDNN tries its convolutions anew for each shape: "
            "hardware.cudnn_benchmark=false spares that"
        )
    if any(p.dtype == torch.float64 for p in model.parameters()):
        lines.append("the model has float64 weights, which are slow on GPUs and need twice the memory: model.float()")
    return lines
