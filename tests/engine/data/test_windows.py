"""chunk_windows: the same samples in every version, at a cost that does not depend on the number of windows."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine.data import permutation
from engine.data.order import TrainPlan
from engine.data.permutation import Permutation, hashed
from engine.data.windows import ChunkWindows


class OneByOne:
    """The rows of ChunkWindows worked out sample by sample: what saved runs go on with."""

    def __init__(self, size: int, chunk_rows: int, window: int, batch_size: int, seed: int) -> None:
        self.size, self.chunk_rows, self.batch_size, self.seed = size, chunk_rows, batch_size, seed
        self.num_chunks = -(-size // chunk_rows)
        self.window = min(window, self.num_chunks)
        self.missing = self.num_chunks * chunk_rows - size
        self.chunks = Permutation(self.num_chunks, seed, stream=1)

    def __call__(self, number: int) -> int:
        epoch, position = divmod(number, self.size)
        short = int(self.chunks.inverse(np.array([self.num_chunks - 1]), np.array([epoch]))[0])
        span = self.window * self.chunk_rows
        window = self.slot(position, short) // span
        begin = window * span - (self.missing if short < window * self.window else 0)
        end = min((window + 1) * span - (self.missing if short < (window + 1) * self.window else 0), self.size)
        key = int(hashed(self.seed, 2, np.array([epoch]))[0] >> np.uint64(8)) ^ (window << 16)
        first = (epoch * self.size + begin) % self.batch_size
        slot, row = divmod(
            self.slot(begin + self.inside(position - begin, end - begin, first, key), short), self.chunk_rows
        )
        return int(self.chunks(np.array([slot]), np.array([epoch]))[0]) * self.chunk_rows + row

    def slot(self, position: int, short: int) -> int:
        return position + self.missing * (position >= (short + 1) * self.chunk_rows - self.missing)

    def inside(self, offset: int, size: int, first: int, key: int) -> int:
        batch, place = divmod(first + offset, self.batch_size)
        groups = min(self.window, self.batch_size)
        group = place * groups // self.batch_size
        low, high = (-(-(group + k) * self.batch_size // groups) for k in (0, 1))
        begin, end = self.before(low, size, first), self.before(high, size, first)
        within = self.before(place, size, first) - begin + batch - (place < first)
        permutation = Permutation(end - begin, self.seed, stream=3)
        return begin + int(permutation(np.array([within]), np.array([key ^ group]))[0])

    def before(self, place: int, size: int, first: int) -> int:
        whole, left = divmod(size, self.batch_size)
        wrapped = max(0, first + left - self.batch_size)
        return place * whole + min(max(place - first, 0), left - wrapped) + min(place, wrapped)


@pytest.mark.slow
@settings(max_examples=25, deadline=None)
@given(
    st.integers(1, 1 << 16),
    st.integers(1, 3000),
    st.integers(1, 300),
    st.integers(1, 2000),
    st.integers(0, 1 << 70),
    st.lists(st.integers(0, 1 << 40), min_size=1, max_size=20),
)
def test_the_samples_are_those_of_the_first_version(
    size: int, chunk_rows: int, window: int, batch_size: int, seed: int, begins: list[int]
) -> None:
    """A run that was saved by an older version goes on with the samples that would have come."""
    arguments = (size, chunk_rows % size + 1, window, batch_size, seed)
    numbers = np.array([begin + k for begin in begins for k in (0, 1, batch_size)])
    expected = [OneByOne(*arguments)(number) for number in numbers.tolist()]
    assert ChunkWindows(*arguments)(numbers).tolist() == expected


@pytest.mark.parametrize(("size", "window", "batch_size"), [(2, 1, 2), (1000, 1, 64), (10_007, 3, 4096)])
def test_many_small_windows_are_worked_out_together(
    size: int, window: int, batch_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[int] = []
    network = permutation._network
    monkeypatch.setattr(permutation, "_network", lambda values, *rest: calls.append(1) or network(values, *rest))
    TrainPlan(ChunkWindows(size, 1, window, batch_size, 0), batch_size, [batch_size], 0, 1, 0)(0)
    assert 0 < len(calls) < 200


def test_the_worked_example() -> None:
    """Of the module's docstring."""
    assert ChunkWindows(8, 2, 2, 3, seed=1)(np.arange(8)).tolist() == [5, 0, 1, 4, 3, 7, 6, 2]
