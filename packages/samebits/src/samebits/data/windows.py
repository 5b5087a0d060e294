"""Shuffle data sets that are compressed in chunks of many samples, or larger than memory: a few complete chunks at a
time.

    chunks of the file, permuted in each epoch      | 7 2 9 4 | 0 5 8 1 | 3 6 |
    windows of 4 chunks, their samples shuffled     window 0   window 1  window 2
    a global batch of 4 in window 0                 one sample of chunk 7, one of 2, one of 9, one of 4

Each chunk is read once per epoch, by one rank: the first positions of a global batch get samples of the first chunks
of the window, the last positions samples of its last chunks, and each rank reads a contiguous range of positions. So
the samples of a batch do not depend on the number of ranks, and a rank decodes only its own chunks (and one more at
each end of its range if positions and chunks do not divide evenly).

8 rows, chunks of 2, windows of 2 chunks, batches of 3; the order of the chunks is 2 0 1 3 in this epoch:

    position in the epoch                0 1 2 3 | 4 5 6 7
    window_offset, position in a window  0 1 2 3 | 0 1 2 3
    row at this offset                   4 5 0 1 | 2 3 6 7
    batch_slot, position in a batch      0 1 2 0 | 1 2 0 1    window 0 begins at slot 0, window 1 at slot 1
    group of slots                       0 0 1 0 | 0 1 0 0    one group per chunk of a window: slots 0 and 1; slot 2
    offset that is assigned to it        0 2 3 1 | 1 3 0 2    by slot, then by batch: slot 0 of window 0 has 0 and 1
    shuffled within its group            1 2 3 0 | 1 3 2 0    group 0 has offsets 0, 1, 2; group 1 has 3
    row                                  5 0 1 4 | 3 7 6 2    the row at that offset

The cost: the samples of a batch come from only `window` chunks. If neighbors in the file are similar (sorted by label)
and a batch is larger than the window, the means of batches vary more than in a true shuffle (see `note`). Files whose
rows were shuffled when they were written do not have this cost.
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
REMOTE_WINDOW = 256 << 20  # bytes; fetching them takes a few seconds


def chunk_windows(
    dataset: Any, seed: int, window: Count | None, batch_size: Count, chunk_rows: Count | None
) -> ChunkWindows:
    """Return an order that shuffles windows of chunks.

    Raise ConfigError if the data set has no chunks, or if two windows do not fit into data.cache_gb.

    window: chunks that are shuffled together; None: 256, or as many as have 256 MB if the data are remote.
    batch_size: trainer.global_batch_size.
    chunk_rows: samples per chunk; None: `dataset.chunk_rows`.
    """
    rows = chunk_rows or getattr(dataset, "chunk_rows", None)
    if not rows:
        raise ConfigError(
            "data.order: chunk_windows needs chunks of several samples; this dataset has none, or fits into "
            "data.cache_mb when decoded: set data.order.chunk_rows, or use data/order=shuffled"
        )
    size, kept = size_of(dataset), getattr(dataset, "kept_bytes", 0)
    if window is not None and window < 1:
        raise ConfigError(f"data.order.window={window} must be at least 1 chunk; 256 or more shuffle well")
    if kept:
        chunk_bytes = rows * max(1, dataset.nbytes // size)
        window = max(1, REMOTE_WINDOW // chunk_bytes) if window is None else window
        hosts = (dist_env.size or 1) // dist_env.local_size  # each host keeps its share of two windows
        most = max(1, kept * hosts // 2 // chunk_bytes)
        if window > most:
            raise ConfigError(
                f"data.order.window={window}: two windows of chunks of {in_words(chunk_bytes)} must fit into "
                f"data.cache_gb - give at most {most}"
            )
    return ChunkWindows(size, int(rows), 256 if window is None else window, batch_size, seed)


class ChunkWindows:
    """The order of `chunk_windows`. size: rows of the data set. window: chunks per window."""

    def __init__(self, size: int, chunk_rows: int, window: int, batch_size: int, seed: int) -> None:
        self.size, self.chunk_rows, self._batch_size, self._seed = size, chunk_rows, batch_size, seed
        self.num_chunks = -(-size // chunk_rows)
        self.window = min(window, self.num_chunks)
        self._missing = self.num_chunks * chunk_rows - size  # rows by which the last chunk is shorter
        self._last_short = (-1, -1)  # epoch, position of the short chunk
        self._chunks = Permutation(self.num_chunks, seed, stream=1)

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return rows, (B,) int64; sample_ids: (B,) int64."""
        if not len(sample_ids):
            return sample_ids.copy()
        epochs, of = np.unique(sample_ids // self.size, return_inverse=True)
        epoch_begin, short = (epochs * self.size)[of], self._short_places(epochs)[of]
        positions, span = sample_ids - epoch_begin, self.window * self.chunk_rows
        # the window of each sample: its index, begin and end in the epoch
        window = self._padded(positions, short) // span
        begin = window * span - self._missing * (short < window * self.window)
        end = np.minimum((window + 1) * span - self._missing * (short < (window + 1) * self.window), self.size)
        keys = (hashed(self._seed, 2, epochs) >> np.uint64(8)).astype(np.int64)[of] ^ (window << 16)
        first_slot = (epoch_begin + begin) % self._batch_size
        shuffled = begin + self._in_window(positions - begin, end - begin, first_slot, keys)
        chunk_place, row = np.divmod(self._padded(shuffled, short), self.chunk_rows)
        return self._chunks(chunk_place, epochs[of]) * self.chunk_rows + row

    def window_of(self, number: int) -> int:
        """Return the index of the window, counted over all epochs, that contains this sample id."""
        epoch, position = divmod(number, self.size)
        padded = int(self._padded(position, self._short_place(epoch)))
        return epoch * -(-self.num_chunks // self.window) + padded // (self.chunk_rows * self.window)

    def note(self, batch_size: int) -> str:
        """Return a sentence on the quality of the shuffle: variance of batch means on sorted data, relative to a true
        shuffle."""
        # number of different chunks in a batch; the samples of a chunk are assumed to be equal
        drawn = min(self.window, batch_size)
        factor = batch_size / drawn * (1 - drawn / self.num_chunks)
        samples = min(self.window * self.chunk_rows, self.size)
        windows = f"shuffled in windows of {self.window} chunks ({samples:,} samples)"
        return f"{windows}; on sorted data batch means vary {factor:.1f}x"

    def _short_place(self, epoch: int) -> int:
        known_epoch, place = self._last_short  # one tuple: if threads race here, the work is only done twice
        if known_epoch != epoch:
            place = int(self._short_places(np.array([epoch]))[0])
            self._last_short = epoch, place
        return place

    def _short_places(self, epochs: np.ndarray) -> np.ndarray:
        """Return (n,) int64: the position of the last, shorter chunk among the chunks of each epoch."""
        return self._chunks.inverse(np.full(len(epochs), self.num_chunks - 1), epochs)

    def _padded(self, positions: IntOrArray, short: IntOrArray) -> IntOrArray:
        """Return positions in the epoch as if no chunk was short: position of the chunk * chunk_rows + row in the
        chunk."""
        return positions + self._missing * (positions >= (short + 1) * self.chunk_rows - self._missing)

    def _in_window(
        self, window_offset: np.ndarray, size: np.ndarray, first_slot: np.ndarray, keys: np.ndarray
    ) -> np.ndarray:
        """Return shuffled offsets, (B,). All arguments are (B,): offset in the window, and the window's size and first
        batch slot.

        The samples are assigned to the rows of the window in file order, one batch slot after the other, and shuffled
        among a few neighboring slots, as many as share a chunk. So each slot gets only samples of its own chunks."""
        batch, batch_slot = np.divmod(first_slot + window_offset, self._batch_size)
        groups = min(self.window, self._batch_size)
        group = batch_slot * groups // self._batch_size
        # the first slot of a group, and of the next one
        low, high = (-(-(group + k) * self._batch_size // groups) for k in (0, 1))
        begin, end = self._before(low, size, first_slot), self._before(high, size, first_slot)
        within = self._before(batch_slot, size, first_slot) - begin + batch - (batch_slot < first_slot)
        return begin + permute_each(within, end - begin, keys ^ group, self._seed, stream=3)

    def _before(self, batch_slot: np.ndarray, size: np.ndarray, first_slot: np.ndarray) -> np.ndarray:
        """Return how many samples of a window of `size`, which begins at batch slot `first_slot`, have a lower batch
        slot."""
        whole, left = np.divmod(size, self._batch_size)
        wrapped = np.maximum(0, first_slot + left - self._batch_size)  # how many of these are at slots 0, 1, ...
        last = np.clip(batch_slot - first_slot, 0, left - wrapped) + np.minimum(batch_slot, wrapped)
        return batch_slot * whole + last
