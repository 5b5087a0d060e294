"""Which sample when: the order of samples as a pure function of (seed, global sample number), with no state to save.

    sample number   0 1 2 3 | 4 5 6 7 | 8 9 ...       counts all samples of a run, over all epochs and ranks
    global batch    step 0  | step 1  | ...           the same set for any number of ranks
    share           rank 0: 0 1, rank 1: 2 3 | ...    equal and disjoint, cut again into micro-batches

The stream does not end at an epoch: a batch may hold the last samples of one epoch and the first of the next, so all
batches have one size and no rank ever has a step more than another.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import numpy as np

# k-th micro-batch of this rank -> (sample numbers, dataset rows), each (B,) int64; None after the last
Plan = Callable[[int], "tuple[np.ndarray, np.ndarray] | None"]


class Order(Protocol):
    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 global sample numbers -> (B,) int64 dataset rows."""
        ...


def shuffled(size: int, seed: int) -> Order:
    """A new permutation of range(size) for each epoch."""

    def order(numbers: np.ndarray) -> np.ndarray:
        rows = np.empty_like(numbers)
        for epoch in np.unique(numbers // size):
            here = numbers // size == epoch
            rows[here] = np.random.default_rng([seed, int(epoch)]).permutation(size)[numbers[here] % size]
        return rows

    return order


def sequential(size: int) -> Order:
    return lambda numbers: numbers % size


def train_plan(order: Order, global_batch_size: int, micro_sizes: list[int], rank: int, num_ranks: int, start: int) -> Plan:
    """Endless: this rank's micro-batches from global sample number `start` on; sum(micro_sizes) * num_ranks samples a step."""
    share = global_batch_size // num_ranks
    assert sum(micro_sizes) == share
    assert share * num_ranks == global_batch_size
    begins = np.concatenate([[0], np.cumsum(micro_sizes)])

    def plan(k: int) -> tuple[np.ndarray, np.ndarray]:
        step, micro = divmod(k, len(micro_sizes))
        first = start + step * global_batch_size + rank * share
        numbers = np.arange(first + begins[micro], first + begins[micro + 1], dtype=np.int64)
        return numbers, order(numbers)

    return plan


def eval_plan(size: int, batch_size: int, rank: int, num_ranks: int) -> Plan:
    """Every row exactly once over all ranks, without padding: rank r takes rows r, r + num_ranks, ..."""
    rows = range(rank, size, num_ranks)

    def plan(k: int) -> tuple[np.ndarray, np.ndarray] | None:
        part = rows[k * batch_size : (k + 1) * batch_size]
        if not part:
            return None
        numbers = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        return numbers, numbers

    return plan
