"""Shuffling for compressed sets with many samples in a chunk, and for sets larger than memory: whole chunks at a time.

    chunks of the file, permuted anew each epoch   | 7 2 9 4 | 0 5 8 1 | 3 6 |
    windows of 4 chunks, their samples shuffled     window 0   window 1  window 2
    a global batch of 4 in window 0                 one sample of chunk 7, one of 2, one of 9, one of 4

Each chunk is read once an epoch, and by one rank: the first places of the global batches take the samples of a window's
first chunks, the last places those of its last, and a rank takes a run of places. So which samples a batch holds does
not depend on the ranks, and a rank decodes its own chunks alone (and, where places and chunks do not divide evenly, one
more at each end of its run).

8 rows, chunks of 2, windows of 2 chunks, batches of 3; chunks come in the order 2 0 1 3 in this epoch:

    position in the epoch             0 1 2 3 | 4 5 6 7
    window_offset, place in a window  0 1 2 3 | 0 1 2 3
    row at this offset                4 5 0 1 | 2 3 6 7
    batch_slot, place in a batch      0 1 2 0 | 1 2 0 1    window 0 begins at slot 0, window 1 at slot 1
    group of slots                    0 0 1 0 | 0 1 0 0    as many as chunks in a window; slots 0 and 1, slot 2
    offset that is dealt to it        0 2 3 1 | 1 3 0 2    by slot, then by batch: slot 0 of window 0 has 0 and 1
    shuffled within its group         1 2 3 0 | 1 3 2 0    group 0 has offsets 0, 1, 2; group 1 has 3
    row                               5 0 1 4 | 3 7 6 2    what is at that offset

The price: the samples of a batch come from `window` chunks only. Where neighbours in the file are alike (sorted by
label) and a batch is larger than the window, the means of batches vary more than in a true shuffle (see `note`). A file
whose rows were shuffled when it was written pays nothing.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np

from samebits.data.order import size_of
from samebits.data.permutation import Permutation, hashed, permute_each
from samebits.errors import ConfigError
from samebits.files import in_words
from samebits.schema import Count
from samebits.world import dist_env

IntOrArray = TypeVar("IntOrArray", int, np.ndarray)
REMOTE_WINDOW = 256 << 20  # bytes, which are fetched in some seconds


def chunk_windows(
    dataset: Any, seed: int, window: Count | None, batch_size: Count, chunk_rows: Count | None
) -> ChunkWindows:
    """window: chunks shuffled together, None: 256, of remote data as many as have 256 MB; batch_size:
    trainer.global_batch_size; chunk_rows: samples in a chunk, None: as the dataset says."""
    rows = chunk_rows or getattr(dataset, "chunk_rows", None)
    if not rows:
        raise ConfigError(
            "data.order: chunk_windows needs chunks of several samples; this dataset has none, or fits decoded into "
            "data.cache_mb: "
            "set data.order.chunk_rows, or use data.order._target_=samebits.data.order.shuffled"
        )
    size, kept = size_of(dataset), getattr(dataset, "kept_bytes", 0)
    if window is not None and window < 1:
        raise ConfigError(f"data.order.window={window} must be at least 1 chunk; 256 or more shuffle well")
    if kept:
        chunk_bytes = rows * max(1, dataset.nbytes // size)
        window = max(1, REMOTE_WINDOW // chunk_bytes) if window is None else window
        hosts = (
            dist_env.size or 1
        ) // dist_env.local_size  # of two windows, which are here at once, each keeps its share
        most = max(1, kept * hosts // 2 // chunk_bytes)
        if window > most:
            raise ConfigError(
                f"data.order.window={window}: chunks of {in_words(chunk_bytes)}, of which two windows shall fit into "
                f"data.cache_gb: at most {most}"
            )
    return ChunkWindows(size, int(rows), 256 if window is None else window, batch_size, seed)


class ChunkWindows:
    def __init__(self, size: int, chunk_rows: int, window: int, batch_size: int, seed: int) -> None:
        self.size, self.chunk_rows, self._batch_size, self._seed = size, chunk_rows, batch_size, seed
        self.num_chunks = -(-size // chunk_rows)
        self.window = min(window, self.num_chunks)
        self._missing = self.num_chunks * chunk_rows - size  # rows that the last, shorter chunk lacks
        self._last_short = (-1, -1)  # epoch, place
        self._chunks = Permutation(self.num_chunks, seed, stream=1)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        """numbers: (B,) int64 -> (B,) int64 rows."""
        if not len(numbers):
            return numbers.copy()
        epochs, of = np.unique(numbers // self.size, return_inverse=True)
        epoch_begin, short = (epochs * self.size)[of], self._short_places(epochs)[of]
        positions, span = numbers - epoch_begin, self.window * self.chunk_rows
        # of each sample's window: its number and where it lies in the epoch
        window = self._padded(positions, short) // span
        begin = window * span - self._missing * (short < window * self.window)
        end = np.minimum((window + 1) * span - self._missing * (short < (window + 1) * self.window), self.size)
        keys = (hashed(self._seed, 2, epochs) >> np.uint64(8)).astype(np.int64)[of] ^ (window << 16)
        first_slot = (epoch_begin + begin) % self._batch_size
        shuffled = begin + self._in_window(positions - begin, end - begin, first_slot, keys)
        chunk_place, row = np.divmod(self._padded(shuffled, short), self.chunk_rows)
        return self._chunks(chunk_place, epochs[of]) * self.chunk_rows + row

    def window_of(self, number: int) -> int:
        """The window, counted over all epochs, that holds this sample number."""
        epoch, position = divmod(number, self.size)
        padded = int(self._padded(position, self._short_place(epoch)))
        return epoch * -(-self.num_chunks // self.window) + padded // (self.chunk_rows * self.window)

    def note(self, batch_size: int) -> str:
        """How good the shuffle is: the variance of batch means on data sorted by label, over that of a true shuffle."""
        drawn = min(self.window, batch_size)  # of how many chunks, each alike in itself, a batch holds samples
        factor = batch_size / drawn * (1 - drawn / self.num_chunks)
        samples = min(self.window * self.chunk_rows, self.size)
        windows = f"shuffled in windows of {self.window} chunks ({samples:,} samples)"
        return f"{windows}; on sorted data batch means vary {factor:.1f}x"

    def _short_place(self, epoch: int) -> int:
        known_epoch, place = self._last_short  # one tuple: threads may race here and only do the work twice
        if known_epoch != epoch:
            place = int(self._short_places(np.array([epoch]))[0])
            self._last_short = epoch, place
        return place

    def _short_places(self, epochs: np.ndarray) -> np.ndarray:
        """(n,) int64: where the last, shorter chunk comes among the chunks of these epochs."""
        return self._chunks.inverse(np.full(len(epochs), self.num_chunks - 1), epochs)

    def _padded(self, positions: IntOrArray, short: IntOrArray) -> IntOrArray:
        """Positions in the epoch -> what they were if no chunk was short: chunk's place * chunk_rows + row in it."""
        return positions + self._missing * (positions >= (short + 1) * self.chunk_rows - self._missing)

    def _in_window(
        self, window_offset: np.ndarray, size: np.ndarray, first_slot: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """Samples in windows of `size` that begin at a batch's `first_slot`, all (B,) -> (B,) offsets shuffled.

        The samples are dealt, batch slot by batch slot, to the rows of the window as they lie, and shuffled among a few
        neighbouring slots, as many as share a chunk: so each slot keeps to its own chunks.
        """
        batch, batch_slot = np.divmod(first_slot + window_offset, self._batch_size)
        groups = min(self.window, self._batch_size)
        group = batch_slot * groups // self._batch_size
        # the first slot of a group, and of the next one
        low, high = (-(-(group + k) * self._batch_size // groups) for k in (0, 1))
        begin, end = self._before(low, size, first_slot), self._before(high, size, first_slot)
        within = self._before(batch_slot, size, first_slot) - begin + batch - (batch_slot < first_slot)
        return begin + permute_each(within, end - begin, keys ^ group, self._seed, stream=3)

    def _before(self, batch_slot: np.ndarray, size: np.ndarray, first_slot: np.ndarray) -> np.ndarray:
        """How many of a window's `size` samples, which begin at a batch's `first_slot`, are at slots below these."""
        whole, left = np.divmod(size, self._batch_size)
        wrapped = np.maximum(0, first_slot + left - self._batch_size)  # of the last `left`, those at slots 0, 1, ...
        last = np.clip(batch_slot - first_slot, 0, left - wrapped) + np.minimum(batch_slot, wrapped)
        return batch_slot * whole + last
