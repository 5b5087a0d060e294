"""Find values by measurements: the largest micro-batch, the loader, the threads, the learning rate.

Each measurement runs in a child process (samebits.children) on one device, and does not change the run. The first two
use one rank's share of the batch and the whole model, without other ranks.
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
SILENT_S = 5.0  # a search that takes longer prints its progress
LOADER_S, LOADER_ROUNDS, ENOUGH = 0.5, 3, 1.2
THREAD_ROUNDS, THREAD_STEPS, NO_SLOWER = 10, 5, 1.1
TIMED_STEPS = 3


class Trial(Protocol):
    """The parts of rank 0 of a run, on one device, that measurements need."""

    @property
    def config(self) -> Any:
        """Return the config of the run."""

    @property
    def hardware(self) -> Hardware:
        """Return the resolved hardware of rank 0."""

    @property
    def world(self) -> World:
        """Return the world of rank 0."""

    @property
    def train_set(self) -> Any:
        """Return the training set."""

    def loader(self, kind: str | None = None, workers: int | str = "auto") -> Loader:
        """Open a loader of the training batches. kind, workers: data.loader, data.num_workers."""

    def make_step(self) -> Callable[[Iterator[Any]], Any]:
        """Build the model and return a training step, which takes its micro-batches from an iterator."""

    def two_steps(self, whole: Hardware, hardware: Hardware) -> None:
        """Run two steps with the micro-batches of `hardware` and one evaluation batch of `whole`."""


def run_trial(stage: str, config: Options, open_trial: Callable[[], Trial]) -> Any:
    """Return the result of a stage. stage: micro_batch, loader or threads."""
    skip_dynamo_import()  # nothing is compiled in a trial
    if stage == "micro_batch":
        return largest_micro_batch(config, open_trial)
    return {"loader": measure_loaders, "threads": measure_threads}[stage](open_trial())


# ---- hardware.micro_batch_size=auto


def largest_micro_batch(config: Options, open_trial: Callable[[], Trial]) -> tuple[int, dict[int, bool]]:
    """Return (largest size that fits, {size tried: whether it fits}) of the micro-batch.

    Raise ConfigError if no size fits.
    """
    check_can_try(config)
    trial = open_trial()
    with group_of_one(trial.world):
        return largest_of(trial)


def largest_of(trial: Trial) -> tuple[int, dict[int, bool]]:
    """Search the smallest number of micro-batches per rank that fits. Return as `largest_micro_batch`."""
    share = sum(trial.hardware.micro_batch_sizes)
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
            raise ConfigError(
                "out of memory with one sample per micro-batch - use a smaller model, or activation checkpointing"
            )
        if trial.config.trainer.ddp.static_graph:
            raise ConfigError(
                f"out of memory with the whole batch of a rank, {share} samples, and trainer.ddp.static_graph=true "
                "excludes smaller micro-batches - remove it"
            )
        fail, good = good, min(2 * good, share)
    while good - fail > 1:  # fail parts do not fit, good parts do
        middle = (fail + good) // 2
        fail, good = (fail, middle) if fits(middle) else (middle, good)
    return -(-share // good), tried


def check_can_try(config: Options) -> None:
    """Raise ConfigError if hardware.micro_batch_size=auto is not supported with this strategy or device."""
    if config.trainer.strategy == "dp":
        raise ConfigError(
            "the measurement uses one GPU, but trainer=dp uses several - use trainer=ddp, or give a number"
        )
    if config.trainer.strategy == "fsdp" and count_processes(config.hardware, config.trainer) > 1:
        raise ConfigError(
            "the measurement uses one process, but trainer=fsdp shards the model - give a number; to find the "
            "largest, run two steps, and halve it if the run is out of memory"
        )
    device = choose_device(config.hardware)
    if device == "mps" or (device == "cpu" and sys.platform != "linux"):
        raise ConfigError(f"the memory of the measurement cannot be limited on {device} here - give a number, or null")


def step_fits(trial: Trial, share: int, parts: int) -> bool:
    """Return whether two steps and an evaluation batch fit into memory. parts: micro-batches of the share.

    The second step includes the optimizer's state. Two micro-batches per step are enough, because the second one runs
    with the gradients of the first in memory.
    """
    sizes = [share // parts + (i < share % parts) for i in range(parts)]
    evaluated = trial.config.hardware.eval_batch_size or sizes[0]
    whole = replace(trial.hardware, micro_batch_sizes=sizes, eval_batch_size=evaluated)
    hardware = replace(whole, micro_batch_sizes=sizes[:2])
    try:
        trial.two_steps(whole, hardware)
    except Exception as error:
        if not is_out_of_memory(error):
            raise
        return False
    finally:
        gc.collect()  # frees tensors of the traceback
        if trial.world.device.type == "cuda":
            torch.cuda.empty_cache()
    return True


# ---- data.loader, data.num_workers


def measure_loaders(trial: Trial) -> tuple[float, dict[tuple[str, int], float]]:
    """Return (samples/s of the training steps of a rank, {(data.loader, data.num_workers): samples/s of the loader}).

    The loader runs without training. Its speeds are medians of alternating measurements.
    """
    given, cores = trial.config.data.num_workers, cores_each(trial.hardware.num_procs)
    first = loader_speeds(trial.train_set, cores, given, partial(delivered, trial))
    speeds_of = {way: [speed] for way, speed in first.items()}
    for _ in range(LOADER_ROUNDS - 1):
        for way in first:
            speeds_of[way].append(delivered(trial, *way))
    again = held_batches(trial)
    with group_of_one(trial.world):
        step = partial(trial.make_step(), again)
        taken = sum(trial.hardware.micro_batch_sizes) / step_s(step, trial.world.device)
    return taken, {way: statistics.median(speeds) for way, speeds in speeds_of.items()}


def held_batches(trial: Trial) -> Iterator[Any]:
    """Return an iterator that repeats the micro-batches of one step."""
    with trial.loader() as loader:
        return itertools.cycle(list(itertools.islice(loader, len(trial.hardware.micro_batch_sizes))))


def delivered(trial: Trial, kind: str, workers: int) -> float:
    """Return the samples/s of the loader without training, after its first batch."""
    with trial.loader(kind, "auto" if kind == "device" else workers) as loader:
        batches = iter(loader)
        next(batches)  # the first batch waits for the start of the workers
        began, samples = time.perf_counter(), 0
        while (passed := time.perf_counter() - began) < LOADER_S or not samples:
            samples += len(next(iter(next(batches).values())))
            if trial.world.device.type == "cuda":
                torch.cuda.current_stream().synchronize()
        return samples / max(passed, 1e-9)


def best_loader(taken: float, speeds: dict[tuple[str, int], float]) -> tuple[str, int]:
    """Return the (kind, workers) with the fewest workers and >= ENOUGH times the speed of the steps, or the fastest."""
    enough = [way for way, speed in speeds.items() if speed >= ENOUGH * taken]
    if enough:
        return min(enough, key=lambda way: (way[0] == "workers", way[1], -speeds[way]))
    return max(speeds, key=speeds.__getitem__)


# ---- hardware.num_threads


def measure_threads(trial: Trial) -> dict[int, float]:
    """Return {CPU threads of a rank: seconds of a training step}. Raise ConfigError if the steps run on a GPU.

    The measurements alternate between the numbers; the shortest time counts, because other processes can only slow it
    down.
    """
    if trial.world.device.type != "cpu":
        raise ConfigError(
            f"tune threads: requires training on the CPU, got {trial.world.device.type}; add hardware=cpu"
        )
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
    """Return the fewest threads that take at most NO_SLOWER times the shortest time, to leave cores to others."""
    return min(count for count, seconds in took_s.items() if seconds <= NO_SLOWER * min(took_s.values()))


# ---- the learning rate


Points = list[tuple[float, float]]  # (learning rate, loss)


def range_test(
    config: Options, whole_batch: bool, rates: Callable[[int | None], Iterable[tuple[float, float]]]
) -> Points:
    """Return the (learning rate, loss) of `rates` until the loss diverges. Raise ConfigError if out of memory.

    rates: called with the micro-batch size to compute the global batch on one device. whole_batch: call it with
    None, which is the whole batch, for losses that compare the samples of all ranks.
    """
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
            f"out of memory: the test runs the whole model and the batch of all {num_procs} ranks on one device - "
            "use a smaller hardware.micro_batch_size, or test a smaller model"
        ) from error


def smoothed(losses: list[float]) -> Iterator[float]:
    """Yield the exponential moving average of the losses, with bias correction."""
    mean = 0.0
    for i, loss in enumerate(losses, 1):
        mean = LR_SMOOTH * mean + (1 - LR_SMOOTH) * loss
        yield mean / (1 - LR_SMOOTH**i)


def diverged(points: Points) -> bool:
    """Return whether the smoothed loss is not finite or has risen far above its minimum."""
    means = list(smoothed([loss for _, loss in points]))
    if not math.isfinite(means[-1]):
        return True
    # relative to the decrease so far, so that losses may have any sign
    low, first = min(means), means[0]
    return len(means) > 20 and means[-1] > low + LR_DIVERGED * max(first - low, 0.05 * abs(first))


def suggested_lr(points: Points) -> float:
    """Return a tenth of the learning rate with the lowest smoothed loss, with two digits.

    Raise ConfigError if no loss is finite.
    """
    means = list(smoothed([loss for _, loss in points]))
    finite = [(mean, lr) for mean, (lr, _) in zip(means, points) if math.isfinite(mean)]
    if not finite:
        raise ConfigError("learning rate: the loss is not finite from the first step on")
    return float(f"{min(finite)[1] / 10:.1e}")


# ---- times


def step_s(step: Callable[[], None], device: torch.device) -> float:
    """Return the seconds of a step, after one step to warm up."""
    step()  # warm-up: the first step allocates memory
    synchronize(device)
    began = time.perf_counter()
    for _ in range(TIMED_STEPS):
        step()
    synchronize(device)
    return (time.perf_counter() - began) / TIMED_STEPS


def synchronize(device: Any) -> None:
    """Wait for the device."""
    if device.type != "cpu":
        getattr(torch, device.type).synchronize()
