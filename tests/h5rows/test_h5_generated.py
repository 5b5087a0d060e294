"""Random HDF5 files of every kind, whole and damaged, against h5py. LAB_TEST_SEED=n takes others; see h5_fuzz.py."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest
from conftest import ROOT, slow
from fork import run_python

SEED = int(os.environ.get("LAB_TEST_SEED", "0")) * 1_000_000


KINDS = {"files": (5, 30), "damage": (2, 8), "again": (3, 20), "changed": (3, 30), "growing": (2, 20),
         "sparse": (4, 20), "bombs": (3, 20), "circles": (5, 40), "places": (8, 40)}  # fmt: skip
QUICK = [(kind, 0, few) for kind, (few, _) in KINDS.items()]


@pytest.mark.one_quick
@pytest.mark.parametrize(("kind", "first", "count"), [*QUICK, *(slow(k, 100, many) for k, (_, many) in KINDS.items())])
def test_what_h5py_reads_or_one_line(kind: str, first: int, count: int, record_property: Any) -> None:
    """In a process that no other test has used: what is forked from it has its threads, locks and address space."""
    done = run_python(ROOT, "tests/h5rows/h5_fuzz.py", kind, str(SEED + first), str(count), seconds=140)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    total = json.loads(done.stdout.splitlines()[-1])
    record_property("made", total)
    assert total["fields"] >= count
    assert "read" in total or kind in ("changed", "circles", "places")
