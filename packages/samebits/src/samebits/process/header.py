"""Log the first lines of a run: the task, model, optimizer, overrides, hardware, and the changes of a resume."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import nn

from samebits.code import code_changes, codes_of, record_machine
from samebits.data import Stream
from samebits.device import LAUNCHES_BOUND_FLOP, Hardware, HardwareConfig
from samebits.files import amount
from samebits.host import gpu_facts, machine_facts, machine_line
from samebits.loggers import Logger
from samebits.parallel import class_name, describe_shards, padding_note
from samebits.process.rank import RankProcess
from samebits.project import Project
from samebits.runs import BEFORE, changed_values
from samebits.saved import read_overrides
from samebits.schema import show
from samebits.shards import is_sharded

SAID_ELSEWHERE = ("resume", "sweep", "logger")  # groups that are not listed, because they do not change the training


def log_header(
    rank: RankProcess, run: Any, model: nn.Module, sets: dict[str, Any], method: Sequence[Any], update: Sequence[Any],
    changes: list[str],
) -> None:  # fmt: skip
    """Log the first lines of a run. All ranks call this.

    run: has world, hardware, trainer, total_steps, work, and train, the loader of the training batches. method: the
    config nodes of the task and of its model. update: config nodes and texts of the optimizer, schedule etc. changes:
    lines about transforms.
    """
    logger = rank.logger
    logger.say(rank.title)
    gpus = rank.world.gather_object(gpu_facts(rank.world.device))
    if rank.world.is_main:
        facts = machine_facts(rank.world.device, gpus)
        logger.say(machine_line(facts))
        if unlike := record_machine(rank.directory, facts):
            logger.warn(f"the run started on other hardware, so results may differ by rounding: {unlike}")
        for line in header_values(rank.project, rank.directory, method, update):
            logger.say(line)
    describe(logger, model, run, sets, changes, rank.config.hardware)


def header_values(project: Project, directory: Path, method: Sequence[Any], update: Sequence[Any]) -> list[str]:
    """Return lines with the method and the model, the optimizer etc., the overrides, and the changes of a resume."""
    moves = (one if isinstance(one, str) else node_text(one) for one in update)
    lines = [" of ".join(map(node_text, method)), ", ".join(moves)]
    given = [text for text in read_overrides(project, directory) if group_of(text) not in SAID_ELSEWHERE]
    lines += [f"overrides: {' '.join(given)}"] if given else []
    return lines + ([f"changed: {changed}"] if (changed := changes_of_resume(project, directory)) else [])


def changes_of_resume(project: Project, directory: Path) -> str:
    """Return the changes of config and code by a resume (optim.lr 0.001 -> 0.01, ...), until its first step.

    Return an empty string for a new run.
    """
    if not (directory / BEFORE).exists():
        return ""
    changed = changed_values(project, directory).items()
    values = [f"{key} {show(was)} -> {show(now)}" for key, (was, now) in changed if group_of(key) not in SAID_ELSEWHERE]
    before, after = codes_of(directory / BEFORE), codes_of(directory)
    # before the first checkpoint, the code of the run is replaced instead of recorded as a change
    return ", ".join([*values, *(code_changes(before[-1], after[-1]) if len(after) > len(before) else [])])


def group_of(key: str) -> str:
    """Return the config group of a key or override: +optim.lr=0.1 -> optim."""
    return key.lstrip("+~").partition("=")[0].partition(".")[0]


def node_text(node: Mapping[str, Any]) -> str:
    """Return the class and the arguments of a node, except null: AdamW(lr=0.001, betas=[0.9, 0.99])."""

    def text(value: Any) -> str:
        if not isinstance(value, Mapping):
            return str(value) if isinstance(value, str) else show(value)
        return node_text(value) if "_target_" in value else f"{{{', '.join(value)}}}"

    given = {key: value for key, value in node.items() if not key.startswith("_") and value not in (None, {}, [])}
    arguments = ", ".join(f"{key}={text(value)}" for key, value in given.items())
    return f"{str(node['_target_']).rpartition('.')[2]}({arguments})"


def describe(
    logger: Logger, model: nn.Module, run: Any, sets: dict[str, Any], changes: list[str], config: HardwareConfig
) -> None:
    """Log the sizes of model and data, device, batch sizes, steps, the loader, and `changes` (lines of transforms)."""
    hardware: Hardware = run.hardware
    parameters = sum(p.numel() for p in model.parameters())
    streams = {split for split, data in sets.items() if isinstance(data, Stream)}
    sizes = ", ".join(f"{split} {'a stream' if split in streams else f'{len(data):,}'}" for split, data in sets.items())
    micro = hardware.micro_batch_sizes
    batches = f"{amount(run.trainer.global_batch_size, 'sample')} a step = {run.world.size} x {sum(micro)}"
    if len(micro) > 1:
        batches += f" in {len(micro)} micro-batches of up to {micro[0]}"
    kind = class_name(model) if is_sharded(model) else type(model).__name__
    logger.say(f"{kind}, {parameters:,} parameters; samples: {sizes}")
    count = f"threads: {hardware.threads.count}" + f" ({hardware.threads.why})" * bool(hardware.threads.why)
    whose = "rank 0 " * (run.world.size > 1)
    place = f"{hardware.device}, {whose}on {hardware.binding}" if hardware.binding else hardware.device
    precision = hardware.precision + f" ({hardware.precision_why})" * bool(hardware.precision_why)
    logger.say(f"{place}, {precision}, {count}; {batches}; {amount(run.total_steps, 'step')}")
    counted = run.cost_per_sample.flop
    flop = (sum(counted.values()) if counted else math.inf) * sum(micro)  # per step, of this rank
    if hardware.device == "cuda" and run.world.size == 1 and not hardware.cuda_graph and flop < LAUNCHES_BOUND_FLOP:
        logger.say(
            f"a step has only {flop / 1e6:,.0f} MFLOP: launching its kernels takes longer than running them; "
            "set hardware.cuda_graph=true, which launches them together"
        )
    for line in options_without_effect(run, model, sets["train"], config):
        logger.warn(line)
    if is_sharded(model):
        logger.say(describe_shards(model))
        if note := padding_note(model):
            logger.warn(note)
    for line in [f"loader={run.train.why}", *getattr(sets["train"], "describe", list)(), *changes]:
        logger.say(line)


def options_without_effect(run: Any, model: nn.Module, train: Any, hardware: HardwareConfig) -> list[str]:
    """Return a line for each option that has no effect or that costs time or memory unexpectedly."""
    lines = []
    if hardware.deterministic and hardware.cudnn_benchmark:
        lines.append("hardware.cudnn_benchmark=true: has no effect with hardware.deterministic=true")
    tries = not hardware.deterministic and hardware.cudnn_benchmark is not False
    varies = hasattr(train, "collate") or any(-1 in shape for shape, _ in getattr(train, "spec", {}).values())
    convolves = any(isinstance(module, nn.modules.conv._ConvNd) for module in model.modules())
    if run.hardware.device == "cuda" and tries and varies and convolves:
        lines.append(
            "batches may differ in shape, and cuDNN benchmarks its convolutions again for each shape: "
            "set hardware.cudnn_benchmark=false"
        )
    if any(p.dtype == torch.float64 for p in model.parameters()):
        lines.append(
            "the model has float64 weights, which are slow on GPUs and need twice the memory: convert them with float()"
        )
    return lines
