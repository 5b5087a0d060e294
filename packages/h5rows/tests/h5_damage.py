"""Damage to HDF5 files, and what Dataset may do with them: h5py's values, the undamaged ones, or one true line."""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from h5_judge import Judge, one_line, rows_of, same
from h5_truth import Truth
from h5_types import Draw

SIGNS = [b"OHDR", b"OCHK", b"TREE", b"SNOD", b"HEAP", b"FRHP", b"FHDB", b"BTHD", b"BTLF", b"FAHD", b"FADB", b"EAHD",
         b"EAIB", b"EADB", b"GCOL", b"\x89HDF"]  # fmt: skip
NUMBERS = [0, 1, 255, 1 << 16, (1 << 31) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1]


def damage(path: Path, seed: int) -> str:
    """Change some bytes of a file -> what was done."""
    w, raw = Draw(seed), bytearray(path.read_bytes())
    if not raw:
        return "nothing left"
    kind = w.one_of(["bit", "bit", "bit", "bits", "zeros", "noise", "number", "number", "moved", "cut", "longer"])
    at = place(w, bytes(raw))
    size = w.one_of([1, 2, 4, 8, 16, 64, 512])
    if kind == "bit":
        raw[at] ^= 1 << w.between(0, 7)
    elif kind == "bits":
        for _ in range(w.between(2, 9)):
            raw[place(w, bytes(raw))] ^= 1 << w.between(0, 7)
    elif kind == "zeros":
        raw[at : at + size] = bytes(len(raw[at : at + size]))
    elif kind == "noise":
        raw[at : at + size] = w.rng.bytes(len(raw[at : at + size]))
    elif kind == "number":
        width = w.one_of([1, 2, 4, 8])
        raw[at : at + width] = (w.one_of(NUMBERS) % (1 << 8 * width)).to_bytes(width, "little")[: len(raw) - at]
    elif kind == "moved":
        other = place(w, bytes(raw))
        raw[at : at + size] = raw[other : other + size][: len(raw) - at]
    elif kind == "cut":
        del raw[w.one_of([at, len(raw) - size, len(raw) - 1]) :]
    else:
        raw += w.rng.bytes(size)
    path.write_bytes(raw)
    return f"{kind} at {at} of {path.name}"


def place(w: Draw, raw: bytes) -> int:
    """A byte: often one that describes the others."""
    sign = w.one_of(SIGNS)
    found = [k for k in range(len(raw)) if raw.startswith(sign, k)] if w.chance(0.6) else []
    at = w.one_of(found) + w.between(0, 120) if found else w.between(0, len(raw) - 1)
    return min(at, len(raw) - 1)


class DamageJudge(Judge):
    """before: what h5py read while the file was whole."""

    def __init__(self, path: Path, truths: dict[str, Truth], before: dict[str, Truth], seed: int) -> None:
        super().__init__(path, truths, seed)
        self.before = before

    def field(self, name: str) -> None:
        truth = self.truths[name]
        if (data := self.opened(name)) is None:
            return
        known = list(truth.values)
        if truth.refused or len(data) != truth.rows:
            if not truth.may:
                self.fault(name, "is read, but", truth.refused or f"has {truth.rows} rows, not {len(data)}")
            return
        self.seen["read"] += 1
        for rows in [*(np.array([row]) for row in known[:40]), *(rows_of(self.rng, known) for _ in range(3))]:
            self.compare(name, data, truth, rows)

    def refusal(self, name: str, truth: Truth, error: Exception) -> None:
        if bad := one_line(error, self.path):
            self.fault(name, "opening", bad)
        whole = not truth.refused and not truth.may and None not in truth.values.values()
        if whole and "is damaged there" in str(error):
            self.fault(name, "is called damaged", str(error))
        self.seen["refused, h5py reads it" if whole else "refused"] += 1
        if whole and os.environ.get("LAB_TEST_SHOW"):
            print(self.path.name, name, error, flush=True)

    def compare(self, name: str, data: Any, truth: Truth, rows: np.ndarray) -> None:
        try:
            batch = data.gather(rows)
        except Exception as error:
            if bad := one_line(error, self.path):
                self.fault(name, f"rows {rows}", bad)
            self.seen["rows refused"] += len(rows)
            return
        if bad := same(batch, "f0", truth, rows):
            before = self.before[name]
            known = all(before.values.get(int(row)) is not None for row in rows)
            if known and before.dtype == truth.dtype and not same(batch, "f0", before, rows):
                self.seen["rows as before the damage"] += len(rows)
            else:
                self.fault(name, f"{data.describe()}", bad)
        else:
            self.seen["rows equal"] += len(rows)


def judge_damaged(
    path: Path, truths: dict[str, Truth], before: dict[str, Truth], seed: int
) -> tuple[list[str], Counter[str]]:
    made = DamageJudge(path, truths, before, seed)
    for name in truths:
        made.field(name)
    return made.wrong, made.seen
