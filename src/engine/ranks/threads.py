"""How many CPU threads a process computes with, where hardware.num_threads is auto.

More threads are not always faster. A small model's step is shorter than waking and joining threads, and on a busy
machine each operation waits for a thread that has no core: a step of 0.4 ms can take 50 ms. So before training, forward
and backward of the first batch are timed with 1, 2, 4, ... threads on a copy of the model; the run's state stays as is.

The number of threads fixes the order of summation, so it can change the last bits of a result. It is therefore saved
in the run directory, and a resumed run uses it again. Two runs of one command may measure different numbers;
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

from engine.errors import ConfigError
from engine.files import read_json, write_json
from engine.host import cores, omp_num_threads, threads_each, threads_of
from engine.ranks.distributed import World, all_max, share_from_main
from engine.ranks.seed import rng_state, set_rng_state
from engine.runs import ENVIRONMENT

Batch = dict[str, Any]
Autocast = Callable[[], AbstractContextManager[Any]]

GAIN = 1.1  # least speedup of twice the threads: below it is noise, at the cost of cores that others could use
FEW = 2  # samples of the first trial (BatchNorm needs two); its time sets the number of samples of the later ones
STEP_S = 0.01  # target time of a trial's step
ROUNDS, ROUNDS_S = 5, 0.06  # most rounds and seconds of a comparison
LONG_S = 0.25  # a trial's forward pass is given up after this
HOPELESS_S = 0.005  # above the time to start threads
LARGEST = 100_000_000  # most parameters of a model that is copied for this


@dataclass(frozen=True)
class Threads:
    """most: upper limit of count. why: reason for count, for the user; empty: not measured. auto: save it in the
    run directory."""

    count: int
    most: int
    why: str
    auto: bool = True


def decide_threads(
    asked: int | str, device: str, deterministic: bool, ranks: int, num_cores: int | None = None
) -> Threads:
    """The part of the decision that needs no model. asked: hardware.num_threads; ranks: on this machine; num_cores: of
    all these ranks, None: cores()."""
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


def settle_threads(threads: Threads, run_dir: Path, world: World, measure: Callable[[int], Threads]) -> Threads:
    """Fix the number for all ranks and for later resumes (saved in run_dir). All ranks call this; rank 0 measures."""
    if not threads.auto:
        return threads
    most = threads.most if world.size == 1 else -all_max([-threads.most], world)()[0]
    chosen = None
    if world.is_main:
        path = run_dir / ENVIRONMENT
        environment = read_json(path)
        chosen = recorded(environment, most)
        if chosen is None:
            chosen = threads if threads.why else measure(most)
            write_json(path, environment | {"threads": asdict(chosen)})
    chosen = Threads(**share_from_main(asdict(chosen) if chosen else None, world))
    torch.set_num_threads(chosen.count)
    return chosen


def recorded(environment: dict[str, Any], most: int) -> Threads | None:
    """The number saved when the run began, at most `most`; None: none was saved."""
    if "threads" not in environment:
        return None
    count = environment["threads"]["count"]
    if count > most:
        return Threads(most, most, f"the run began with {count}, for which there are no cores now: rounding changes")
    return Threads(count, most, "as the run began")


def threads_of_run(threads: Threads, run_dir: Path) -> Threads:
    """The number of threads for an evaluation of the run's checkpoints."""
    if not threads.auto:
        return threads
    known = recorded(read_json(run_dir / ENVIRONMENT), threads.most)
    return known or Threads(threads.most, threads.most, "not measured")


def measure_threads(most: int, net: nn.Module, first: Callable[[], Batch], autocast: Autocast) -> Threads:
    """The fastest number for this model, found on a copy of it.

    net: called with a batch, it returns ({"loss": (B,), ...}, anything). first: gives a micro-batch.
    """
    if sum(p.numel() for p in net.parameters()) > LARGEST:
        return Threads(most, most, "not measured: a large model")
    if any(p.is_meta for p in net.parameters()):
        return Threads(most, most, "not measured: no process has the whole model")
    batch = first()
    size = len(next(iter(batch.values())))
    before = rng_state(torch.device("cpu"))
    try:
        count, why = fastest(trial(net, batch, autocast), size, most)
    except ConfigError:  # the model and the batch do not fit: the first real step says so
        count, why = 1, ""
    except Exception as error:
        count, why = 1, f"not measured: {type(error).__name__}"
    finally:
        set_rng_state(before, torch.device("cpu"))
        torch.set_num_threads(1)
    return Threads(count, most, why)


class ModelAlone(nn.Module):
    """Replaces a net whose losses may wait for other ranks; loss: (1,), the sum of all tensors the model returns."""

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
    """Returns a function (threads, samples) -> seconds of one forward and backward pass; inf: given up after LONG_S."""
    own = copy.deepcopy(net)
    # a step on one thread is long if it computes for long: on a busy machine it also waits for a core
    clock: Callable[[], float] = time.thread_time
    given_up = 0.0

    def look_at_clock(*_: Any) -> None:
        if clock() > given_up:
            raise _TooLong

    for module in own.modules():
        module.register_forward_pre_hook(look_at_clock)

    def seconds(threads: int, samples: int) -> float:
        nonlocal clock, given_up
        torch.set_num_threads(threads)
        part = {k: v[:samples].clone() if isinstance(v, torch.Tensor) else v[:samples] for k, v in batch.items()}
        own.zero_grad()
        clock = time.thread_time if threads == 1 else time.perf_counter
        given_up = clock() + LONG_S
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
    """(threads, why): doubled from 1 while that is faster. seconds(threads, samples): of a step; size: of the batch."""
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
    """Speedup of `many` threads over `few`: ratio of the median step times, measured in alternation.

    cold: seconds of the very first step, which prepares kernels; so does the first step with another thread count.
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
