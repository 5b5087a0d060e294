"""Lanes: each row continues the one before it in its lane, and an evaluation has each row once on any hardware."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch

from samebits.data.lanes import LanePlan, Lanes
from samebits.data.order import Repeated, TrainPlan, lanes, overfit
from samebits.errors import ConfigError


def test_rows_continue_from_step_to_step() -> None:
    order = Lanes(29, 4)  # lanes of 7 rows, and one row is left
    steps = order(np.arange(4 * 15)).reshape(15, 4)
    for t, (before, after) in enumerate(itertools.pairwise(steps), start=1):
        assert (after == (before + 1 if t % 7 else [0, 7, 14, 21])).all()
    assert sorted(steps[:7].ravel()) == list(range(28))
    assert order.note(4) == "4 lanes of 7 rows, the last 1 rows of the split are not read"


def test_ranks_and_micro_batches_have_lanes_of_their_own() -> None:
    order, held = Lanes(29, 4), {}
    for rank in (0, 1):
        plan = TrainPlan(order, 4, [1, 1], rank, 2, start=20)  # a resume, in the middle of a pass
        for k in range(8):
            numbers, rows = plan(k)
            marked = order.mark({}, torch.from_numpy(numbers))
            assert marked["lane"].tolist() == [2 * rank + k % 2]
            assert (marked["lane"] * 7 + marked["position"]).tolist() == rows.tolist()
            held[rank, k] = rows.tolist()
    assert len(held) == 16


@pytest.mark.one_quick
@pytest.mark.parametrize(("size", "count"), [(29, 4), (28, 4), (3, 4), (40, 16)])
@pytest.mark.parametrize("limit", [None, 13])
@pytest.mark.parametrize(("in_step", "full"), [(False, False), (True, False), (True, True), (False, True)])
def test_an_evaluation_has_each_row_once(size: int, count: int, limit: int | None, in_step: bool, full: bool) -> None:
    """Whatever the ranks and the batch size, and within a lane in order."""
    expected = None
    for ranks, batch_size in itertools.product((1, 2, 3, 5), (1, 3, 64)):
        found: dict[int, tuple[int, int]] = {}
        shapes = []
        plans = [LanePlan(size, count, batch_size, rank, ranks, in_step, limit, full) for rank in range(ranks)]
        for plan in plans:
            at, k = {}, 0
            while (part := plan(k)) is not None:
                numbers, rows = part
                whole, counted = plan.size_and_real(k)
                assert (len(rows), (numbers >= 0).sum()) == (whole, counted)
                assert whole <= batch_size
                assert (numbers[:counted] == rows[:counted]).all()
                marked = plan.mark({}, torch.from_numpy(numbers))
                for row, lane, place in zip(rows[:counted], *(marked[name] for name in ("lane", "position"))):
                    assert row not in found
                    found[int(row)] = int(lane), int(place)
                    assert int(place) == (at[int(lane)][0] + 1 if int(lane) in at else 0)
                    assert int(lane) not in at or int(row) == at[int(lane)][1] + 1
                    at[int(lane)] = int(place), int(row)
                assert (marked["lane"][counted:] == count).all()
                k += 1
            assert plan.common <= k
            shapes.append([plan.size_and_real(number)[0] for number in range(k)])
        assert len(found) == min(size, limit or size)
        assert min(map(len, shapes)) == plans[0].common
        if in_step:
            assert all(shape == shapes[0] for shape in shapes)
        if full:
            assert len({width for shape in shapes for width in shape}) == 1
        expected = expected or found
        assert found == expected


def test_what_does_not_go_in_lanes_is_refused() -> None:
    class Overlapping(list[int]):
        consecutive = False

    with pytest.raises(ConfigError, match=r"data\.order\.lanes=30 must be between 1 and the 29 rows"):
        lanes(range(29), 0, lanes=30)
    with pytest.raises(ConfigError, match=r"data\.stride: .*data\.stride=\$\{data\.window\}"):
        lanes(Overlapping(range(29)), 0, lanes=3)
    with pytest.raises(ConfigError, match=r"data\.order\.lanes=3: .*trainer\.global_batch_size=4"):
        TrainPlan(lanes(range(29), 0, lanes=3), 4, [4], 0, 1, 0)


def test_overfitting_stays_in_lanes() -> None:
    """The first rows of each lane, and then each begins anew."""
    numbers = np.arange(24)
    order = Repeated(lanes(range(100), 0, lanes=2), 8)
    assert order(numbers).tolist() == [0, 50, 1, 51, 2, 52, 3, 53] * 3
    marked = order.mark({}, torch.from_numpy(numbers))
    assert marked["position"].tolist() == [0, 0, 1, 1, 2, 2, 3, 3] * 3
    assert overfit(range(100), 0, count=8, lanes=2)(numbers).tolist() == [0, 4, 1, 5, 2, 6, 3, 7] * 3  # of older runs
