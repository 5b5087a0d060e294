"""Measure the balance of the ranks: peak memory, own work per step (s) and data wait per step (s) of each rank.

The slowest rank determines the time of a step, so this time is the same on all ranks. Own work is the time of the step
without the wait for other ranks, which is from the end of the rank's backward pass to the end of the all-reduce.

    |---- data, forward, backward ----| own part done |---- waiting ----| averaged |---- clip, update ----|
                  own work                                                                own work

A hook of each parameter runs when its gradient is ready; the last call is the end of the rank's own part. The train
step reports when the backward pass has returned, which in DDP waits for the all-reduce. Timestamps come from the host's
clock on a CPU and from CUDA events on a GPU. The events are read at a log, because the host runs ahead of the device.
"""

from __future__ import annotations

import resource
import sys
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import torch
from torch import nn

from samebits.clocks import DeviceClock, HostClock
from samebits.host import memory_of_process
from samebits.loggers import Logger
from samebits.parallel.ddp import unwrapped
from samebits.world import World

WARM_UP = 3  # the first steps allocate, choose kernels and build buckets
ALL_UNTIL, THEN_EVERY = 64, 16  # measure each step until the 64th, then each 16th: hooks cost 0.1 ms
NAME_AFTER_S = 2.0  # seconds of measured work before a straggler is reported: less is noise
LISTED = 8  # the final lines list all ranks up to this number, otherwise the extremes
ALIKE = 0.1  # figures count as equal if their range is within this share of the mean
COLUMNS = 5  # a rank's row: memory in bytes, own work in s, steps measured, data wait in s, steps
Values = dict[str, torch.Tensor]  # the values that a step returns
UNITS = {  # factor, unit, text
    "memory": (1e-6, "MB", "peak memory {}"),
    "step_time": (1e3, "ms", "own work {} per step"),
    "data_wait": (1e3, "ms", "data wait {} per step"),
}


class WaitsForData(Protocol):
    """A loader that measures the time that training waits for its batches."""

    @property
    def wait_s(self) -> float:
        """Return the seconds that training has waited so far."""


class RankTiming:
    """Measure the steps of a run with several ranks (`timed`), and exchange the figures at each log (`table`, `read`).

    straggler_threshold: warn about a rank that is slower than the mean of the others by more than this share (0.2:
    20 %). None: never.

    FSDP and SyncBatchNorm wait for other ranks throughout the step, so a rank's own work cannot be measured, and the
    figure step_time is omitted.
    """

    def __init__(
        self, net: nn.Module, world: World, train: WaitsForData, logger: Logger, straggler_threshold: float | None
    ) -> None:
        self._world, self._train, self._logger, self._share = world, train, logger, straggler_threshold
        self._clock = DeviceClock(world.device) if world.device.type == "cuda" else HostClock()
        waits_once = not any(isinstance(module, nn.SyncBatchNorm) for module in net.modules())
        self._measures = unwrapped(net) is not None and waits_once
        self._own_part_done: Any = None  # timestamp of the last backward pass of this rank
        self._waits: list[Any] = []  # timestamps of this step: before and after each wait
        self._pending: deque[tuple[Any, Any, list[Any]]] = deque()  # timestamps of steps still on the device
        self._steps = 0
        self._since_log = [0.0, 0.0, train.wait_s, 0.0]  # own work, steps measured, train.wait_s then, steps then
        self._totals = [[0.0] * COLUMNS for _ in range(world.size)]
        self._named = False
        self._parameters = list(net.parameters())

    # ---- timestamps within a step

    def timed(self, train_step: Callable[..., Values]) -> Callable[..., Values]:
        """Return a function that calls train_step and measures some of the calls.

        train_step has an optional last argument: a function to call after each backward pass that averages gradients.
        """

        def step(*args: Any) -> Values:
            done, self._steps = self._steps, self._steps + 1
            due = done % THEN_EVERY == 0 if done >= ALL_UNTIL else done >= WARM_UP
            return self._measured(train_step, *args) if due and self._measures else train_step(*args)

        return step

    def _measured(self, train_step: Callable[..., Values], *args: Any) -> Values:
        self._waits, self._own_part_done, start = [], None, self._clock.now()
        # Hooks exist only in measured steps, because autograd calls them in Python. Not register_multi_grad_hook: with
        # it, torch.autograd.grad with respect to these parameters, in a task's losses, raises.
        trained = [p for p in self._parameters if p.requires_grad]
        hooks = [p.register_post_accumulate_grad_hook(self._computed) for p in trained]
        try:
            values = train_step(*args, self._averaged)
        finally:
            for hook in hooks:
                hook.remove()
        if self._waits:
            self._pending.append((start, self._clock.now(), self._waits))
            while self._pending and self._clock.passed(self._pending[0][1]):
                self._add(*self._pending.popleft())
        return values

    def _computed(self, parameter: torch.Tensor) -> None:
        self._own_part_done = self._clock.now()

    def _averaged(self) -> None:
        if self._own_part_done is not None:
            self._waits += [self._own_part_done, self._clock.now()]
            self._own_part_done = None

    def _add(self, start: Any, end: Any, waits: list[Any]) -> None:
        waited = sum(self._clock.seconds(before, after) for before, after in zip(waits[::2], waits[1::2]))
        self._since_log[0] += self._clock.seconds(start, end) - waited
        self._since_log[1] += 1

    # ---- reports

    def row(self) -> list[float]:
        """Return this rank's values since the last log, (COLUMNS,)."""
        while self._pending:
            self._add(*self._pending.popleft())
        own_s, measured, wait_then, steps_then = self._since_log
        wait_s = self._train.wait_s
        self._since_log = [0.0, 0.0, wait_s, self._steps]
        return [peak_memory(self._world.device), own_s, measured, wait_s - wait_then, self._steps - steps_then]

    def table(self) -> torch.Tensor:
        """Return (ranks * COLUMNS,) on the device, zero except this rank's row. `read` takes the sum over the ranks."""
        own, others = self._world.rank, self._world.size - self._world.rank - 1
        return torch.tensor([0.0] * own * COLUMNS + self.row() + [0.0] * others * COLUMNS).to(self._world.device)

    def read(self, summed: Sequence[float], step: int) -> dict[str, float]:
        """Return max / mean over the ranks of each figure since the last log. Warn about a straggler, once.

        summed: `table` summed over the ranks.
        """
        rows = [summed[i : i + COLUMNS] for i in range(0, len(summed), COLUMNS)]
        for total, (memory, *sums) in zip(self._totals, rows):
            total[:] = [max(total[0], memory), *(a + b for a, b in zip(total[1:], sums))]
        if not self._named:
            self._name_straggler(f"step {step}: ")
        return {f"balance/{name}": max_over_mean(found) for name, found in figures(rows).items()}

    def report(self) -> dict[str, Any]:
        """Log memory, own work and data wait of each rank over this process; return them for result.json."""
        found = figures(self._totals)
        if not self._steps:  # resumed after its last step: an earlier process has logged the figures
            logged = self._logger.latest("balance/")
            return {"balance": {key.partition("/")[2]: value for key, value in logged.items()}} if logged else {}
        ratios = {name: max_over_mean(values) for name, values in found.items()}
        ranks: list[dict[str, float]] = [{} for _ in range(self._world.size)]
        for name, values in found.items():
            factor, unit, _ = UNITS[name]
            for rank, value in zip(ranks, values):
                rank[f"{name}_{unit.lower()}"] = round(value * factor, 4)
        for line in unequal(found):
            self._logger.say(line)
        self._name_straggler("")
        self._logger.summary({f"balance/{name}": value for name, value in ratios.items()})
        return {"balance": {**ratios, "ranks": ranks}}

    def _name_straggler(self, prefix: str) -> None:
        found = figures(self._totals)
        own = found.get("step_time", [])
        rank = straggler(own, self._share)
        if rank is None or self._totals[rank][1] < NAME_AFTER_S:
            return
        self._named = True
        late = own[rank] - mean_of_others(own, rank)
        waits = found["data_wait"][rank] - mean_of_others(found["data_wait"], rank)
        cause = "it waits for its data" if waits > late / 2 else "check its transforms, its batches and its hardware"
        self._logger.warn(
            f"{prefix}rank {rank} slows down the other ranks: its own work takes {own[rank] * 1e3:.3g} ms per step, "
            f"the mean of the others is {mean_of_others(own, rank) * 1e3:.3g} ms; {cause}"
        )


