"""Random HDF5 files of every kind, whole and damaged, against h5py. LAB_TEST_SEED=n takes others; see h5_fuzz.py."""

from __future__ import annotations

import os
from typing import Any

import h5_fuzz
import pytest
from conftest import slow

SEED = int(os.environ.get("LAB_TEST_SEED", "0")) * 1_000_000


KINDS = {"files": (5, 30), "damage": (2, 8), "again": (3, 20), "changed": (3, 30), "growing": (2, 20),
         "sparse": (4, 20), "bombs": (3, 20), "circles": (5, 40), "places": (8, 40)}  # fmt: skip
QUICK = [(kind, 0, few) for kind, (few, _) in KINDS.items()]


@pytest.mark.parametrize(("kind", "first", "count"), [*QUICK, *(slow(k, 100, many) for k, (_, many) in KINDS.items())])
def test_what_h5py_reads_or_one_line(kind: str, first: int, count: int, record_property: Any) -> None:
    faults, total = h5_fuzz.run(kind, SEED + first, count)
    record_property("made", dict(total))
    assert not faults, "\n".join(faults[:20])
    assert total["fields"] >= count
    assert total["read"] or kind in ("changed", "circles", "places")
