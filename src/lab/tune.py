"""Values found by trying: the largest micro-batch, loader, threads, learning rate. src/tune.py shows them.

Each works in a process of its own (samebits.host.child) on one device, and changes nothing of the run. The first two
have one rank's share of the batch and the whole model; there is no other rank that could wait.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig
from torch import nn

from lab.average import training_mode
from lab.config import Config
from lab.evaluation import evaluate
from lab.experiment import Experiment, on_one_device
from lab.loaders import task_class
from lab.loop import train_step
from lab.make import count_steps
from lab.optim import Schedule
from lab.options import TrainerConfig
from lab.state import TrainState
from lab.trial import step_s
from samebits.data import loader_speeds
from samebits.device import Hardware, HardwareConfig, choose_device, count_processes
from samebits.errors import ConfigError
from samebits.host import cores_each, in_a_child, threads_each
from samebits.private import skip_dynamo_import
from samebits.profiling import is_out_of_memory, limit_memory
from samebits.schema import typed
from samebits.world import group_of_one, place

LR_RATES = [1e-6 * 10 ** (i / 20) for i in range(141)]  # to 10
LR_SMOOTH, LR_DIVERGED = 0.9, 3.0
SILENT_S = 5.0  # a search that takes longer says what it does
LOADER_S, LOADER_ROUNDS, ENOUGH = 0.5, 3, 1.2
THREAD_ROUNDS, THREAD_STEPS, NO_SLOWER = 10, 5, 1.1


def trial_of(config: Config) -> Experiment:
    """Return what a trial needs of a config, on one device: what rank 0 of the run has."""
    skip_dynamo_import()  # nothing is compiled here
    return Experiment.of_first_rank(config)


def begin(trial: Experiment) -> tuple[TrainState, dict[str, nn.Module]]:
    """Return the state and the nets of a new run, whole on one device; with trainer=ddp within DDP where the world is
    of several ranks, which needs `group_of_one`."""
    if trial.config.trainer.strategy != "ddp":
        trial = replace(trial, config=on_one_device(trial.config))
    model, task = trial.make_method()
    state, nets = trial.begin(model, task, count_steps(trial.config.trainer, len(trial.sets["train"])))
    for net in nets.values():
        training_mode(net)
    return state, nets


# ---- hardware.micro_batch_size=auto


def find_micro_batch(cfg: DictConfig) -> tuple[int, str]:
    """Return the largest hardware.micro_batch_size that fits, for a checked config, and a line that says so. Before the
    ranks start: all read the same config, and so does a resume."""
    key = "hardware.micro_batch_size=auto"
    size, tried = in_a_child(key, largest_micro_batch, cfg)
    failed = min((other for other, fits in tried.items() if not fits), default=None)
    return size, f"{key}: {size} samples fit{f', {failed} do not' if failed else ', a whole share'}"


def largest_micro_batch(cfg: DictConfig) -> tuple[int, dict[int, bool]]:
    """Returns (size, {size tried: whether it fits}), of the sizes that a rank's share of a global batch is cut into."""
    check_can_try(cfg)
    trial = trial_of(Config.of(cfg))
    with group_of_one(trial.world):
        return largest_of(trial)


