"""Which sample when: the order of samples as a pure function of (seed, global sample number), and of the order's state
where it has one (samebits.data.stateful).

    sample number   0 1 2 3 | 4 5 6 7 | 8 9 ...       counts all samples of a run, over all epochs and ranks
    global batch    step 0  | step 1  | ...           the same set for any number of ranks
    share           rank 0: 0 1, rank 1: 2 3 | ...    equal and disjoint, cut again into micro-batches

The stream does not end at an epoch: a batch may hold the last samples of one epoch and the first of the next, so all
batches have one size and no rank ever has a step more than another. To compare with a loop whose epochs end with a
whole batch (drop_last=True) or a smaller one, `epochs` leaves the last rows of each epoch out or pads their batch.

The yaml chooses an order by `data.order._target_` and the run calls it with (dataset, seed=seed): here `shuffled`,
`sequential`, `first`, `lanes`, `overfit`, `epochs`; in samebits.data.windows `chunk_windows`; in samebits.data.sampling
`class_balanced`, `weighted`, `length_buckets`.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sized
from typing import Any, Protocol

import numpy as np

from samebits.data.lanes import Lanes
from samebits.data.permutation import Permutation, hashed
from samebits.errors import ConfigError
from samebits.schema import Count

# k-th micro-batch of this rank -> (sample numbers, dataset rows), each (B,) int64 and read-only; None after the last
Plan = Callable[[int], "tuple[np.ndarray, np.ndarray] | None"]

_BLOCK = 16384  # samples whose rows are computed in one go: numpy's cost per call, spread over so many, is nothing


class Order(Protocol):
    """May also have `note(batch_size) -> str`; `window_of(number) -> int`: windows are best read whole;
    `epoch_samples`: how many samples an epoch has, where that is not the whole set; `padded`, with
    `counts(numbers) -> (B,) bool`: some stand for padding."""

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 global sample numbers -> (B,) int64 dataset rows."""
        ...


def size_of(dataset: Sized) -> int:
    if not len(dataset):
        raise ConfigError("data: the training split holds no samples; check data.path and data.splits")
    return len(dataset)


def shuffled(dataset: Sized, seed: int) -> Order:
    """A new permutation of the rows for each epoch."""
    size = size_of(dataset)
    permutation = Permutation(size, seed, stream=0)

    def order(numbers: np.ndarray) -> np.ndarray:
        epochs = numbers // size
        return permutation(numbers - epochs * size, epochs)

    return order


def sequential(dataset: Sized, seed: int) -> Order:
    """The rows as they lie, again and again."""
    size = size_of(dataset)
    return lambda numbers: numbers % size


def first(dataset: Sized, seed: int, count: Count) -> Order:
    """The first `count` rows again and again: what a model must be able to overfit."""
    if not 0 < count <= size_of(dataset):
        raise ConfigError(
            f"data.order.count={count} must be between 1 and the {len(dataset)} samples of the training split"
        )
    return lambda numbers: numbers % count


def lanes(dataset: Sized, seed: int, lanes: Count) -> Lanes:
    """lanes: trainer.global_batch_size. dataset: rows that continue each other, as data=tokens with
    data.stride=${data.window}. See samebits.data.lanes."""
    if not getattr(dataset, "consecutive", True):
        raise ConfigError("data.stride: lanes need rows that continue each other - give data.stride=${data.window}")
    return Lanes(size_of(dataset), lanes)


class Repeated:
    """The first `count` samples of an order, again and again: what a model must be able to overfit."""

    def __init__(self, order: Any, count: int) -> None:
        self._order, self._count = order, count

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        rows: np.ndarray = self._order(numbers % self._count)
        return rows

    def mark(self, batch: Any, numbers: Any) -> Any:
        """As Lanes.mark, of an order that is in lanes."""
        return self._order.mark(batch, numbers % self._count)


def overfit(dataset: Sized, seed: int, count: Count, **replaced: Any) -> Order:
    """What debug=overfit took before data.overfit, for the runs that have it."""
    order = first(dataset, seed, count)
    return Lanes(count, replaced["lanes"]) if "lanes" in replaced else order


