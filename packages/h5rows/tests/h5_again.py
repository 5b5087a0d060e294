"""Files that are repacked and inspected: all fields are as they were, or one line refuses."""

from __future__ import annotations

import contextlib
import io
from collections import Counter
from dataclasses import replace
from pathlib import Path

from h5_judge import one_line
from h5_truth import Truth, truth
from h5_types import Draw

from h5rows.errors import ConfigError
from h5rows.options import RepackOptions
from h5rows.packing.inspect import inspect_file
from h5rows.packing.repack import repack_file


def look_and_repack(path: Path, seed: int, before: dict[str, Truth]) -> list[str]:
    """-> what is wrong; leaves new.h5 beside the file, if it can be repacked."""
    may = any(was.may or was.refused.startswith("h5py") or None in was.values.values() for was in before.values())
    w, wrong, said = Draw(seed), [], io.StringIO()
    with contextlib.redirect_stdout(said):
        try:
            inspect_file(str(path))
        except Exception as error:
            wrong.append(f"inspect: {one_line(error, path)}")
    codec = w.one_of(["none", "none", "gzip", "zstd"])
    options = RepackOptions(codec, None, w.one_of([None, 1, 3]), external="allow", overwrite=True, quiet=True)
    options = replace(options, flatten=w.chance(0.4) and options.is_contiguous)
    with contextlib.redirect_stdout(said):
        try:
            repack_file(str(path), str(path.with_name("new.h5")), options, "")
        except ConfigError as error:
            # also of what is no field
            reasons = ("addresses do not have 8 bytes", "is stored in", "is virtual", "external raw")
            if not may and not any(reason in str(error) for reason in reasons):
                wrong.append(f"refused: {error}")
            wrong += filter(None, [one_line(error, path)])
        except Exception as error:
            wrong.append(f"repack: {type(error).__name__}: {error}")
    return [line for line in wrong if line != "inspect: "]


def compare(path: Path, before: dict[str, Truth]) -> tuple[list[str], Counter[str]]:
    wrong, seen = [], Counter({"files": 1})
    for name, was in before.items():
        seen["fields"] += 1
        if was.refused or was.may:
            continue
        now = truth(path.with_name("new.h5"), name)
        if now.refused and None in was.values.values():  # rows that h5py cannot read: left out by name
            continue
        seen["read"] += 1
        known = {row: value for row, value in was.values.items() if row not in was.loose}
        if now.refused or {row: now.values.get(row) for row in known} != known or now.rows != was.rows:
            wrong.append(f"{name!r}: {str(now)[:200]} instead of {str(was)[:200]}")
    return wrong, seen
