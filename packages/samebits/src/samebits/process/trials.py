"""Values found by trying: the largest micro-batch, loader, threads, learning rate.

Each works in a process of its own (samebits.children) on one device, and changes nothing of the run. The first two have
one rank's share of the batch and the whole model; there is no other rank that could wait.
"""

from __future__ import annotations

import gc
import itertools
import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import torch

from samebits.data import Loader, loader_speeds
from samebits.device import Hardware, choose_device, count_processes
from samebits.errors import ConfigError
from samebits.host import cores_each, threads_each
from samebits.process.options import Options
from samebits.profiling import is_out_of_memory, limit_memory
from samebits.torch_private import skip_dynamo_import
from samebits.world import World, dist_env, group_of_one

LR_SMOOTH, LR_DIVERGED = 0.9, 3.0
SILENT_S = 5.0  # a search that takes longer says what it does
LOADER_S, LOADER_ROUNDS, ENOUGH = 0.5, 3, 1.2
THREAD_ROUNDS, THREAD_STEPS, NO_SLOWER = 10, 5, 1.1
TIMED_STEPS = 3


class Trial(Protocol):
    """What rank 0 of a run has, on one device.

    train_set: of the training. loader: opens a loader of its batches; kind and workers as data.loader and
    data.num_workers. make_step: builds the model and returns a step, which takes its micro-batches from an iterator.
    two_steps: with `machine`'s micro-batches, and an evaluation with those of `whole`.
    """

    @property
    def config(self) -> Any: ...
    @property
    def machine(self) -> Hardware: ...
    @property
    def world(self) -> World: ...
    @property
    def train_set(self) -> Any: ...
    def loader(self, kind: str | None = None, workers: int | str = "auto") -> Loader: ...
    def make_step(self) -> Callable[[Iterator[Any]], Any]: ...
    def two_steps(self, whole: Hardware, machine: Hardware) -> None: ...


def run_trial(stage: str, config: Options, open_trial: Callable[[], Trial]) -> Any:
    """Return what the stage's function returns: micro_batch, loader, threads."""
    skip_dynamo_import()  # nothing is compiled in a trial
    if stage == "micro_batch":
        return largest_micro_batch(config, open_trial)
    return {"loader": measure_loaders, "threads": measure_threads}[stage](open_trial())


# ---- hardware.micro_batch_size=auto


def largest_micro_batch(config: Options, open_trial: Callable[[], Trial]) -> tuple[int, dict[int, bool]]:
    """Returns (size, {size tried: whether it fits}), of the sizes that a rank's share of a global batch is cut into."""
    check_can_try(config)
    trial = open_trial()
    with group_of_one(trial.world):
        return largest_of(trial)


def largest_of(trial: Trial) -> tuple[int, dict[int, bool]]:
    share = sum(trial.machine.micro_batch_sizes)
    limit_memory(trial.world.device, dist_env.ranks_here(trial.world.size))
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


def check_can_try(config: Options) -> None:
    if config.trainer.strategy == "dp":
        raise ConfigError("it is tried on one GPU, and trainer=dp uses several - use trainer=ddp, or give a number")
    if config.trainer.strategy == "fsdp" and count_processes(config.hardware, config.trainer) > 1:
        raise ConfigError(
            "it is tried in one process, and trainer=fsdp shares the model among several - give a number; the largest "
            "that fits is found by runs of two steps, halving it where one finds no memory"
        )
    device = choose_device(config.hardware)
    if device == "mps" or (device == "cpu" and sys.platform != "linux"):
        raise ConfigError(f"nothing limits the memory of a trial on {device} here - give a number, or null")


