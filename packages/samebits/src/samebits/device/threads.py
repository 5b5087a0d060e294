"""Decide the number of CPU threads of a process from the config, the cores and the model, never from measurements. The
number determines the order of summation and therefore the last bits of a result.

More threads are not always faster: a step of a small model takes less time than waking the threads. Therefore with
hardware.num_threads=auto a small step uses one thread, and any other step all cores of the rank. `./run tune threads`
measures the fastest number. The number is saved in the run directory and used again by resumed runs.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from samebits.files import amount
from samebits.host import cores, omp_num_threads, threads_each

SMALL_FLOP = 100e6  # below this, two threads are not faster than one: benchmarks/RESULTS.md


@dataclass(frozen=True)
class Threads:
    """The number of threads. most: limit of count. why: the reason, for the user; empty: the model decides. auto: save
    count in the run directory."""

    count: int
    most: int
    why: str
    auto: bool = True


def decide_threads(asked: int | str, device: str, deterministic: bool, ranks: int) -> Threads:
    """Apply the part of the rule that does not depend on the model. asked: hardware.num_threads. ranks: number on this
    machine."""
    most = threads_each(ranks)
    if asked != "auto":
        return Threads(int(asked), int(asked), "hardware.num_threads", auto=False)
    if omp_num_threads():
        return Threads(most, most, "OMP_NUM_THREADS")
    here = amount(cores(), "core") + (f", {ranks} ranks" if ranks > 1 else "")
    if device != "cpu":
        return Threads(most, most, here, auto=False)
    if most == 1:
        return Threads(1, 1, here)
    return Threads(1, most, "hardware.deterministic" if deterministic else "")


def threads_for(threads: Threads, flop: float) -> Threads:
    """Apply the part of the rule that depends on the model. flop: FLOP of a micro-batch, see `rough_flop`."""
    if threads.why:
        return threads
    if flop < SMALL_FLOP:
        return replace(threads, count=1, why=f"a small step, about {flop / 1e6:.2g} MFLOP")
    return replace(threads, count=threads.most, why=f"a rank's {threads.most} cores")


def rough_flop(modules: Iterable[nn.Module], input_shape: Sequence[int], samples: int) -> float:
    """Estimate the FLOP of forward and backward from shapes. To count operations on the device meta takes 1.5 s, as
    long as the rest of a run's start. For MLP, ResNet and GPT the estimate is within a factor of five; it is too low if
    weights are used more often than assumed here.

    A weight costs 6 FLOP per use. In a model with embeddings each weight is used once per token. A convolution's weight
    is used between once and once per image position; the estimate is the square root of the positions, because networks
    halve images and double channels. Any other weight is used once.
    """
    modules = list(modules)
    reads_tokens = any(isinstance(part, nn.Embedding) for module in modules for part in module.modules())
    of_matrix = max(1, input_shape[0]) if reads_tokens and input_shape else 1
    of_kernel = max(of_matrix, math.prod(input_shape[1:]) ** 0.5)
    weights = [p for module in modules for p in module.parameters()]
    return 6 * samples * sum(p.numel() * (of_kernel if p.ndim > 2 else of_matrix) for p in weights)


def recorded_threads(count: int, most: int) -> Threads:
    """Return the number saved when the run started, at most `most`."""
    if count > most:
        return Threads(most, most, f"the run started with {count}, but there are not enough cores, so rounding changes")
    return Threads(count, most, "as when the run started")
