"""How many CPU threads a process computes with, where hardware.num_threads is auto.

More threads are not always faster. A small model's step is shorter than waking and joining them, and beside other
processes each operation waits for a thread that has no core: a step of 0.4 ms then takes 50. So the first steps are
tried beforehand with 1, 2, 4, ... threads: forward and backward of the first batch on a copy of the model, which leaves
no trace in the run.

The number decides in which order sums are added, so it can change the last bits of a result. It is therefore written
into the run directory, and whoever goes on with the run uses it again. Two runs of one command may differ in it:
hardware.deterministic=true measures nothing and takes one thread.
"""

from __future__ import annotations

import copy
import math
import statistics
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.ranks.cores import cores, omp_num_threads, threads_each, threads_of
from engine.ranks.distributed import World, all_max, share_from_main
from engine.ranks.seed import rng_state, set_rng_state
from engine.runs import directory

Batch = dict[str, Any]
Autocast = Callable[[], AbstractContextManager[Any]]

GAIN = 1.1  # what twice the threads must bring: below it is noise, and cores that others could use
FEW = 2  # samples of the first trial (BatchNorm needs two), from whose time follows how many a trial may have
STEP_S = 0.01  # what the step of a trial should take
ROUNDS, ROUNDS_S = 5, 0.06  # of a comparison, at most
LONG_S = 0.25  # the forward pass of a trial is given up after this
HOPELESS_S = 0.005  # starting threads takes less
LARGEST = 100_000_000  # parameters of a model that is copied for this


@dataclass(frozen=True)
class Threads:
    """most: that may be used. why: of `count`, for the user; empty: to be measured. auto: kept in the run directory."""

    count: int
    most: int
    why: str
    auto: bool = True


