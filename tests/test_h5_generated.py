"""Random HDF5 files of every kind, whole and damaged, against h5py. LAB_TEST_SEED=n takes others; see h5_fuzz.py."""

from __future__ import annotations

import os
from typing import Any

import h5_fuzz
import pytest
from conftest import slow

SEED = int(os.environ.get("LAB_TEST_SEED", "0")) * 1_000_000


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [("files", 0, 8), ("damage", 0, 2), slow("files", 100, 60), slow("damage", 100, 20)],
)
def test_what_h5py_reads_or_one_line(kind: str, first: int, count: int, record_property: Any) -> None:
    faults, total = h5_fuzz.run(kind, SEED + first, count)
    record_property("made", dict(total))
    assert not faults, "\n".join(faults[:20])
    assert total["fields"] > 2 * count
    assert total["read"] > count / 2
