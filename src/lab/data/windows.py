"""Shuffling for compressed sets with many samples in a chunk, and for sets larger than memory: whole chunks at a time.

    chunks of the file, permuted anew each epoch   | 7 2 9 4 | 0 5 8 1 | 3 6 |
    windows of 4 chunks, their samples shuffled     window 0   window 1  window 2

Each chunk is read once an epoch. The price: the samples of a batch come from `window` chunks only. Where neighbours in
the file are alike (sorted by label), the means of batches then vary more than in a true shuffle: by a factor of about
1 + batch_size / window (see `note`). A file whose rows were shuffled when it was written pays nothing.
"""

from __future__ import annotations

from collections.abc import Sized
from typing import TypeVar

import numpy as np

from lab.data.order import size_of
from lab.data.permutation import Permutation, hashed
from lab.errors import ConfigError

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)


def chunk_windows(dataset: Sized, seed: int, window: int, chunk_rows: int | None) -> ChunkWindows:
    """window: chunks shuffled together; chunk_rows: samples in a chunk, None: as the dataset says."""
    rows = chunk_rows or getattr(dataset, "chunk_rows", None)
    if not rows:
        raise ConfigError(
            "data.order: chunk_windows needs chunks of several samples; this dataset has none, or fits decoded into "
            "data.cache_mb: "
            "set data.order.chunk_rows, or use data.order._target_=lab.data.order.shuffled"
        )
    if window < 1:
        raise ConfigError(f"data.order.window={window} must be at least 1 chunk; 256 or more shuffle well")
    return ChunkWindows(size_of(dataset), int(rows), window, seed)


class ChunkWindows:
    def __init__(self, size: int, chunk_rows: int, window: int, seed: int) -> None:
        self.size, self.chunk_rows, self._seed = size, chunk_rows, seed
        self.num_chunks = -(-size // chunk_rows)
        self.window = min(window, self.num_chunks)
        self._missing = self.num_chunks * chunk_rows - size  # rows that the last, shorter chunk lacks
        self._last_short = (-1, -1)  # epoch, slot
        self._chunks = Permutation(self.num_chunks, seed, stream=1)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 -> (B,) int64 rows."""
        rows = np.empty_like(numbers)
        epochs = numbers // self.size
        for epoch in np.unique(epochs).tolist():
            here = np.flatnonzero(epochs == epoch)
            rows[here] = self._in_epoch(numbers[here] - epoch * self.size, epoch)
        return rows

    def window_of(self, number: int) -> int:
        """The window, counted over all epochs, that holds this sample number."""
        epoch, position = divmod(number, self.size)
        slot = int(self._slots(position, self._short_slot(epoch)))
        return epoch * -(-self.num_chunks // self.window) + slot // (self.chunk_rows * self.window)

    def note(self, batch_size: int) -> str:
        """How good the shuffle is: the variance of batch means on data sorted by label, over that of a true shuffle."""
        factor = 1 + batch_size / self.window * (1 - self.window / self.num_chunks)
        samples = min(self.window * self.chunk_rows, self.size)
        windows = f"shuffled in windows of {self.window} chunks ({samples:,} samples)"
        return f"{windows}; on sorted data batch means vary {factor:.1f}x"

    def _short_slot(self, epoch: int) -> int:
        """Where the last, shorter chunk comes in this epoch."""
        known_epoch, slot = self._last_short  # one tuple: threads may race here and only do the work twice
        if known_epoch != epoch:
            slot = int(self._chunks.inverse(np.array([self.num_chunks - 1]), np.array([epoch]))[0])
            self._last_short = epoch, slot
        return slot

    def _slots(self, positions: IntOrArray, short: int) -> IntOrArray:
        """Positions in the epoch -> slot * chunk_rows + row in the chunk: skips the rows that the short chunk lacks."""
        return positions + self._missing * (positions >= (short + 1) * self.chunk_rows - self._missing)

    def _in_epoch(self, positions: np.ndarray, epoch: int) -> np.ndarray:
        span = self.window * self.chunk_rows
        short = self._short_slot(epoch)
        windows = self._slots(positions, short) // span
        shuffled = np.empty_like(positions)
        for window in np.unique(windows).tolist():
            here = np.flatnonzero(windows == window)
            begin = window * span - (self._missing if short < window * self.window else 0)
            end = min((window + 1) * span - (self._missing if short < (window + 1) * self.window else 0), self.size)
            key = int(hashed(self._seed, 2, np.array([epoch]))[0] >> np.uint64(8)) ^ window
            inside = Permutation(end - begin, self._seed, stream=3)
            shuffled[here] = begin + inside(positions[here] - begin, np.array([key]))
        slots, rows = np.divmod(self._slots(shuffled, short), self.chunk_rows)
        return self._chunks(slots, np.array([epoch])) * self.chunk_rows + rows
