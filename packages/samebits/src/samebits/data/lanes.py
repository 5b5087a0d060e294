"""Lanes: row k of a step's batch continues row k of the step before, for models that carry a state from row to row.

    rows of the data set   0 1 2 3 4 5 6 7 8 9     consecutive windows of one long sequence
    lanes=3, training      step 0: 0 3 6   step 1: 1 4 7   step 2: 2 5 8   step 3: 0 3 6 ...    row 9 is never read
    lanes=3, evaluation    0 4 7   1 5 8   2 6 9   3    the first lanes are one row longer: each row is read once

A rank takes a run of each step's places, and its micro-batches a run of these: so the same lanes in all steps.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from samebits.errors import ConfigError

Batch = dict[str, Tensor]


class Lanes:
    """An order: sample number -> row. size: rows of the data set."""

    def __init__(self, size: int, count: int) -> None:
        if not 0 < count <= size:
            raise ConfigError(
                f"data.order.lanes={count} must be between 1 and the {size:,} rows of the training split: a smaller "
                "trainer.global_batch_size, or shorter rows (data.window)"
            )
        self.size, self.count, self.length = size, count, size // count

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        return numbers % self.count * self.length + numbers // self.count % self.length

    def note(self, batch_size: int) -> str:
        if batch_size != self.count:
            raise ConfigError(
                f"data.order.lanes={self.count}: a step reads one row of each lane, and "
                f"trainer.global_batch_size={batch_size} - give data.order.lanes=${{trainer.global_batch_size}}"
            )
        left = self.size - self.count * self.length
        return f"{self.count:,} lanes of {self.length:,} rows, the last {left:,} rows of the split are not read"

    def mark(self, batch: Batch, numbers: Tensor) -> Batch:
        """A transform: adds "lane" and "position", the place in it; 0: the lane begins anew. Each (B,) int64."""
        return {**batch, "lane": numbers % self.count, "position": numbers // self.count % self.length}


class LanePlan:
    """An evaluation in lanes, over all ranks: rank r has the lanes r, r + num_ranks, ..., and a batch one row of each,
    or of at most batch_size of them. Sample numbers are the rows; -1 for what fills a batch up, as in EvalPlan.

    count: rows that are scored, from the begin of all lanes. in_step, full: see EvalPlan.
    """

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
        self._length, self._longer = divmod(size, lanes)  # rows of a lane; so many lanes have one more
        self._steps, self._last = divmod(size if count is None else min(count, size), lanes)
        like = 0 if in_step else rank  # whose batches this rank's have the size of
        self._own = self._held(lanes, rank), self._held(self._last, rank)  # lanes in a step, and in the last one
        self._rows = self._held(lanes, like), self._held(self._last, like)
        most = self._held(lanes, 0)
        self._width = -(-most // -(-most // batch_size))
        self._num_batches = self._batches(*self._rows)
        least = like if in_step else num_ranks - 1
        self.common = self._batches(self._held(lanes, least), self._held(self._last, least))  # every rank's

    def _held(self, lanes: int, rank: int) -> int:
        """How many of the first `lanes` lanes a rank has."""
        return len(range(rank, lanes, self._places[1]))

    def _batches(self, rows: int, last: int) -> int:
        return self._steps * -(-rows // self._width) + -(-last // self._width)

    def _at(self, k: int) -> tuple[int, int, bool]:
        """(step, first of the rank's lanes, whether only some lanes have a row) of the k-th batch."""
        step, part = divmod(k, max(1, -(-self._rows[0] // self._width)))
        part += 0 if step <= self._steps else (step - self._steps) * -(-self._rows[0] // self._width)
        return min(step, self._steps), part * self._width, step >= self._steps

    def lengths(self, k: int) -> tuple[int, int]:
        """Of the k-th batch: (its rows, those of them that count, which come first)."""
        _, first, last = self._at(k)
        rows = self._width if self._full else min(self._width, self._rows[last] - first)
        return rows, min(rows, max(0, self._own[last] - first))

    def __call__(self, k: int) -> tuple[np.ndarray, np.ndarray] | None:
        if k >= self._num_batches:
            return None
        (step, first, _), (rows, counted), (rank, num_ranks) = self._at(k), self.lengths(k), self._places
        lane = rank + num_ranks * np.arange(first, first + counted, dtype=np.int64)
        chosen = lane * self._length + np.minimum(lane, self._longer) + step
        filler = np.zeros(rows - counted, dtype=np.int64)
        return np.append(chosen, filler - 1), np.append(chosen, filler)

    def mark(self, batch: Batch, numbers: Tensor) -> Batch:
        """As Lanes.mark. Lane `lanes` is that of rows which fill up."""
        longer = self._longer * (self._length + 1)  # rows of the lanes that are longer
        in_longer, rest = numbers.clamp(min=0), (numbers - longer).clamp(min=0)
        short = max(self._length, 1)
        lane = torch.where(numbers < longer, in_longer // (self._length + 1), self._longer + rest // short)
        position = torch.where(numbers < longer, in_longer % (self._length + 1), rest % short)
        filler = numbers < 0
        return {**batch, "lane": lane.masked_fill(filler, self.lanes), "position": position.masked_fill(filler, 0)}
