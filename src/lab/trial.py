"""A sweep's preflight of one job: build it, and measure the time of a step and of an evaluation, and the memory."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from omegaconf import DictConfig

from engine.config import parse_interval
from engine.data import Loader
from engine.ranks import (
    Hardware,
    World,
    apply_hardware,
    make_autocast,
    measure_threads,
    own_device,
    peak_memory,
    resolve_hardware,
    seed_everything,
)
from engine.runs import Logger
from engine.sweeps import Trial
from lab import make
from lab.loop import Objective, evaluate, train_step
from lab.state import TrainState

TIMED_STEPS = 3


def try_out(cfg: DictConfig, known: Sequence[str]) -> dict[str, Any]:
    """Build the job and, unless its shape (`shape_of`) is in `known`, time its steps. Returns Trial's fields."""
    config = make.Config.of(cfg)
    config = replace(config, hardware=replace(config.hardware, compile=False))
    machine = resolve_hardware(config.hardware, config.trainer)
    apply_hardware(config.hardware, machine)
    device = own_device(machine.device)
    world = World(0, machine.num_procs, 0, device)
    one = World(0, 1, 0, device)
    sets = make.make_datasets(config)
    train = make.make_train_loader(config, machine, sets["train"], world, 0)
    others = [name for name in sets if name != "train"]
    loaders = {name: make.make_eval_loader(config, machine, sets[name], world) for name in others}
    try:
        seed_everything(cfg.seed)
        model, task = make.make_method(config, machine, begins=True, logger=Logger())
        steps = make.count_steps(config.trainer, len(sets["train"]))
        # one process with the whole model, for fsdp and ddp too; dp keeps its replicas
        strategy = config.trainer.strategy if config.trainer.strategy == "dp" else "single"
        config = replace(config, trainer=replace(config.trainer, strategy=strategy))
        state = make.make_state(config, machine, model, task, steps, one)
        nets = make.make_nets(config, machine, state, one)
        make.make_callbacks(config)
        batches = iter(train)
        first = next(batches)
        shape = shape_of(state, first, [machine, config.trainer.ema_decay, config.optimizer["_target_"]])
        batch = ", ".join(f"{name} {tuple(value.shape)}" for name, value in first.items())
        took_s = eval_s = None
        if shape not in known:
            if not machine.threads.why:
                objective = Objective(model, task, next(iter(nets)))
                found = measure_threads(machine.threads.most, objective, lambda: first, make_autocast(machine))
                torch.set_num_threads(found.count)

            def step() -> None:
                train_step(nets, state, steps_of, config.trainer, machine, one)

            steps_of = itertools.chain([first], batches)
            for net in nets.values():
                net.train()
            took_s = step_s(step, device)
            vals = {name: loader for name, loader in loaders.items() if name.startswith("val")}
            limit = (config.trainer.max_eval_batches or sys.maxsize) * config.trainer.global_batch_size
            per_rank = machine.eval_batch_size * machine.num_procs
            eval_s = 0.0
            for name, loader in vals.items():
                eval_s += -(-min(len(sets[name]), limit) // per_rank) * _eval_s(state, loader, machine, one)
        memory = int(peak_memory(device))
        per_epoch = len(sets["train"]) / config.trainer.global_batch_size
        every = parse_interval(config.trainer.eval_every, per_epoch)
        evaluations = steps // every if every else 0
        trial = Trial(shape, batch, steps, evaluations, took_s, eval_s, memory, torch.get_num_threads())
        return vars(trial)
    finally:
        for loader in (train, *loaders.values()):
            loader.close()


def step_s(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of a step, after one to warm up."""
    step()  # warm-up: the first step allocates memory
    synchronize(device)
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / TIMED_STEPS


def _eval_s(state: TrainState, loader: Loader, machine: Hardware, world: World) -> float:
    """Seconds for one evaluation batch."""
    began = time.perf_counter()
    evaluate(state.model, state.task, itertools.islice(iter(loader), 1), world, machine, loader.lengths)
    return time.perf_counter() - began


def synchronize(device: Any) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()


def shape_of(state: TrainState, batch: dict[str, Any], more: Sequence[Any]) -> str:
    """Returns a text that is equal for jobs whose steps take the same time and memory."""
    parameters = [tuple(p.shape) for module in (state.model, state.task) for p in module.parameters()]
    kinds = type(state.model), type(state.task)
    return repr((kinds, parameters, [(k, v.shape, v.dtype) for k, v in batch.items()], *more))
