"""How many CPU threads a process computes with: a rule of what is asked, the cores and the model, and of nothing that
changes from one moment to the next. The number fixes the order of summation, and so the last bits of a result.

More threads are not always faster: a small model's step is shorter than waking and joining them. So with
hardware.num_threads=auto a step of little work has one thread, and any other all cores of the rank; `./run tune
threads` measures what is fastest. The number is saved in the run directory, and a resumed run uses it again: also one
that an older version has measured.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from samebits.host import cores, omp_num_threads, threads_each

SMALL_FLOP = 100e6  # two threads are no faster below: benchmarks/RESULTS.md


@dataclass(frozen=True)
class Threads:
    """most: upper limit of count. why: reason for count, for the user; empty: the model decides. auto: save it in the
    run directory."""

    count: int
    most: int
    why: str
    auto: bool = True


def decide_threads(asked: int | str, device: str, deterministic: bool, ranks: int) -> Threads:
    """The part of the rule that needs no model. asked: hardware.num_threads; ranks: on this machine."""
    most = threads_each(ranks)
    if asked != "auto":
        return Threads(int(asked), int(asked), "hardware.num_threads", auto=False)
    if omp_num_threads():
        return Threads(most, most, "OMP_NUM_THREADS")
    here = f"{cores()} core{'s' * (cores() > 1)}" + (f", {ranks} ranks" if ranks > 1 else "")
    if device != "cpu":
        return Threads(most, most, here, auto=False)
    if most == 1:
        return Threads(1, 1, here)
    return Threads(1, most, "hardware.deterministic" if deterministic else "")


def threads_for(threads: Threads, flop: float) -> Threads:
    """The rest of the rule. flop: of a micro-batch, as `rough_flop` has it."""
    if threads.why:
        return threads
    if flop < SMALL_FLOP:
        return replace(threads, count=1, why=f"a small step, some {flop / 1e6:.2g} MFLOP")
    return replace(threads, count=threads.most, why=f"a rank's {threads.most} cores")


def rough_flop(modules: Iterable[nn.Module], input_shape: Sequence[int], samples: int) -> float:
    """FLOP of forward and backward, estimated from shapes alone: to count them by operation, on the device meta, takes
    1.5 s, as much as the rest of a run's start. For MLP, ResNet and GPT it is within a factor of five of the count;
    where weights are used more often than assumed here, it is too low.

    A weight costs 6 FLOP each time that it is used. Of a model that looks tokens up each weight is used at every token.
    A kernel's uses lie between 1 and the image's positions; in a network that halves images and doubles channels they
    are near the root. Any other weight is used once.
    """
    modules = list(modules)
    reads_tokens = any(isinstance(part, nn.Embedding) for module in modules for part in module.modules())
    of_matrix = max(1, input_shape[0]) if reads_tokens and input_shape else 1
    of_kernel = max(of_matrix, math.prod(input_shape[1:]) ** 0.5)
    weights = [p for module in modules for p in module.parameters()]
    return 6 * samples * sum(p.numel() * (of_kernel if p.ndim > 2 else of_matrix) for p in weights)


def recorded_threads(count: int, most: int) -> Threads:
    """The number saved when the run began, at most `most`."""
    if count > most:
        return Threads(most, most, f"the run began with {count}, for which there are no cores now: rounding changes")
    return Threads(count, most, "as the run began")
