"""Row numbers of a split without an array of them: `rows[positions]` computes them. A random share takes 9 bytes per
1,024 rows of the file: 9 MB for 10**9 rows. An int64 array has the same interface.

A random share of `size` rows, with positions `begin` to `end - 1` of a fixed shuffling:

    row            -> block, row in the block      as few blocks as possible, of at most 1,024 consecutive rows and of
                                                   equal size, plus or minus 1
    row in block   -> rank in the block            by a random permutation of the block's rows
    position       =  rank * blocks + place        of the block in a random order of the blocks that have this rank. So
                                                   a share contains equally many rows of each block, plus or minus 1

The permutations of the first 64 blocks are drawn. Each later block uses one of them, rotated by a random number of
rows. The rows of a share are in ascending order, because the share's rows of a block are kept sorted in a small table.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

BLOCK, TABLES = 1024, 64  # rows of a block at most; permutations that are drawn
_AT_ONCE = 1 << 16  # rows of one set that are looked up in another at once

_GOLDEN, _KEY = 0x9E3779B97F4A7C15, 0xD1342543DE82EF95
_ROUNDS = [tuple(map(np.uint64, pair)) for pair in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))]
_LAST, _HALF = np.uint64(31), np.uint64(32)
# first counters of the blocks' rotations and of their order; the permutations use those below BLOCK * TABLES
_ROTATIONS, _PLACES = 1 << 40, 2 << 40

_version: ContextVar[int] = ContextVar("split_version", default=2)


@contextmanager
def split_version(version: int) -> Iterator[None]:
    """In this block, choose random shares of rows by a version of the rule. A program that saves its runs should save
    the version, too, because rows of one split would be in another with another version.

    1: until 0.2, sorts all rows. 2: needs no memory per row. Both choose the same rows of data with up to 1,024 rows.
    """
    if version not in (1, 2):
        raise ValueError(f"split_version({version}): must be 1 or 2")
    token = _version.set(version)
    try:
        yield
    finally:
        _version.reset(token)


def version_of_splits() -> int:
    """Return the version that `split_version` has set."""
    return _version.get()


class RowSet:
    """Row numbers as a function of the position in a split."""

    def __init__(self, size: int) -> None:
        self._size = size

    def __len__(self) -> int:
        return self._size

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        """Return the row numbers (B,) int64 at `positions` (B,) int64, all from 0 to len(self) - 1."""
        raise NotImplementedError

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return self[np.arange(self._size)].astype(np.int64 if dtype is None else dtype, copy=False)


class Block(RowSet):
    """Consecutive rows from `begin` to `end` - 1."""

    def __init__(self, begin: int, end: int) -> None:
        super().__init__(end - begin)
        self._begin = begin

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        return positions + self._begin


class RandomShare(RowSet):
    """The rows at positions `begin` to `end` - 1 of a shuffling of range(size), in ascending order (see above).

    Consecutive shares of one size and seed have no row in common and contain every row.
    """

    def __init__(self, size: int, begin: int, end: int, seed: int) -> None:
        super().__init__(end - begin)
        self.shuffling, self.bounds = (size, seed), (begin, end)
        self._blocks = blocks = max(1, -(-size // BLOCK))
        self._rows, self._longer = size // blocks, size % blocks  # so many blocks, evenly spread, have one row more
        self._tables, self._seed = min(blocks, TABLES), seed
        order = np.argsort(hashed(np.arange(blocks) + _PLACES, seed), kind="stable")
        # Blocks of one kind have the same number of rows, and the same ranks of these are in the share
        is_longer = np.diff(np.arange(blocks + 1) * self._longer // blocks)
        kinds = 4 * is_longer.astype(np.int8)
        for bound, bit in ((begin, 2), (end, 1)):
            rank, more = divmod(bound, blocks)
            have_rank = order if rank < self._rows else order[is_longer[order] == 1]
            kinds[have_rank[:more]] += bit
        there = np.flatnonzero(np.bincount(kinds))
        self._kinds = there.searchsorted(kinds).astype(np.int8)
        self._sizes, low = self._rows + (there >> 2), begin // blocks + (there >> 1 & 1)
        self._counts = end // blocks + (there & 1) - low
        self._ends = np.cumsum(self._counts[self._kinds])  # positions in the share up to the last row of each block
        self._below = np.zeros((len(there), self._tables, self._sizes.max() + 1), dtype=np.int16)
        self._members = np.zeros((len(there), self._tables, 2 * self._counts.max()), dtype=np.int16)
        for k, (ranks, size, chosen) in enumerate(zip(low, self._sizes, self._counts)):
            members = np.sort(self._permutations(size)[:, ranks : ranks + chosen], axis=1)
            inside = np.zeros((self._tables, size + 1), dtype=np.int16)
            np.put_along_axis(inside, members + 1, 1, axis=1)
            inside.cumsum(axis=1, out=self._below[k, :, : size + 1])  # members below each row of the block
            # twice, because a rotation moves the last members below the first ones: to `row - size + turn`
            self._members[k, :, : 2 * chosen] = np.concatenate([members - size, members], axis=1)

    def _permutations(self, rows: int) -> np.ndarray:
        """Return (tables, rows): the row of the block that has each rank."""
        counters = np.arange(self._tables)[:, None] * BLOCK + np.arange(rows)
        return np.argsort(hashed(counters, self._seed), axis=1, kind="stable")

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        block = self._ends.searchsorted(positions, side="right")
        part = self._kinds.take(block).astype(np.int64)
        count, rows = self._counts.take(part), self._sizes.take(part)
        place = positions - self._ends.take(block) + count
        numbers = block * self._rows
        numbers += block * self._longer // self._blocks  # first row of the block
        if self._blocks <= TABLES:
            return numbers + self._members[part, block, place + count]
        part *= TABLES
        part += block & (TABLES - 1)
        turn = (hashed(block + _ROTATIONS, self._seed) >> _HALF).view(np.int64) * rows >> 32
        # begin at the first member that the rotation moves to the begin of the block
        place += self._below.take(part * self._below.shape[-1] + (rows - turn))
        part *= self._members.shape[-1]
        part += place
        numbers += self._members.take(part)
        numbers += turn
        return numbers


class Shards(RowSet):
    """The rows of several files, one after the other. Only files with selected rows have an array of row numbers."""

    def __init__(self, chosen: Sequence[np.ndarray | range], starts: Sequence[int]) -> None:
        sizes = np.asarray([len(rows) for rows in chosen])
        listed = np.asarray([not isinstance(rows, range) for rows in chosen])
        super().__init__(int(sizes.sum()))
        self._begins, self._starts, self._listed = np.cumsum(sizes) - sizes, np.asarray(starts), listed
        self._at = np.cumsum(sizes * listed) - sizes * listed  # begin of a file's rows in `_rows`
        self._rows = np.concatenate([rows for rows in chosen if not isinstance(rows, range)])

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        shard = self._begins.searchsorted(positions, side="right") - 1
        rows = positions - self._begins[shard]
        here = np.flatnonzero(self._listed[shard])
        rows[here] = self._rows[self._at[shard[here]] + rows[here]]
        return rows + self._starts[shard]


class Within(RowSet):
    """The rows of one set at the positions that another set contains."""

    def __init__(self, rows: RowSet, positions: RowSet | np.ndarray) -> None:
        super().__init__(len(positions))
        self._rows, self._positions = rows, positions

    def __getitem__(self, positions: np.ndarray) -> np.ndarray:
        return self._rows[self._positions[positions]]


def rows_of_shards(chosen: Sequence[np.ndarray | range], starts: Sequence[int]) -> RowSet | np.ndarray | None:
    """Return the rows of several files as one set; None if they are all rows.

    chosen: an array of row numbers, or the range of all, for each file. starts: number of each file's first row.
    """
    if all(isinstance(rows, range) for rows in chosen):
        return None
    return Shards(chosen, starts) if len(chosen) > 1 else np.asarray(chosen[0])


def rows_within(rows: RowSet | np.ndarray, positions: RowSet | np.ndarray) -> RowSet | np.ndarray:
    """Return the rows at `positions` as one set."""
    return Within(rows, positions) if isinstance(rows, RowSet) else rows[np.asarray(positions)]


def count_shared(first: RowSet | np.ndarray, second: RowSet | np.ndarray) -> int:
    """Return how many rows are in both sets, whose rows are in ascending order, each of them once.

    Shares of one shuffling, and a set with a block, need no look at the rows. Otherwise the rows of the smaller set are
    looked up in the other one, in pieces, so the memory does not grow with the rows.
    """
    if isinstance(first, RandomShare) and isinstance(second, RandomShare) and first.shuffling == second.shuffling:
        begins, ends = zip(first.bounds, second.bounds)
        return max(0, min(ends) - max(begins))
    for block, others in ((first, second), (second, first)):
        if isinstance(block, Block):
            begin, end = count_below(others, block[np.array([0, len(block)])])
            return int(end - begin)
    few, many = sorted((first, second), key=len)
    shared = 0
    for start in range(0, len(few), _AT_ONCE):
        rows = few[np.arange(start, min(start + _AT_ONCE, len(few)))]
        begin, end = count_below(many, np.array([rows[0], rows[-1] + 1]))
        if end - begin <= 16 * len(rows):  # reading all of them is faster than a binary search for each row
            shared += len(np.intersect1d(rows, many[np.arange(begin, end)], assume_unique=True))
        else:
            shared += int((count_below(many, rows + 1) - count_below(many, rows)).sum())
    return shared


def count_below(rows: RowSet | np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Return how many of the ascending `rows` are below each bound, (B,) int64, by a binary search."""
    if isinstance(rows, np.ndarray):
        return rows.searchsorted(bounds)
    counts = np.zeros(len(bounds), dtype=np.int64)
    for bit in reversed(range(len(rows).bit_length())):
        more = counts + (1 << bit)
        known = np.minimum(more, len(rows))
        counts = np.where((more == known) & (rows[known - 1] < bounds), more, counts)
    return counts


def hashed(counters: np.ndarray, seed: int) -> np.ndarray:
    """Return uint64 pseudo-random numbers of counters >= 0 by splitmix64, which no version of NumPy can change."""
    numbers = counters.astype(np.uint64)
    numbers += np.uint64((seed * _KEY + _GOLDEN) % (1 << 64))
    for shift, factor in _ROUNDS:
        numbers ^= numbers >> shift
        numbers *= factor
    numbers ^= numbers >> _LAST
    return numbers