def decide(asked: int | str, device: str, deterministic: bool, ranks: int, num_cores: int | None = None) -> Threads:
    """What can be said without a model. asked: hardware.num_threads; ranks: of this machine; num_cores: for all of
    them, where that is not what this process may use."""
    most = threads_each(ranks) if num_cores is None else threads_of(max(1, num_cores // ranks))
    num_cores = num_cores or cores()
    if asked != "auto":
        return Threads(int(asked), int(asked), "hardware.num_threads", auto=False)
    if omp_num_threads():
        return Threads(most, most, "OMP_NUM_THREADS")
    here = f"{num_cores} core{'s' * (num_cores > 1)}" + (f", {ranks} ranks" if ranks > 1 else "")
    if device != "cpu":
        return Threads(most, most, here, auto=False)
    if most == 1:
        return Threads(1, 1, here)
    return Threads(1, most, "hardware.deterministic" if deterministic else "")


def settle(threads: Threads, run_dir: Path, world: World, measure: Callable[[int], Threads]) -> Threads:
    """The number of this run, for all ranks and all processes that go on with it; all ranks call this."""
    if not threads.auto:
        return threads
    most = threads.most if world.size == 1 else -all_max([-threads.most], world)()[0]
    chosen = None
    if world.is_main:
        path = run_dir / directory.ENVIRONMENT
        environment = directory.read_json(path)
        chosen = recorded(environment, most)
        if chosen is None:
            chosen = threads if threads.why else measure(most)
            directory.write_json(path, environment | {"threads": asdict(chosen)})
    chosen = Threads(**share_from_main(asdict(chosen) if chosen else None, world))
    torch.set_num_threads(chosen.count)
    return chosen


def recorded(environment: dict[str, Any], most: int) -> Threads | None:
    """As the run began, but no more than there may be now."""
    if "threads" not in environment:
        return None
    count = environment["threads"]["count"]
    if count > most:
        return Threads(most, most, f"the run began with {count}, for which there are no cores now: rounding changes")
    return Threads(count, most, "as the run began")


def of_run(threads: Threads, run_dir: Path) -> Threads:
    """For whoever scores what the run has made."""
    if not threads.auto:
        return threads
    known = recorded(directory.read_json(run_dir / directory.ENVIRONMENT), threads.most)
    return known or Threads(threads.most, threads.most, "not measured")


def measure(most: int, net: nn.Module, first: Callable[[], Batch], autocast: Autocast) -> Threads:
    """The fastest number for this model, found on a copy of it.

    net: called with a batch, it returns ({"loss": (B,), ...}, anything). first: gives a micro-batch.
    """
    if sum(p.numel() for p in net.parameters()) > LARGEST:
        return Threads(most, most, "not measured: a large model")
    batch = first()
    size = len(next(iter(batch.values())))
    before = rng_state(torch.device("cpu"))
    try:
        count, why = fastest(trial(net, batch, autocast), size, most)
    except Exception as error:  # a real step will say it better
        count, why = 1, f"not measured: {type(error).__name__}"
    finally:
        set_rng_state(before, torch.device("cpu"))
        torch.set_num_threads(1)
    return Threads(count, most, why)


class Alone(nn.Module):
    """Stands for a net whose losses may wait for other ranks: {"loss": (1,) the sum of all that the model returns}."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[dict[str, Tensor], None]:
        found: list[Tensor] = []

        def collect(value: Any) -> None:
            if isinstance(value, Tensor):
                found.append(value)
            elif isinstance(value, (list, tuple, dict)):
                for item in value.values() if isinstance(value, dict) else value:
                    collect(item)

        collect(self.model(batch["x"]))
        return {"loss": torch.stack([value.float().sum() for value in found if value.requires_grad]).sum()[None]}, None


class _TooLong(Exception):
    pass


def trial(net: nn.Module, batch: Batch, autocast: Autocast) -> Callable[[int, int], float]:
    """A function (threads, samples) -> seconds of a forward and a backward pass; inf where it takes too long."""
    own = copy.deepcopy(net)
    began = 0.0

    def look_at_clock(*_: Any) -> None:
        if time.perf_counter() - began > LONG_S:
            raise _TooLong

    for module in own.modules():
        module.register_forward_pre_hook(look_at_clock)

    def seconds(threads: int, samples: int) -> float:
        nonlocal began
        torch.set_num_threads(threads)
        part = {k: v[:samples].clone() if isinstance(v, torch.Tensor) else v[:samples] for k, v in batch.items()}
        own.zero_grad()
        began = time.perf_counter()
        try:
            with autocast():
                value = own(part)[0]["loss"].sum()
            value.backward()
        except _TooLong:
            return math.inf
        return time.perf_counter() - began

    own.train()
    return seconds


def fastest(seconds: Callable[[int, int], float], size: int, most: int) -> tuple[int, str]:
    """(threads, why): doubled from 1 as long as that helps. seconds(threads, samples): a step; size: of the batch."""
    samples = min(size, FEW)
    cold = seconds(1, samples)
    if math.inf in (cold, took := seconds(1, samples)):
        return most, "all: the model's steps are long"
    if took * 2 < STEP_S and samples < size:
        samples = min(size, int(samples * STEP_S / took))
        seconds(1, samples)
    best, faster = 1, 1.0
    while best < most:
        more = min(2 * best, most)
        gain = compare(seconds, samples, best, more, cold)
        if gain < GAIN and best > 1:
            break
        if gain < 1:
            return (
                1,
                f"measured: 1 is {1 / gain:.1f}x faster than {more}" if gain else f"measured: {more} is far slower",
            )
        if gain < GAIN:
            return 1, f"measured: {more} is only {gain:.2f}x as fast as 1"
        best, faster = more, faster * gain
    return best, f"measured: {best} is {faster:.1f}x faster than 1"


def compare(seconds: Callable[[int, int], float], samples: int, few: int, many: int, cold: float) -> float:
    """How many times as fast a step is with `many` threads as with `few`: medians of steps in turns.

    cold: what the very first step took, which prepares kernels as the first one with other threads does.
    """
    times: dict[int, list[float]] = {few: [seconds(few, samples)], many: []}
    first = seconds(many, samples)
    if first > HOPELESS_S + 2 * cold + 10 * times[few][0]:
        return times[few][0] / first
    for _ in range(ROUNDS):
        for count, each in times.items():
            each.append(seconds(count, samples))
        if sum(map(sum, times.values())) > ROUNDS_S:
            break
    return statistics.median(times[few]) / statistics.median(times[many])
