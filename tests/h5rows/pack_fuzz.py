"""Random sources for the packer: what is packed is what was written there, or one line refuses it.

PYTHONPATH=src:tests/h5rows python tests/h5rows/pack_fuzz.py 0 100        # first seed, how many
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pack_arrays
import pack_odd
import pack_records
import pack_tables
from h5_types import Draw
from pack_case import judge

MAKERS = [*pack_arrays.MAKERS, *pack_records.MAKERS, *pack_tables.MAKERS, *pack_odd.MAKERS]


def run(first: int, count: int, show: Callable[[str], None] = print) -> tuple[list[str], Counter[str]]:
    """-> (faults, how many of what)."""
    total: Counter[str] = Counter()
    faults: list[str] = []
    makers = [m for m in MAKERS if os.environ.get("LAB_TEST_ONLY", m.__name__) == m.__name__]
    for seed in range(first, first + count):
        w = Draw(seed)
        maker = makers[seed % len(makers)]
        with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
            case = maker(w, Path(folder))
            done, wrong = judge(case)
        total += Counter({"sources": 1, f"{maker.__name__} {done}": 1, "fields": len(case.expected or "1")})
        if wrong:
            faults.append(f"{maker.__name__} {seed} {case.what}: {done} {wrong}"[:500])
            show(faults[-1])
    return faults, total


if __name__ == "__main__":
    found, counts = run(int(sys.argv[1]), int(sys.argv[2]))
    print(json.dumps({"faults": len(found), **dict(sorted(counts.items()))}))
    sys.exit(bool(found))
