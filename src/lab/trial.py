"""The preflight of one job of a sweep: build it, and measure time per step, time per evaluation and memory."""

from __future__ import annotations

import itertools
import math
import re
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from omegaconf import DictConfig

from lab.average import training_mode
from lab.builders import count_steps, make_callbacks
from lab.config import Config
from lab.evaluation import evaluate
from lab.experiment import Experiment, flop_of_sample
from lab.loaders import samples_of_epoch
from lab.loop import train_step
from lab.schedules.constant import Epochs
from lab.state import TrainState
from lab.statistics import SOME_ROWS
from samebits.data import Loader
from samebits.device import Hardware, resolve_auto
from samebits.parallel import peak_memory
from samebits.process import step_s
from samebits.saved import flat
from samebits.schema import parse_interval, plain
from samebits.sweeps import Trial
from samebits.world import World

# Config keys that change neither time nor memory of a step or an evaluation: names, seeds, rates, loggers, the
# monitored score, and the numbers of steps, evaluations and saves, which are multiplied later.
LEFT_OUT = re.compile(
    r"""name | seed | .*\.seed | resume | (sweep|logger|monitor|process)\..*
    | optim\.(objectives\.\w+\.)?(lr | weight_decay | lr_factors\..* | schedule\.(?!_).*)
    | trainer\.(max_steps|max_epochs|log_every|eval_every|save_every|keep_best|early_stop_patience)""",
    re.VERBOSE,
)


def try_out(cfg: DictConfig, known: Sequence[str]) -> dict[str, Any]:
    """Build the job and, if its shape (`shape_of`) is not in `known`, time its steps. Return the fields of Trial."""
    shape = shape_of(cfg)
    cfg = cfg.copy()
    cfg.hardware.compile = False
    of_rank = Experiment.of_first_rank(Config.of(cfg), most=SOME_ROWS)
    with of_rank.open() as data:
        config, sets = of_rank.config, data.sets
        epoch_samples = samples_of_epoch(data.train, sets["train"], config.trainer)
        steps = count_steps(config.trainer, epoch_samples)
        # fsdp and ddp are measured as one process with the whole model; dp keeps its replicas
        whole = of_rank.in_one_process()
        whole = replace(whole, config=config) if config.trainer.strategy == "dp" else whole
        model, task = whole.build_model_and_task()
        hardware, one = resolve_auto(whole.hardware, flop_of_sample(model, task)), whole.world
        hardware.set_arithmetic()
        per_epoch = epoch_samples / config.trainer.global_batch_size
        state, loss_modules = replace(whole, hardware=hardware).start_training(model, task, steps, Epochs(per_epoch))
        make_callbacks(config)
        batches = iter(data.train)
        first = next(batches)
        batch = ", ".join(f"{name} {tuple(value.shape)}" for name, value in first.items())
        took_s = eval_s = end_s = None
        if shape not in known:

            def step() -> None:
                train_step(loss_modules, state, steps_of, config.trainer, hardware, one)

            steps_of = itertools.chain([first], batches)
            for net in loss_modules.values():
                training_mode(net)
            took_s = step_s(step, one.device)
            limit = (config.trainer.max_eval_batches or sys.maxsize) * config.trainer.global_batch_size
            per_rank = hardware.eval_batch_size * hardware.num_procs
            took = {}
            for name, loader in data.eval_loaders.items():
                count = -(-min(len(sets[name]), limit) // per_rank)
                took[name] = count * _eval_s(state, loader, hardware, one, min(count, 2))
            eval_s = sum(seconds for name, seconds in took.items() if name.startswith("val"))
            end_s = sum(took.values())
        memory = int(peak_memory(one.device))
        every = parse_interval(config.trainer.eval_every, per_epoch)
        evaluations = math.ceil(steps / every) if every else 0  # including the one after the last step
        trial = Trial(shape, batch, steps, evaluations, took_s, eval_s, end_s, memory)
        return vars(trial)


def _eval_s(state: TrainState, loader: Loader, hardware: Hardware, world: World, count: int) -> float:
    """Return the seconds of one evaluation batch: the last of `count`."""
    if count:
        loader.first()  # starts its workers, which a run does only once
    batches, took_s = iter(loader), 0.0
    for number in range(count):
        began = time.perf_counter()
        one, size_and_real = itertools.islice(batches, 1), partial(_lengths_from, loader, number)
        evaluate(state.model, state.task, one, world, hardware, size_and_real)
        took_s = time.perf_counter() - began
    return took_s


def _lengths_from(loader: Loader, first: int, k: int) -> tuple[int, int]:
    return loader.size_and_real(first + k)


def shape_of(cfg: DictConfig) -> str:
    """Return a text that is equal for jobs whose steps and evaluations take the same time and memory: the config
    without the keys of LEFT_OUT. New keys are therefore included."""
    leaves = flat(plain(cfg))
    return repr({key: value for key, value in sorted(leaves.items()) if not LEFT_OUT.fullmatch(key)})
