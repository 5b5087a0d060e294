"""Sample orders map each sample id to a row of the data set. The row depends only on the seed and the sample id, and
on the order's state if it has one (samebits.data.stateful).

    sample id       0 1 2 3 | 4 5 6 7 | 8 9 ...       counts all samples of a run, over all epochs and ranks
    global batch    step 0  | step 1  | ...           the same set for any number of ranks
    local batch     rank 0: 0 1, rank 1: 2 3 | ...    equal sizes, disjoint, divided further into micro-batches

The sequence continues across epochs: a batch may contain the last samples of one epoch and the first of the next. So
all batches have the same size and all ranks the same number of steps. The order `epochs` ends each
epoch at a batch boundary instead, like a DataLoader: drop_last=True drops the last rows, False pads their batch.

The config selects an order by `data.order._target_`, and the run calls it with (dataset, seed=seed). This module has
`shuffled`, `sequential`, `first`, `lanes`, `overfit` and `epochs`; samebits.data.windows has `chunk_windows`;
samebits.data.sampling has `class_balanced`, `weighted` and `length_buckets`.
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
from samebits.files import amount
from samebits.schema import Count

# A plan: the rows that this rank reads. Index of a micro-batch of this rank -> (sample ids, rows), each (B,) int64 and
# read-only; None after the last
Plan = Callable[[int], "tuple[np.ndarray, np.ndarray] | None"]

_BLOCK = 16384  # samples whose rows are computed in one call, so that numpy's cost per call does not matter


class Order(Protocol):
    """Map sample ids to rows.

    Optional methods and attributes: `note(batch_size) -> str`: a sentence for the log. `window_of(sample_id) -> int`:
    the window of a sample; windows are read as a whole if possible. `epoch_samples`: samples per epoch, if not the size
    of the data set. `padded` = True, with `counts(sample_ids) -> (B,) bool`: some sample ids are padding."""

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows of the data set, (B,) int64; sample_ids: (B,) int64."""


def size_of(dataset: Sized) -> int:
    """Return the number of samples. Raise ConfigError if there are none."""
    if not len(dataset):
        raise ConfigError("data: the training split contains no samples; check data.path and data.splits")
    return len(dataset)


def shuffled(dataset: Sized, seed: int) -> Order:
    """Return an order with a new permutation of the rows in each epoch."""
    size = size_of(dataset)
    permutation = Permutation(size, seed, stream=0)

    def order(sample_ids: np.ndarray) -> np.ndarray:
        epochs = sample_ids // size
        return permutation(sample_ids - epochs * size, epochs)

    return order


def sequential(dataset: Sized, seed: int) -> Order:
    """Return the order of the rows in the data set, repeated in each epoch."""
    size = size_of(dataset)
    return lambda sample_ids: sample_ids % size


def first(dataset: Sized, seed: int, count: Count) -> Order:
    """Return an order that repeats the first `count` rows. A model should be able to overfit them."""
    if not 0 < count <= size_of(dataset):
        raise ConfigError(
            f"data.order.count={count} must be between 1 and the {amount(len(dataset), 'sample')} of the training split"
        )
    return lambda sample_ids: sample_ids % count


def lanes(dataset: Sized, seed: int, lanes: Count) -> Lanes:
    """Return an order in lanes, see samebits.data.lanes.

    dataset: its rows continue each other, for example data=tokens with data.stride=${data.window}. lanes:
    trainer.global_batch_size. Raise ConfigError if the rows do not continue each other.
    """
    if not getattr(dataset, "consecutive", True):
        raise ConfigError("data.stride: lanes need rows that continue each other - give data.stride=${data.window}")
    return Lanes(size_of(dataset), lanes)


class Repeated:
    """Repeat the first `count` samples of an order. A model should be able to overfit them."""

    def __init__(self, order: Any, count: int) -> None:
        self._order, self._count = order, count

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        rows: np.ndarray = self._order(sample_ids % self._count)
        return rows

    def mark(self, batch: Any, sample_ids: Any) -> Any:
        """Return the batch with its lanes, as Lanes.mark. Only for an order in lanes."""
        return self._order.mark(batch, sample_ids % self._count)


def overfit(dataset: Sized, seed: int, count: Count, **replaced: Any) -> Order:
    """Return the order of debug=overfit in runs from before data.overfit existed."""
    order = first(dataset, seed, count)
    return Lanes(count, replaced["lanes"]) if "lanes" in replaced else order


