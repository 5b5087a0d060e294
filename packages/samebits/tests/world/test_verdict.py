"""Which rank the others wait for."""

from __future__ import annotations

import re

import pytest

from samebits.world.watchdog import Report, verdict


def report(rank: int, waits: bool, idle_s: float, step: int = 3, torch: bool = False, limit_s: float = 20) -> Report:
    return Report(rank, idle_s, limit_s, step, f"training, at step {step}", waits, torch)


@pytest.mark.parametrize(
    ("reports", "size", "named"),
    [
        ([report(0, True, 30), report(1, False, 29), report(2, True, 31)], 3, "rank 1 hung"),
        # a rank that said nothing is the one, but only where all that spoke wait
        ([report(0, True, 30), report(2, True, 31)], 3, "rank 1 hung.* it is stopped, or native code holds its"),
        ([report(0, True, 30), report(2, False, 31)], 3, "rank 2 hung"),
        ([report(0, True, 30), report(1, False, 2)], 2, None),  # one that still moves is only slow
        # of a GPU, where waiting cannot be seen: behind by steps, whoever stands longer
        ([report(0, False, 30, step=4, torch=True), report(1, False, 30.01, step=3, torch=True)], 2, "rank 1 hung"),
        ([report(0, False, 30.01, step=4, torch=True), report(1, False, 30, step=3, torch=True)], 2, "rank 1 hung"),
        ([report(0, False, 30.01, torch=True), report(1, False, 30)], 2, "rank 1 hung"),  # in its own code
        ([report(0, False, 30, torch=True), report(1, False, 19.9)], 2, "rank 1 hung"),  # it came a bit later
        ([report(0, True, 30, step=4), report(1, True, 30)], 2, "rank 1 hung.* rank 0 in training, at step 4, rank 1 "),
        # a callback has its own limit
        ([report(0, False, 100, limit_s=720), report(1, True, 30)], 2, None),
        (
            [report(0, False, 721, limit_s=720), report(1, True, 30)],
            2,
            r"rank 0 hung.* 720 s \(36 x process\.timeout; ",
        ),
        ([report(0, False, 100, limit_s=720), report(1, False, 30, step=2)], 2, "rank 1 hung"),
        ([report(0, True, 100, limit_s=720), report(1, True, 30)], 2, "rank 0 hung"),  # for one that never comes
        ([report(0, True, 1, limit_s=720), report(1, True, 30)], 2, None),  # it has just come
    ],
)
def test_the_verdict_names_the_rank_that_the_others_wait_for(
    reports: list[Report], size: int, named: str | None
) -> None:
    found = verdict(reports, size, 20)
    assert found is None if named is None else found is not None and re.match(named, found[1])