def largest_of(trial: Experiment) -> tuple[int, dict[int, bool]]:
    share = sum(trial.machine.micro_batch_sizes)
    limit_memory(trial.world.device, place.ranks_here(trial.world.size))
    tried: dict[int, bool] = {}
    began = time.monotonic()

    def fits(parts: int) -> bool:
        size = -(-share // parts)
        if size not in tried:
            if time.monotonic() - began > SILENT_S:
                print(f"hardware.micro_batch_size: trying {size}", file=sys.stderr, flush=True)
            tried[size] = step_fits(trial, share, parts)
        return tried[size]

    fail, good = 0, 1
    while not fits(good):
        if good == share:
            raise ConfigError("one sample at a time finds no memory - a smaller model, or activation checkpointing")
        if trial.config.trainer.ddp.static_graph:
            raise ConfigError(
                f"a rank's whole share, {share} samples, finds no memory, and trainer.ddp.static_graph=true takes no "
                "smaller micro-batches - leave it out"
            )
        fail, good = good, min(2 * good, share)
    while good - fail > 1:  # fail parts do not fit, good parts do
        middle = (fail + good) // 2
        fail, good = (fail, middle) if fits(middle) else (middle, good)
    return -(-share // good), tried


def check_can_try(cfg: DictConfig) -> None:
    if cfg.trainer.strategy == "dp":
        raise ConfigError("it is tried on one GPU, and trainer=dp uses several - use trainer=ddp, or give a number")
    if cfg.trainer.strategy == "fsdp" and len_ranks(cfg) > 1:
        raise ConfigError(
            "it is tried in one process, and trainer=fsdp shares the model among several - give a number; the largest "
            "that fits is found by runs of two steps (trainer.max_steps=2), halving it where one finds no memory"
        )
    device = choose_device(typed(HardwareConfig, cfg.hardware, "hardware"))
    if device == "mps" or (device == "cpu" and sys.platform != "linux"):
        raise ConfigError(f"nothing limits the memory of a trial on {device} here - give a number, or null")


def step_fits(trial: Experiment, share: int, parts: int) -> bool:
    """Two steps, the second with the optimizer's state, and a batch of evaluation. Two micro-batches are enough: the
    second finds the gradients of the first."""
    sizes = [share // parts + (i < share % parts) for i in range(parts)]
    evaluated = trial.config.hardware.eval_batch_size or sizes[0]
    whole = replace(trial.machine, micro_batch_sizes=sizes, eval_batch_size=evaluated)
    machine = replace(whole, micro_batch_sizes=sizes[:2])
    try:
        two_steps(trial, whole, machine)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()  # what the traceback held
        if trial.world.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


def two_steps(trial: Experiment, whole: Hardware, machine: Hardware) -> None:
    one, split = trial.this_process, next((split for split in trial.sets if split != "train"), "train")
    trial = replace(trial, machine=whole, sets={name: trial.sets[name] for name in ("train", split)})
    with trial.open() as data:
        state, nets = begin(trial)
        trainer, batches = without_skipping(state, trial.config.trainer), iter(data.train)
        for _ in range(2):
            train_step(nets, state, batches, trainer, machine, one)
        for scored in data.others.values():
            evaluate(state.model, state.task, itertools.islice(scored, 1), one, machine, scored.lengths)


def without_skipping(state: TrainState, trainer: TrainerConfig) -> TrainerConfig:
    """Have each step of a trial move the weights; returns the options to call train_step with.

    A step that is left out, as gradients are not finite, allocates no state of the optimizer. In a trial each may be:
    fp16's first steps overflow."""
    state.scaler = None
    return replace(trainer, non_finite="stop")


# ---- data.loader, data.num_workers


def measure_loaders(cfg: DictConfig) -> tuple[float, dict[tuple[str, int], float]]:
    """Returns (samples/s that the training steps of a rank take, {(data.loader, data.num_workers): samples/s that it
    delivers alone}), medians of measurements in turns."""
    trial = trial_of(Config.of(cfg))
    given, cores = trial.config.data.num_workers, cores_each(trial.machine.num_procs)
    first = loader_speeds(trial.sets["train"], cores, given, partial(delivered, trial))
    speeds_of = {way: [speed] for way, speed in first.items()}
    for _ in range(LOADER_ROUNDS - 1):
        for way in first:
            speeds_of[way].append(delivered(trial, *way))
    with trial.train_loader() as loader:
        batches = list(itertools.islice(loader, len(trial.machine.micro_batch_sizes)))
    again = itertools.cycle(batches)
    with group_of_one(trial.world):
        state, nets = begin(trial)
        trainer = without_skipping(state, trial.config.trainer)

        def step() -> None:
            train_step(nets, state, again, trainer, trial.machine, trial.this_process)

        taken = sum(trial.machine.micro_batch_sizes) / step_s(step, trial.world.device)
    return taken, {way: statistics.median(speeds) for way, speeds in speeds_of.items()}


def delivered(trial: Experiment, kind: str, workers: int) -> float:
    """Samples/s of the loader alone, once it runs."""
    data = replace(trial.config.data, loader=kind, num_workers="auto" if kind == "device" else workers)
    config = replace(trial.config, data=data)
    with replace(trial, config=config).train_loader() as loader:
        batches = iter(loader)
        size = len(next(iter(next(batches).values())))  # the first waits for workers to start
        began, samples = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < LOADER_S or not samples:
            samples += len(next(iter(next(batches).values())))
            if trial.world.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        assert size
        return samples / max(passed, 1e-9)


def best_loader(taken: float, speeds: dict[tuple[str, int], float]) -> tuple[str, int]:
    """The way with the fewest workers that delivers ENOUGH times what the steps take; else the fastest."""
    enough = [way for way, speed in speeds.items() if speed >= ENOUGH * taken]
    if enough:
        return min(enough, key=lambda way: (way[0] == "workers", way[1], -speeds[way]))
    return max(speeds, key=speeds.__getitem__)


# ---- hardware.num_threads


def measure_threads(cfg: DictConfig) -> dict[int, float]:
    """{CPU threads of a rank: seconds of a training step}, the shortest of several, measured in turns: other processes
    only lengthen a step."""
    trial = trial_of(Config.of(cfg))
    if trial.world.device.type != "cpu":
        raise ConfigError(f"tune threads: the steps are computed on {trial.world.device.type}; add hardware=cpu")
    most = threads_each(place.ranks_here(trial.world.size))
    counts = sorted({most, *(1 << k for k in range(most.bit_length()))})
    with trial.train_loader() as loader:
        again = itertools.cycle(list(itertools.islice(loader, len(trial.machine.micro_batch_sizes))))
    with group_of_one(trial.world):
        state, nets = begin(trial)
        trainer = without_skipping(state, trial.config.trainer)
        took_s = dict.fromkeys(counts, math.inf)
        for _ in range(THREAD_ROUNDS):
            for count in counts:
                torch.set_num_threads(count)
                for _ in range(THREAD_STEPS):
                    began = time.perf_counter()
                    train_step(nets, state, again, trainer, trial.machine, trial.this_process)
                    took_s[count] = min(took_s[count], time.perf_counter() - began)
    return took_s


def best_threads(took_s: dict[int, float]) -> int:
    """The fewest that take at most NO_SLOWER times the shortest: cores that others can use."""
    return min(count for count, seconds in took_s.items() if seconds <= NO_SLOWER * min(took_s.values()))


# ---- optim.lr


def lr_range_test(cfg: DictConfig) -> list[tuple[float, float]]:
    """[(learning rate, loss)] of a run whose rate goes through LR_RATES, one a step, until the loss
    diverges (Smith 2017, Cyclical Learning Rates, section 3.3). The global batch is the run's."""
    cfg = cfg.copy()
    num_procs = len_ranks(cfg)
    if task_class(Config.of(cfg)).across_samples:
        cfg.hardware.micro_batch_size = None  # the samples of all ranks are compared, here on one device
    elif cfg.hardware.micro_batch_size in (None, "auto"):
        cfg.hardware.micro_batch_size = max(1, cfg.trainer.global_batch_size // num_procs)
    trial = trial_of(on_one_device(Config.of(cfg)))
    try:
        return rates_and_losses(trial)
    except Exception as error:
        if num_procs == 1 or not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"the test has the whole model, and what {num_procs} ranks compute, on one device, which finds no memory - "
            "a smaller hardware.micro_batch_size, or the test with a smaller model"
        ) from error


def rates_and_losses(trial: Experiment) -> list[tuple[float, float]]:
    state, nets = begin(trial)
    state.schedule = ramp(state)
    points: list[tuple[float, float]] = []
    with trial.train_loader() as loader:
        batches = iter(loader)
        for lr in LR_RATES:
            values = train_step(nets, state, batches, trial.config.trainer, trial.machine, trial.this_process)
            state.step += 1
            loss = statistics.mean(float(v) for name, v in values.items() if name.rpartition("/")[2] == "loss")
            points.append((lr, loss))
            if diverged(points):
                break
    return points


def len_ranks(cfg: DictConfig) -> int:
    return count_processes(
        typed(HardwareConfig, cfg.hardware, "hardware"), typed(TrainerConfig, cfg.trainer, "trainer")
    )


def ramp(state: TrainState) -> Schedule:
    """A schedule over LR_RATES; groups keep what they have of it (lr_factor, an optimizer's own rate)."""
    made = Schedule(state.optimizer, lambda step, total: LR_RATES[min(step, total - 1)], len(LR_RATES))
    made.peaks, made.peak = [peak / state.schedule.peak for peak in state.schedule.peaks], 1.0
    return made


def smoothed(losses: list[float]) -> Iterator[float]:
    """Exponential moving average, corrected for its begin."""
    mean = 0.0
    for i, loss in enumerate(losses, 1):
        mean = LR_SMOOTH * mean + (1 - LR_SMOOTH) * loss
        yield mean / (1 - LR_SMOOTH**i)


def diverged(points: list[tuple[float, float]]) -> bool:
    means = list(smoothed([loss for _, loss in points]))
    if not math.isfinite(means[-1]):
        return True
    # measured by the fall so far, so that losses of any sign will do
    low, first = min(means), means[0]
    return len(means) > 20 and means[-1] > low + LR_DIVERGED * max(first - low, 0.05 * abs(first))


def suggested_lr(points: list[tuple[float, float]]) -> float:
    """A tenth of the rate at which the smoothed loss is least, with two digits."""
    means = list(smoothed([loss for _, loss in points]))
    finite = [(mean, lr) for mean, (lr, _) in zip(means, points) if math.isfinite(mean)]
    if not finite:
        raise ConfigError("optim.lr: the loss is not finite from the first step on")
    return float(f"{min(finite)[1] / 10:.1e}")


STAGES: dict[str, Callable[..., Any]] = {
    "micro_batch": largest_micro_batch,
    "loader": measure_loaders,
    "threads": measure_threads,
    "lr": lr_range_test,
}