def epochs(dataset: Sized, seed: int, batch_size: Count, drop_last: bool = True) -> Order:
    """Return an order with a new permutation of the rows in each epoch, whose epochs end with a batch.

    batch_size: trainer.global_batch_size. drop_last=True drops the rows that do not fill a batch, different ones in
    each epoch, as DataLoader(shuffle=True, drop_last=True). drop_last=False trains on them as a smaller last batch, see
    `Epochs`."""
    return Epochs(size_of(dataset), seed, batch_size, drop_last)


class Epochs:
    """Divide sample ids into epochs of complete batches. With 10 rows and batches of 4:

    drop_last=True:  0 1 2 3 | 4 5 6 7 || 8 9 10 11 ...          an epoch has 8 samples
    drop_last=False: 0 1 2 3 | 4 5 6 7 | 8 9 - - || 12 13 ...    an epoch has 12 sample ids

    "-" is padding with rows that the epoch has already used: `counts` returns False for it, its sample id in the batch
    is -1, and the loss gives it weight 0. So all batches have the same shape, and all ranks the same number of rows.
    """

    def __init__(self, size: int, seed: int, batch_size: int, drop_last: bool = True) -> None:
        self.epoch_samples = (size if drop_last else size + batch_size - 1) // batch_size * batch_size
        self._size, self.padded = size, self.epoch_samples > size
        if not self.epoch_samples:
            raise ConfigError(
                f"data.order.batch_size={batch_size}: the training split has {amount(size, 'sample')}, so its epochs "
                "have no complete batch - give a smaller trainer.global_batch_size, or use data/order=shuffled"
            )
        self._permutation = Permutation(size, seed, stream=0)

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        epochs = sample_ids // self.epoch_samples
        return self._permutation((sample_ids - epochs * self.epoch_samples) % self._size, epochs)

    def counts(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return (B,) bool: False for padding."""
        return sample_ids % self.epoch_samples < self._size


class TrainPlan:
    """The plan of training: the micro-batches of this rank, from the step that begins with sample id `start`. The
    sequence never ends.

    A step has sum(micro_sizes) * num_ranks = global_batch_size samples. Raise ConfigError for other sizes, and if
    epochs do not end with a batch."""

    def __init__(
        self, order: Order, global_batch_size: int, micro_sizes: list[int], rank: int, num_ranks: int, start: int
    ) -> None:
        share = global_batch_size // num_ranks
        if share * num_ranks != global_batch_size or sum(micro_sizes) != share or not 0 <= rank < num_ranks:
            raise ConfigError(
                f"TrainPlan: {global_batch_size=}, {micro_sizes=}, {rank=}, {num_ranks=}: the batch must be num_ranks "
                "times the sum of micro_sizes, and rank a number from 0 to num_ranks - 1"
            )
        self.order, self._global_batch_size, self._share = order, global_batch_size, share
        self._begins = [0, *np.cumsum(micro_sizes).tolist()]
        self.max_rows = max(micro_sizes)
        self._first = start + rank * share
        self._steps = -(-_BLOCK // share)  # steps in a block
        self._blocks: dict[int, tuple[np.ndarray, np.ndarray]] = {}
        self._lock = threading.Lock()
        self._window_of: Callable[[int], int] | None = getattr(order, "window_of", None)
        self.epoch_samples: int | None = getattr(order, "epoch_samples", None)
        self.padded: bool = getattr(order, "padded", False)  # some sample ids are -1
        if self.epoch_samples and self.epoch_samples % global_batch_size:
            raise ConfigError(
                f"trainer.global_batch_size={global_batch_size}: epochs of {self.epoch_samples:,} samples do not end "
                f"with a whole batch - give data.order.batch_size={global_batch_size} too"
            )
        note = getattr(order, "note", None)
        self.note: str = note(global_batch_size) if note else ""

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Return (sample ids, rows) of the k-th micro-batch, each (B,) int64."""
        step, micro = divmod(k, len(self._begins) - 1)
        block, step_in_block = divmod(step, self._steps)
        sample_ids, rows = self._block(block)
        at = step_in_block * self._share
        part = slice(at + self._begins[micro], at + self._begins[micro + 1])
        return sample_ids[part], rows[part]

    def window(self, k: int) -> int | None:
        """Return the window in which the k-th micro-batch begins; None if the order has no windows."""
        if self._window_of is None:
            return None
        step, micro = divmod(k, len(self._begins) - 1)
        return self._window_of(self._first + step * self._global_batch_size + self._begins[micro])

    def begins_step(self, k: int) -> bool:
        """Return True if a step begins with the k-th micro-batch."""
        return k % (len(self._begins) - 1) == 0

    def reordered(self, k: int, change: Callable[[], None]) -> TrainPlan:
        """Call change(), which changes the order, and return a plan that continues at the step that begins with
        micro-batch k.

        Threads that still use the old plan get a RuntimeError; batches that they prepare are not used.
        """
        assert self.begins_step(k)
        plan = copy.copy(self)
        plan._first += k // (len(self._begins) - 1) * self._global_batch_size
        with self._lock:
            self.order = _replaced
            change()
        return plan

    def _block(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        with self._lock:  # threads share a block: the first one computes it
            if block not in self._blocks:
                steps = np.arange(block * self._steps, (block + 1) * self._steps, dtype=np.int64)
                begins = self._first + steps * self._global_batch_size
                sample_ids = (begins[:, None] + np.arange(self._share, dtype=np.int64)).ravel()
                while len(self._blocks) > 1:
                    del self._blocks[next(iter(self._blocks))]
                rows = self.order(sample_ids)
                if self.padded:
                    sample_ids = np.where(self.order.counts(sample_ids), sample_ids, -1)  # type: ignore[attr-defined]
                self._blocks[block] = sample_ids, rows
            return self._blocks[block]

    def __getstate__(self) -> dict[str, object]:
        return {**self.__dict__, "_lock": None, "_blocks": {}}

    def __setstate__(self, state: dict[str, object]) -> None:
        self.__dict__.update(state)
        self._lock = threading.Lock()


def _replaced(sample_ids: np.ndarray) -> np.ndarray:
    raise RuntimeError("this plan was replaced by a reorder")


def stratified_subset(positions: np.ndarray, count: int, size: int) -> np.ndarray:
    """Return the rows at these positions, (B,) int64, of a fixed and ascending selection of `count` of `size` rows.

    positions: (B,) int64 below count. The selection has one row of each of `count` equal ranges, at an offset given by
    a hash. So classes keep about their shares, in files sorted by class and in files in which classes alternate."""
    if count >= size:
        return positions
    begins, ends = positions * size // count, (positions + 1) * size // count
    bits = hashed(0, 6, positions) >> np.uint64(1)
    return begins + bits.astype(np.int64) % (ends - begins)


class EvalPlan:
    """The plan of an evaluation: every row exactly once over all ranks. Rank r reads rows r, r + num_ranks, ...

    Padding is at the end of a batch. It repeats one of the rank's rows (or row 0), its sample id is -1, and it does not
    count. The sample id of all other rows is the row.

    size: rows of the data set.
    in_step: all ranks have the same number of batches, with the same sizes: a rank with one row less pads its last one.
    count: evaluate only this number of rows, spread evenly over the data set; None: all.
    full: pad all batches to batch_size rows.
    of_rows: (N,) int64, the rows to evaluate; None: all `size` rows.
    whole: with in_step, no batch of a rank is partly padding: the last batch has one row per rank, which counts or is
        padding. Needed for data sets whose samples are packed into one tensor and cannot be cut.
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
        self.num_evaluated = size if count is None else min(count, size)
        self._own = range(rank, self.num_evaluated, num_ranks)  # positions among the evaluated rows
        self.num_rows = len(self._own)
        self._length = -(-self.num_evaluated // num_ranks) if in_step else self.num_rows
        self._length = -(-self._length // batch_size) * batch_size if full else self._length
        # without a last batch of one row
        self._even = self.num_evaluated // num_ranks if whole and in_step else self._length
        self._num_batches = -(-self._even // batch_size) + (self._even < self._length)
        # number of batches that every rank has
        self.common = self._num_batches if in_step else -(-(self.num_evaluated // num_ranks) // batch_size)

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (sample ids, rows) of the k-th batch, each (B,) int64; None after the last batch."""
        if k >= self._num_batches:
            return None
        begin, rows, counted = self._place(k)
        part = self._own[begin : begin + counted]
        positions = np.arange(part.start, part.stop, part.step, dtype=np.int64)
        if rows > counted:
            positions = np.append(positions, [self._own[0] if self._own else 0] * (rows - counted))
        chosen = stratified_subset(positions, self.num_evaluated, self._size)
        chosen = chosen if self._of_rows is None else self._of_rows[chosen]
        return np.where(np.arange(rows) < counted, chosen, -1) if rows > counted else chosen, chosen

    def size_and_real(self, k: int) -> tuple[int, int]:
        """Return (number of rows, number of rows that count) of the k-th batch; padding is at its end."""
        return self._place(k)[1:]

    def _place(self, k: int) -> tuple[int, int, int]:
        """Return (first of the rank's positions, number of rows, number of rows that count) of the k-th batch."""
        begin = k * self._batch_size
        end = min(begin + self._batch_size, self._even)
        if begin >= self._even:
            begin, end = self._even, self._length
        return begin, end - begin, max(0, min(end, self.num_rows) - begin)