def step_fits(trial: Trial, share: int, parts: int) -> bool:
    """Two steps, the second with the optimizer's state, and a batch of evaluation. Two micro-batches are enough: the
    second finds the gradients of the first."""
    sizes = [share // parts + (i < share % parts) for i in range(parts)]
    evaluated = trial.config.hardware.eval_batch_size or sizes[0]
    whole = replace(trial.machine, micro_batch_sizes=sizes, eval_batch_size=evaluated)
    machine = replace(whole, micro_batch_sizes=sizes[:2])
    try:
        trial.two_steps(whole, machine)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()  # what the traceback held
        if trial.world.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


# ---- data.loader, data.num_workers


def measure_loaders(trial: Trial) -> tuple[float, dict[tuple[str, int], float]]:
    """Returns (samples/s that the training steps of a rank take, {(data.loader, data.num_workers): samples/s that it
    delivers alone}), medians of measurements in turns."""
    given, cores = trial.config.data.num_workers, cores_each(trial.machine.num_procs)
    first = loader_speeds(trial.train_set, cores, given, partial(delivered, trial))
    speeds_of = {way: [speed] for way, speed in first.items()}
    for _ in range(LOADER_ROUNDS - 1):
        for way in first:
            speeds_of[way].append(delivered(trial, *way))
    again = held_batches(trial)
    with group_of_one(trial.world):
        step = partial(trial.make_step(), again)
        taken = sum(trial.machine.micro_batch_sizes) / step_s(step, trial.world.device)
    return taken, {way: statistics.median(speeds) for way, speeds in speeds_of.items()}


def held_batches(trial: Trial) -> Iterator[Any]:
    """The micro-batches of one step, again and again."""
    with trial.loader() as loader:
        return itertools.cycle(list(itertools.islice(loader, len(trial.machine.micro_batch_sizes))))


def delivered(trial: Trial, kind: str, workers: int) -> float:
    """Samples/s of the loader alone, once it runs."""
    with trial.loader(kind, "auto" if kind == "device" else workers) as loader:
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


def measure_threads(trial: Trial) -> dict[int, float]:
    """{CPU threads of a rank: seconds of a training step}, the shortest of several, measured in turns: other processes
    only lengthen a step."""
    if trial.world.device.type != "cpu":
        raise ConfigError(f"tune threads: the steps are computed on {trial.world.device.type}; add hardware=cpu")
    most = threads_each(dist_env.ranks_here(trial.world.size))
    counts = sorted({most, *(1 << k for k in range(most.bit_length()))})
    again = held_batches(trial)
    with group_of_one(trial.world):
        step = trial.make_step()
        took_s = dict.fromkeys(counts, math.inf)
        for _ in range(THREAD_ROUNDS):
            for count in counts:
                torch.set_num_threads(count)
                for _ in range(THREAD_STEPS):
                    began = time.perf_counter()
                    step(again)
                    took_s[count] = min(took_s[count], time.perf_counter() - began)
    return took_s


def best_threads(took_s: dict[int, float]) -> int:
    """The fewest that take at most NO_SLOWER times the shortest: cores that others can use."""
    return min(count for count, seconds in took_s.items() if seconds <= NO_SLOWER * min(took_s.values()))


# ---- the learning rate


Points = list[tuple[float, float]]  # (learning rate, loss)


def range_test(
    config: Options, whole_batch: bool, rates: Callable[[int | None], Iterable[tuple[float, float]]]
) -> Points:
    """Return what `rates` yields until the loss diverges. It is given the micro-batch that computes the global batch on
    one device: None for the whole (whole_batch), where the samples of all ranks are compared."""
    skip_dynamo_import()
    points: Points = []
    num_procs = count_processes(config.hardware, config.trainer)
    size = config.hardware.micro_batch_size
    if whole_batch:
        size = None
    elif size in (None, "auto"):
        size = max(1, config.trainer.global_batch_size // num_procs)
    try:
        for point in rates(size):  # type: ignore[arg-type]
            points.append(point)
            if diverged(points):
                break
        return points
    except Exception as error:
        if num_procs == 1 or not is_out_of_memory(error):
            raise
        raise ConfigError(
            f"the test has the whole model, and what {num_procs} ranks compute, on one device, which finds no memory - "
            "a smaller hardware.micro_batch_size, or the test with a smaller model"
        ) from error


def smoothed(losses: list[float]) -> Iterator[float]:
    """Exponential moving average, corrected for its begin."""
    mean = 0.0
    for i, loss in enumerate(losses, 1):
        mean = LR_SMOOTH * mean + (1 - LR_SMOOTH) * loss
        yield mean / (1 - LR_SMOOTH**i)


def diverged(points: Points) -> bool:
    means = list(smoothed([loss for _, loss in points]))
    if not math.isfinite(means[-1]):
        return True
    # measured by the fall so far, so that losses of any sign will do
    low, first = min(means), means[0]
    return len(means) > 20 and means[-1] > low + LR_DIVERGED * max(first - low, 0.05 * abs(first))


def suggested_lr(points: Points) -> float:
    """A tenth of the rate at which the smoothed loss is least, with two digits."""
    means = list(smoothed([loss for _, loss in points]))
    finite = [(mean, lr) for mean, (lr, _) in zip(means, points) if math.isfinite(mean)]
    if not finite:
        raise ConfigError("the learning rate: the loss is not finite from the first step on")
    return float(f"{min(finite)[1] / 10:.1e}")


# ---- times


def step_s(step: Callable[[], None], device: torch.device) -> float:
    """Seconds of a step, after one to warm up."""
    step()  # warm-up: the first step allocates memory
    synchronize(device)
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / TIMED_STEPS


def synchronize(device: Any) -> None:
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