def epochs(dataset: Sized, seed: int, batch_size: Count, drop_last: bool = True) -> Order:
    """A new permutation of the rows for each epoch, as `shuffled`; those that fill no whole batch are left out, other
    ones in each epoch: DataLoader(shuffle=True, drop_last=True). batch_size: trainer.global_batch_size. drop_last:
    false trains on them as an epoch's last, smaller batch, see `Epochs`."""
    return Epochs(size_of(dataset), seed, batch_size, drop_last)


class Epochs:
    """numbers 0 1 2 3 | 4 5 6 7 || 8 9 ...: with 10 rows and batches of 4 an epoch has 8 samples.

    drop_last=False: 0 1 2 3 | 4 5 6 7 | 8 9 - - || 12 13 ...: it has 12 numbers. Those of the last batch for which no
    row is left stand for its padding, rows that the epoch has had: `counts` says which, the batch has the number -1 for
    them, and the loss weighs them with 0. So all batches have one shape, and all ranks equally many rows."""

    def __init__(self, size: int, seed: int, batch_size: int, drop_last: bool = True) -> None:
        self.epoch_samples = (size if drop_last else size + batch_size - 1) // batch_size * batch_size
        self._size, self.padded = size, self.epoch_samples > size
        if not self.epoch_samples:
            raise ConfigError(
                f"data.order.batch_size={batch_size}: the training split has {size} samples, so its epochs hold no "
                "whole batch - give a smaller trainer.global_batch_size, or use samebits.data.order.shuffled"
            )
        self._permutation = Permutation(size, seed, stream=0)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 -> (B,) int64 rows."""
        epochs = numbers // self.epoch_samples
        return self._permutation((numbers - epochs * self.epoch_samples) % self._size, epochs)

    def counts(self, numbers: np.ndarray) -> np.ndarray:
        """(B,) bool: False for padding."""
        return numbers % self.epoch_samples < self._size


class TrainPlan:
    """Endless: this rank's micro-batches from sample number `start` on; sum(micro_sizes) * num_ranks samples a step."""

    def __init__(
        self, order: Order, global_batch_size: int, micro_sizes: list[int], rank: int, num_ranks: int, start: int
    ) -> None:
        share = global_batch_size // num_ranks
        assert share * num_ranks == global_batch_size
        assert sum(micro_sizes) == share
        assert 0 <= rank < num_ranks
        self.order, self._global_batch_size, self._share = order, global_batch_size, share
        self._begins = [0, *np.cumsum(micro_sizes).tolist()]
        self.max_rows = max(micro_sizes)
        self._first = start + rank * share
        self._steps = -(-_BLOCK // share)  # steps in a block
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.Lock()
        self._window_of: Callable[[int], int] | None = getattr(order, "window_of", None)
        self.epoch_samples: int | None = getattr(order, "epoch_samples", None)
        self.padded: bool = getattr(order, "padded", False)  # some numbers are -1
        if self.epoch_samples and self.epoch_samples % global_batch_size:
            raise ConfigError(
                f"trainer.global_batch_size={global_batch_size}: epochs of {self.epoch_samples:,} samples do not end "
                f"with a whole batch - give data.order.batch_size={global_batch_size} too"
            )
        note = getattr(order, "note", None)
        self.note: str = note(global_batch_size) if note else ""

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        step, micro = divmod(k, len(self._begins) - 1)
        block, step_in_block = divmod(step, self._steps)
        numbers, rows = self._block(block)
        at = step_in_block * self._share
        part = slice(at + self._begins[micro], at + self._begins[micro + 1])
        return numbers[part], rows[part]

    def window(self, k: int) -> int | None:
        """The window in which the k-th micro-batch begins; None for an order without windows."""
        if self._window_of is None:
            return None
        step, micro = divmod(k, len(self._begins) - 1)
        return self._window_of(self._first + step * self._global_batch_size + self._begins[micro])

    def begins_step(self, k: int) -> bool:
        return k % (len(self._begins) - 1) == 0

    def changed(self, k: int, change: Callable[[], None]) -> TrainPlan:
        """The plan from the step on that the k-th micro-batch begins, by the order as change() leaves it. Threads that
        still ask this one are refused: what they make is thrown away."""
        assert self.begins_step(k)
        plan = copy.copy(self)
        plan._first += k // (len(self._begins) - 1) * self._global_batch_size
        with self._lock:
            self.order = _replaced
            change()
        return plan

    def _block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:  # several threads fill batches ahead; the second to come finds the block of the first
            if block not in self._blocks:
                steps = np.arange(block * self._steps, (block + 1) * self._steps, dtype=np.int64)
                begins = self._first + steps * self._global_batch_size
                numbers = (begins[:, None] + np.arange(self._share, dtype=np.int64)).ravel()
                while len(self._blocks) > 1:
                    del self._blocks[next(iter(self._blocks))]
                rows = self.order(numbers)
                if self.padded:
                    numbers = np.where(self.order.counts(numbers), numbers, -1)  # type: ignore[attr-defined]
                self._blocks[block] = numbers, rows
            return self._blocks[block]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_blocks": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _replaced(numbers: np.ndarray) -> np.ndarray:
    raise RuntimeError("a reorder has taken this plan's place")


def spread(positions: np.ndarray, count: int, size: int) -> np.ndarray:
    """A fixed choice of `count` of `size` rows: positions (B,) int64 below count -> (B,) int64 rows, rising.

    One row of each of `count` equal parts, at a place in its part that follows from a hash: files sorted by class and
    files in which the classes take turns are both seen in their true shares.
    """
    if count >= size:
        return positions
    begins, ends = positions * size // count, (positions + 1) * size // count
    bits = hashed(0, 6, positions) >> np.uint64(1)
    return begins + bits.astype(np.int64) % (ends - begins)


class EvalPlan:
    """Every row exactly once over all ranks: rank r takes rows r, r + num_ranks, ...; of `count` rows that are spread
    evenly over the set, if count is less than its size.

    in_step: all ranks get equally many batches of equal sizes: a rank with one row less has its batch filled up. full:
    all batches are, to batch_size rows. What fills up is one of the rank's rows (or row 0), last, which is not to be
    counted: its sample number is -1. Those of all others are their rows. of_rows: the rows that are meant, by number;
    None: the set's `size` rows. whole, of in_step: no batch is filled up; the last one has a row of each rank, and all
    of a rank's either count or do not, so nothing need be cut from what samples are packed into.
    """

    def __init__(
        self,
        size: int,
        batch_size: int,
        rank: int,
        num_ranks: int,
        in_step: bool = False,
        count: int | None = None,
        full: bool = False,
        of_rows: np.ndarray | None = None,
        whole: bool = False,
    ) -> None:
        self._of_rows = of_rows
        self._size, self._batch_size = size, batch_size
        self._count = size if count is None else min(count, size)
        self._own = range(rank, self._count, num_ranks)  # places among the rows that are scored
        self.num_rows = len(self._own)
        self._length = -(-self._count // num_ranks) if in_step else self.num_rows
        self._length = -(-self._length // batch_size) * batch_size if full else self._length
        self._even = self._count // num_ranks if whole and in_step else self._length  # before a batch of one row
        self._num_batches = -(-self._even // batch_size) + (self._even < self._length)
        self.common = self._num_batches if in_step else -(-(self._count // num_ranks) // batch_size)  # every rank's

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        if k >= self._num_batches:
            return None
        rows, counted = self.lengths(k)
        begin, _ = self._places(k)
        part = self._own[begin : begin + counted]
        positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        if rows > counted:
            positions = np.append(positions, [self._own[0] if self._own else 0] * (rows - counted))
        chosen = spread(positions, self._count, self._size)
        chosen = chosen if self._of_rows is None else self._of_rows[chosen]
        return np.where(np.arange(rows) < counted, chosen, -1) if rows > counted else chosen, chosen

    def lengths(self, k: int) -> tuple[int, int]:
        """Of the k-th batch: (its rows, those of them that count, which come first)."""
        begin, end = self._places(k)
        return end - begin, max(0, min(end, self.num_rows) - begin)

    def _places(self, k: int) -> tuple[int, int]:
        begin = k * self._batch_size
        if begin < self._even:
            return begin, min(begin + self._batch_size, self._even)
        return self._even, self._length
