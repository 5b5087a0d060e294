"""chunk_windows: the same samples in every version, at a cost that does not depend on the number of windows."""

from __future__ import annotations

import hashlib
import random

import numpy as np
import pytest

from samebits.data import permutation
from samebits.data.order import TrainPlan
from samebits.data.windows import ChunkWindows


def test_the_samples_are_those_of_the_first_version() -> None:
    """A run that was saved by an older version goes on with the samples that would have come: what that version, which
    worked them out one by one, gave for sizes, windows and batches of all kinds."""
    dice, seen = random.Random(0), hashlib.sha256()
    for _ in range(60):
        size = dice.choice((dice.randint(1, 50), dice.randint(1, 1 << 16)))
        chunk_rows, window, batch_size = dice.randint(1, min(size, 3000)), dice.randint(1, 300), dice.randint(1, 2000)
        order = ChunkWindows(size, chunk_rows, window, batch_size, seed=dice.getrandbits(70))
        numbers = [begin + k for begin in (0, dice.getrandbits(40)) for k in range(4 * batch_size)]
        seen.update(order(np.array(numbers[::97])).astype("<i8").tobytes())
    assert seen.hexdigest() == "aa17b4f0c7ece92baff02f07bb212249a39e1011ceeff369994b130d7770fe5a"


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
