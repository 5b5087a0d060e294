"""Files that change while they are read: the values of the file that was opened, or one line that says so; one that is
cut short while its mapping is read kills the process (SIGBUS)."""

from __future__ import annotations

import os
import pickle
import shutil
import signal
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
from h5_judge import Judge, in_a_fork, one_line, rows_of, same
from h5_truth import Truth
from h5_types import Draw

CHANGES = ["cut", "cut", "replaced", "rewritten", "longer", "touched", "removed", "one byte"]


def change(w: Draw, path: Path, other: Path) -> str:
    """other: a file of the same field names, of other values."""
    kind, size = w.one_of(CHANGES), path.stat().st_size
    if kind == "cut":
        os.truncate(path, w.one_of([0, w.between(0, size - 1), size - 1, size // 2]))
    elif kind == "replaced":
        shutil.copy(other, path.with_suffix(".new"))
        os.replace(path.with_suffix(".new"), path)
    elif kind == "rewritten":
        path.write_bytes(other.read_bytes())
    elif kind == "longer":
        with open(path, "ab") as file:
            file.write(w.rng.bytes(100))
    elif kind == "removed":
        path.unlink()
    elif kind == "one byte":
        raw = bytearray(path.read_bytes())
        raw[w.between(0, size - 1)] ^= 255
        path.write_bytes(raw)
    if path.exists() and kind != "replaced":
        os.utime(path, ns=(0, w.between(1, 1 << 40)))  # a file system may count time coarsely
    return f"{path.name} {kind}"


class ChangeJudge(Judge):
    """One dataset of several fields, used or not, in this process, pickled or forked; then a file changes."""

    def run(self, path: Path, other: Path) -> None:
        w = Draw(int(self.rng.integers(1 << 30)))
        whole = {n: t for n, t in self.truths.items() if not (t.refused or t.may or t.loose or t.outside)}
        whole = {n: t for n, t in whole.items() if t.values and None not in t.values.values()}
        if not whole:
            return
        first = w.one_of(sorted(whole))
        names = [n for n, t in whole.items() if t.rows == whole[first].rows]
        data = self.open(*names, cache_mb=w.one_of([0, 1]))
        known = list(whole[first].values)
        if used := w.chance(0.6):
            data.gather(rows_of(self.rng, known))
        packed = pickle.dumps(data)
        what = change(w, path, other)
        self.seen[what.split()[1]] += 1
        for use in ("here", "pickled", "forked", "again"):
            said = self.use(what, use, data, packed, names, whole, known)
            killed = said == f" (status {int(signal.SIGBUS)})" and " cut" in what
            self.seen["killed by SIGBUS"] += killed
            if said and not killed:
                self.wrong.append(f"{what}, used before: {used}, {use}, {names}: {said}")

    def use(
        self,
        what: str,
        use: str,
        data: Any,
        packed: bytes,
        names: list[str],
        truths: dict[str, Truth],
        known: list[int],
    ) -> str:
        def read() -> str:
            try:
                here = pickle.loads(packed) if use == "pickled" else data
                rows = rows_of(self.rng, known).astype(np.int64)
                batch = here.gather(rows)
            except Exception as error:
                return one_line(error, self.path)
            return next(filter(None, (same(batch, f"f{k}", truths[n], rows) for k, n in enumerate(names))), "")

        return in_a_fork(read) if use == "forked" or " cut" in what else read()


def judge_changed(path: Path, truths: dict[str, Truth], seed: int, other: Path) -> tuple[list[str], Counter[str]]:
    made = ChangeJudge(path, truths, seed)
    made.run(path, other)
    return made.wrong, made.seen + Counter({"files": 1, "fields": len(truths)})
