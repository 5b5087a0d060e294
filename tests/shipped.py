"""What is asked of the template's own methods: less than of yours, since TaskTests itself is tested by other means."""

from __future__ import annotations

import pytest

from samebits.testing import TaskTests
from samebits.testing.processes import ALL


@pytest.mark.slow
class Shipped(TaskTests):
    """Of most of the template's own methods: what their own code can break. The rest is the engine's, and asked of
    those that inherit from TaskTests."""

    if not ALL:
        kills = (7,)
        ranks = (1,)
        ways = (["2 ranks, micro-batches"],)  # either alone: test_exactness.py and test_reference.py
        test_compiling_changes_nothing = test_the_average_is_scored = None  # type: ignore[assignment]
        test_debug_overfit = None  # type: ignore[assignment]


class Stateless(Shipped):
    """Of those that hold nothing of their own between two steps."""

    if not ALL:
        test_killed_twice_is_undisturbed = None  # type: ignore[assignment]
