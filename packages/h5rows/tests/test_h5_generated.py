"""Random HDF5 files of every kind, whole and damaged, against h5py. LAB_TEST_SEED=n takes others; see h5_fuzz.py."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from running import run_python, sample_of, slow

SEED = int(os.environ.get("LAB_TEST_SEED", "0")) * 1_000_000


@pytest.mark.parametrize(
    ("kind", "first", "count"),
    [("files", 0, 3), slow("files", 100, 30), slow("damage", 0, sample_of(12, 60)), slow("again", 0, 20)],
)
def test_what_h5py_reads_or_one_line(kind: str, first: int, count: int, record_property: Any) -> None:
    """In a process that no other test has used: what is forked from it has its threads, locks and address space."""
    done = run_python(str(Path(__file__).with_name("h5_fuzz.py")), kind, str(SEED + first), str(count), seconds=140)
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    total = json.loads(done.stdout.splitlines()[-1])
    record_property("made", total)
    assert total["fields"] >= count
    assert total["read"] > 0
