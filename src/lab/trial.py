"""What a sweep asks before it starts: does this job build, how long does a step of it take, with how much memory."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig

from engine.config.schema import parse_interval
from engine.errors import ConfigError
from engine.ranks import hardware
from engine.ranks.balance import peak_memory
from engine.ranks.ddp import wrap
from engine.ranks.distributed import World
from engine.ranks.seed import seed_everything
from engine.ranks.threads import measure
from engine.sweeps.preflight import Trial
from lab import build
from lab.loop import evaluate, forward_loss, train_step

TIMED_STEPS = 3


def try_out(cfg: DictConfig, known: Sequence[str]) -> dict[str, Any]:
    """Build what the config names; run a batch where no job of its shape has."""
    config = build.Config.of(cfg)
    machine = hardware.resolve(config.hardware, config.trainer)
    hardware.apply(config.hardware, machine)
    device = torch.device(machine.device)
    world = World(0, machine.num_procs, 0, device)
    sets = {split: build.make_dataset(config.dataset, split) for split in ("train", "val", "test")}
    if sets["train"] is None:
        raise ConfigError("data.splits.train=null: there is nothing to train on; name the group that holds the split")
    train = build.make_train_loader(config, machine, sets["train"], world, 0)
    val, test = (build.make_eval_loader(config, machine, sets[split], world) for split in ("val", "test"))
    try:
        seed_everything(cfg.seed)
        model = build.make_model(config).to(device)
        task = build.make_task(config, device)
        steps = build.count_steps(config.trainer, len(sets["train"]))
        net = wrap(model, World(0, 1, 0, device), config.trainer)  # dp's copies; else the model itself
        # one process, which holds the whole of a model that fsdp would cut
        config = replace(config, trainer=replace(config.trainer, strategy="single"))
        state, settings = build.make_state(config, machine, model, steps, World(0, 1, 0, device))
        build.make_callbacks(config)
        batches = iter(train)
        first = next(batches)
        shape = shape_of(model, first, [machine, config.trainer.ema_decay, config.optimizer["_target_"]])
        batch = ", ".join(f"{name} {tuple(value.shape)}" for name, value in first.items())
        step_s = eval_s = None
        if shape not in known:
            if not machine.threads.why:
                most = machine.threads.most
                autocast = hardware.autocast(machine)
                torch.set_num_threads(measure(most, model, task, lambda: first, forward_loss, autocast).count)
            step_s = _step_s(net, state, task, itertools.chain([first], batches), settings, device)
            size = min(
                len(sets["val"] or ()),
                (config.trainer.max_eval_batches or sys.maxsize) * config.trainer.global_batch_size,
            )
            num_batches = -(-size // (machine.eval_batch_size * machine.num_procs))
            eval_s = num_batches * _eval_batch_s(model, task, val, settings, device)
        memory = int(peak_memory(device))
        per_epoch = len(sets["train"]) / config.trainer.global_batch_size
        every = parse_interval(config.trainer.eval_every, per_epoch)
        evaluations = steps // every if every else 0
        trial = Trial(shape, batch, steps, evaluations, step_s, eval_s, memory, torch.get_num_threads())
        return vars(trial)
    finally:
        for loader in (train, val, test):
            if loader is not None:
                loader.close()


def _step_s(model: Any, state: Any, task: Any, batches: Iterator[Any], settings: Any, device: Any) -> float:
    train_step(model, state, task, batches, settings)  # the first one allocates
    synchronize(device)
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        train_step(model, state, task, batches, settings)
    synchronize(device)
    return (time.perf_counter() - began) / TIMED_STEPS


def _eval_batch_s(model: Any, task: Any, val: Any, settings: Any, device: Any) -> float:
    if val is None:
        return 0.0
    began = time.perf_counter()
    evaluate(model, task, itertools.islice(iter(val), 1), World(0, 1, 0, device), settings.autocast, val.lengths)
    return time.perf_counter() - began


def synchronize(device: Any) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def shape_of(model: Any, batch: dict[str, Any], more: Sequence[Any]) -> str:
    """Equal for jobs whose steps take the same time and memory."""
    parameters = [tuple(p.shape) for p in model.parameters()]
    return repr((type(model), parameters, [(k, v.shape, v.dtype) for k, v in batch.items()], *more))
