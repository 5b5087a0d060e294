"""The figures that tell ranks apart, from what each has measured."""

from __future__ import annotations

from types import SimpleNamespace

import torch
from torch import nn

import samebits.parallel.balance
from samebits.loggers import Logger
from samebits.parallel.balance import figures, max_over_mean, straggler, unequal
from samebits.world import World


def test_ranks_that_are_alike_are_no_lines() -> None:
    """A line for each where one differs in memory or work, or waits for long; of many ranks the extremes."""
    memory, work, wait = [2e8, 2.1e8], [0.010, 0.0105], [0.0001, 0.0006]
    assert unequal({"memory": memory, "step_time": work, "data_wait": wait}) == []
    assert unequal({"memory": memory}) == []
    assert unequal({"memory": memory, "step_time": [0.01, 0.02], "data_wait": wait}) == [
        "rank 0: peak memory 200 MB, own work 10 ms per step, data wait 0.1 ms per step",
        "rank 1: peak memory 210 MB, own work 20 ms per step, data wait 0.6 ms per step",
    ]
    assert unequal({"memory": [2e8, 3e8]}) == ["rank 0: peak memory 200 MB", "rank 1: peak memory 300 MB"]
    assert len(unequal({"memory": memory, "step_time": work, "data_wait": [0.0, 0.003]})) == 2
    many = unequal({"memory": [1e8] * 5 + [2e8] + [1e8] * 58})
    assert [line.partition(":")[0] for line in many] == ["rank 0", "rank 5"]


def test_figures_are_those_since_the_last_log() -> None:
    """Whatever the loader has waited before; and the wait for other ranks is not a rank's own work."""
    loader = SimpleNamespace(wait_s=7.0)
    balance = samebits.parallel.balance.RankTiming(
        nn.Linear(1, 1), World(0, 1, 0, torch.device("cpu")), loader, Logger(), None
    )
    step = balance.timed(dict)
    for steps, wait_s, marks in ((4, 9.0, [2.0, 5.0]), (2, 9.5, [1.0, 2.0, 4.0, 8.0]), (3, 9.5, [])):
        for _ in range(steps):
            step()
        before, loader.wait_s = loader.wait_s, wait_s
        balance._add(0.0, 10.0, marks)
        waited = sum(marks[1::2]) - sum(marks[::2])
        assert balance.row()[1:] == [10.0 - waited, 1, wait_s - before, steps]


def test_the_straggler_is_the_slowest_by_a_share_of_the_others_mean() -> None:
    assert straggler([1.0, 1.0, 1.5], 0.4) == 2
    assert straggler([1.0, 1.0, 1.5], 0.6) is None
    assert straggler([1.0, 9.0], None) is None
    assert straggler([1.0, 1.0], 0.01) is None
    assert straggler([], 0.2) is None


def test_figures_leave_out_what_was_not_measured_everywhere() -> None:
    rows = [[100.0, 6.0, 3.0, 1.0, 4.0], [300.0, 8.0, 4.0, 0.0, 4.0]]
    assert figures(rows) == {"memory": [100.0, 300.0], "step_time": [2.0, 2.0], "data_wait": [0.25, 0.0]}
    rows[1][2] = 0.0
    assert "step_time" not in figures(rows)
    assert max_over_mean([1.0, 3.0]) == 1.5
    assert max_over_mean([0.0, 0.0]) == 1.0
