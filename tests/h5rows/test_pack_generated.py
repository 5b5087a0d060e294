"""Random sources for the packer, whole and damaged. LAB_TEST_SEED=n takes others; see pack_fuzz.py."""

from __future__ import annotations

import os
from typing import Any

import pack_fuzz
import pytest
from conftest import slow

SEED = int(os.environ.get("LAB_TEST_SEED", "0")) * 1_000_000


@pytest.mark.parametrize(("first", "count"), [(0, 24), slow(100, 120)])
def test_what_was_written_or_one_line(first: int, count: int, record_property: Any) -> None:
    faults, total = pack_fuzz.run(SEED + first, count)
    record_property("made", dict(total))
    assert not faults, "\n".join(faults[:20])
    assert sum(number for name, number in total.items() if name.endswith("packed")) > count / 4
