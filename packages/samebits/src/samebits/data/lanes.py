"""Lanes: row k of a batch continues row k of the batch before, for models with a state that persists across rows. Lane
k is the sequence of all rows k.

    rows of the data set   0 1 2 3 4 5 6 7 8 9     consecutive windows of one long sequence
    lanes=3, training      step 0: 0 3 6   step 1: 1 4 7   step 2: 2 5 8   step 3: 0 3 6 ...    row 9 is never read
    lanes=3, evaluation    0 4 7   1 5 8   2 6 9   3    the first lanes have one more row: each row is read once

Each rank reads a contiguous part of each batch, and each micro-batch a contiguous part of that, so their lanes are the
same in all steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.errors import ConfigError

Batch = dict[str, Tensor]


class Lanes:
    """An order in lanes. size: rows of the data set. count: number of lanes."""

    def __init__(self, size: int, count: int) -> None:
        if not 0 < count <= size:
            raise ConfigError(
                f"data.order.lanes={count} must be between 1 and the {size:,} rows of the training split - use a "
                "smaller trainer.global_batch_size, or shorter rows (data.window)"
            )
        self.size, self.count, self.length = size, count, size // count

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        return sample_ids % self.count * self.length + sample_ids // self.count % self.length

    def note(self, batch_size: int) -> str:
        """Return a sentence for the log. Raise ConfigError if batch_size is not the number of lanes."""
        if batch_size != self.count:
            raise ConfigError(
                f"data.order.lanes={self.count}: a step reads one row of each lane, but "
                f"trainer.global_batch_size={batch_size} - give data.order.lanes=${{trainer.global_batch_size}}"
            )
        left = self.size - self.count * self.length
        return f"{self.count:,} lanes of {self.length:,} rows, the last {left:,} rows of the split are not read"

    def mark(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with "lane" and "position" (in the lane; 0: the lane starts again), each (B,) int64."""
        return {**batch, "lane": sample_ids % self.count, "position": sample_ids // self.count % self.length}


class LanePlan:
    """The plan of an evaluation in lanes.

    Rank r reads the lanes r, r + num_ranks, ...; a batch has one row of each, or of at most batch_size of them. Sample
    ids are the rows; the id of padding is -1, as in EvalPlan. count: number of rows to score, from the beginnings of
    all lanes. in_step, full: see EvalPlan."""

    def __init__(
        self,
        size: int,
        lanes: int,
        batch_size: int,
        rank: int,
        num_ranks: int,
        in_step: bool = False,
        count: int | None = None,
        full: bool = False,
    ) -> None:
        self.lanes, self._full, self._places = lanes, full, (rank, num_ranks)
        self._length, self._longer = divmod(size, lanes)  # rows per lane; the first `_longer` lanes have one more
        self._steps, self._last = divmod(size if count is None else min(count, size), lanes)
        like = 0 if in_step else rank  # the rank whose batch sizes this rank uses
        self._own = self._held(lanes, rank), self._held(self._last, rank)  # lanes in a step, and in the last step
        self._rows = self._held(lanes, like), self._held(self._last, like)
        most = self._held(lanes, 0)
        self._width = -(-most // -(-most // batch_size))
        self._num_batches = self._batches(*self._rows)
        least = like if in_step else num_ranks - 1
        # number of batches that every rank has
        self.common = self._batches(self._held(lanes, least), self._held(self._last, least))

    def _held(self, lanes: int, rank: int) -> int:
        """Return how many of the first `lanes` lanes belong to a rank."""
        return len(range(rank, lanes, self._places[1]))

    def _batches(self, rows: int, last: int) -> int:
        return self._steps * -(-rows // self._width) + -(-last // self._width)

    def _at(self, k: int) -> tuple[int, int, bool]:
        """Return, for the k-th batch, (step, index of the first lane within the rank's lanes, whether it is the last
        step, in which only some lanes have a row)."""
        step, part = divmod(k, max(1, -(-self._rows[0] // self._width)))
        part += 0 if step <= self._steps else (step - self._steps) * -(-self._rows[0] // self._width)
        return min(step, self._steps), part * self._width, step >= self._steps

    def size_and_real(self, k: int) -> tuple[int, int]:
        """Return (number of rows, number of rows that count) of the k-th batch; padding is at its end."""
        _, first, last = self._at(k)
        rows = self._width if self._full else min(self._width, self._rows[last] - first)
        return rows, min(rows, max(0, self._own[last] - first))

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        """Return (sample ids, rows) of the k-th batch, each (B,) int64; None after the last batch."""
        if k >= self._num_batches:
            return None
        (step, first, _), (rows, counted), (rank, num_ranks) = self._at(k), self.size_and_real(k), self._places
        lane = rank + num_ranks * np.arange(first, first + counted, dtype=np.int64)
        chosen = lane * self._length + np.minimum(lane, self._longer) + step
        filler = np.zeros(rows - counted, dtype=np.int64)
        return np.append(chosen, filler - 1), np.append(chosen, filler)

    def mark(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with "lane" and "position", as Lanes.mark. The lane of padding is `lanes`."""
        longer = self._longer * (self._length + 1)  # rows of the lanes that are longer
        in_longer, rest = sample_ids.clamp(min=0), (sample_ids - longer).clamp(min=0)
        short = max(self._length, 1)
        lane = torch.where(sample_ids < longer, in_longer // (self._length + 1), self._longer + rest // short)
        position = torch.where(sample_ids < longer, in_longer % (self._length + 1), rest % short)
        filler = sample_ids < 0
        return {**batch, "lane": lane.masked_fill(filler, self.lanes), "position": position.masked_fill(filler, 0)}