def peak_memory(device: torch.device) -> float:
    """Return the peak memory of this process in bytes: on its CUDA device, otherwise in RAM."""
    if device.type == "cuda":
        return float(memory_of_process(device))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1.0 if sys.platform == "darwin" else 1024.0)


def figures(rows: Sequence[Sequence[float]]) -> dict[str, list[float]]:
    """Return {memory (bytes), step_time, data_wait (s per step)}, each (ranks,), if all ranks have measured it."""
    found = {"memory": [row[0] for row in rows]}
    if all(row[2] for row in rows):
        found["step_time"] = [row[1] / row[2] for row in rows]
    if all(row[4] for row in rows):
        found["data_wait"] = [row[3] / row[4] for row in rows]
    return found


def max_over_mean(values: Sequence[float]) -> float:
    """Return max / mean: 1.0 if all are equal."""
    mean = sum(values) / len(values)
    return max(values) / mean if mean else 1.0


def mean_of_others(values: Sequence[float], rank: int) -> float:
    """Return the mean of the values of all other ranks."""
    return (sum(values) - values[rank]) / (len(values) - 1)


def straggler(own: Sequence[float], share: float | None) -> int | None:
    """Return the rank with the longest own work if it is more than `share` above the mean of the others, or None."""
    if share is None or len(own) < 2:
        return None
    slowest = max(range(len(own)), key=own.__getitem__)
    return slowest if own[slowest] > (1 + share) * mean_of_others(own, slowest) else None


def unequal(found: dict[str, list[float]]) -> list[str]:
    """Return a line for each rank if memory, own work or data wait differ between ranks (see ALIKE), otherwise [].

    With more than LISTED ranks, list only those with the smallest or the largest value of a figure.
    """
    limits = {name: ALIKE * sum(values) / len(values) for name, values in found.items()}
    limits["data_wait"] = limits.get("step_time", 0.0)  # a data wait counts only if it is long compared with the work
    if all(max(values) - min(values) <= limits[name] for name, values in found.items()):
        return []
    ranks: Sequence[int] = range(len(found["memory"]))
    if len(ranks) > LISTED:
        ranks = sorted({pick(ranks, key=values.__getitem__) for values in found.values() for pick in (min, max)})
    lines = []
    for rank in ranks:
        parts = []
        for name, values in found.items():
            factor, unit, words = UNITS[name]
            parts.append(words.format(f"{values[rank] * factor:.3g} {unit}"))
        lines.append(f"rank {rank}: {', '.join(parts)}")
    return lines
