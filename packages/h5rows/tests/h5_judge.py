"""Compare what Dataset gives with what h5py reads, in many ways of use: -> what differs, in one line each."""

from __future__ import annotations

import os
import pickle
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from h5_truth import Truth

from h5rows.dataset import Dataset
from h5rows.errors import ConfigError

Batch = dict[str, Any]


def in_a_fork(work: Callable[[], str]) -> str:
    """What `work` says in a forked process, empty where all is well; else what it raised or was killed by."""
    begin, end = os.pipe()
    if (pid := os.fork()) == 0:
        try:
            os.write(end, (work() or "well").encode())
        except BaseException as error:
            os.write(end, f"{type(error).__name__}: {error}".encode())
        os._exit(0)
    os.close(end)
    with open(begin) as pipe:
        said = pipe.read()
    status = os.waitpid(pid, 0)[1]
    return "" if said == "well" and not status else f"{said} (status {status})"


def rows_of(rng: np.random.Generator, known: list[int]) -> np.ndarray:
    """Some of these row numbers: in order or not, in runs, repeated, none; of any integer type."""
    rows, kind = np.asarray(known, np.int64), rng.integers(8)
    if kind == 0:
        rows = rng.permutation(rows)
    elif kind == 1:
        rows = rng.choice(rows, 3 * len(rows)) if len(rows) else rows
    elif kind == 2:
        rows = np.sort(rng.choice(rows, len(rows)))
    elif kind == 3:
        rows = rows[rng.integers(0, len(rows)) :]
    elif kind == 4:
        rows = rows[::-1]
    elif kind == 5:
        rows = rows[:1]
    elif kind == 6 and rng.random() < 0.3:
        rows = rows[:0]
    if rng.random() < 0.2 and rows.max(initial=0) < 128:
        rows = rows.astype(rng.choice(["u1", "i4", "u8", ">i8"]))
    return rows


def same(batch: Batch, field: str, truth: Truth, rows: np.ndarray) -> str:
    """What is wrong with a batch, or nothing."""
    value = batch[field]
    wanted = [truth.values[int(row)] for row in rows]
    if None in wanted:
        return f"row {rows[wanted.index(None)]} is read, where h5py raises"
    if truth.dtype == "str":
        return "" if value == wanted else f"{value} instead of {wanted}"
    array, lengths = value.numpy(), batch.get(f"{field}_length")
    if (
        str(array.dtype) != truth.dtype
        or array.shape[2 if -1 in truth.shape else 1 :] != truth.shape[truth.shape[:1] == (-1,) :]
    ):
        return f"{array.dtype} {array.shape} instead of {truth.dtype} {truth.shape}"
    for k, row in enumerate(rows.tolist()):
        one = array[k : k + 1] if lengths is None else array[k, : int(lengths[k])]
        got, loose = np.frombuffer(one.tobytes(), np.uint8), truth.loose.get(row)
        if lengths is not None and array[k, int(lengths[k]) :].any():
            return f"row {row} is not padded with zeros"
        want = np.frombuffer(wanted[k], np.uint8)
        if got.size != want.size or ((got != want) & (np.frombuffer(loose, bool) if loose else True)).any():
            return f"row {row}: {one.tobytes()[:40]!r} instead of {wanted[k][:40]!r}"
    return ""


def one_line(error: BaseException, path: Path) -> str:
    """What is wrong with a refusal, or nothing."""
    if not isinstance(error, ConfigError):
        return f"{type(error).__name__}: {error}"
    text = str(error)
    if "\n" in text or not text.isprintable():
        return f"not one printable line: {text!r}"
    if "please report" in text or not any(word in text for word in (path.name, ".h5", "raw")):
        return f"names no file: {text}"
    return ""


class Judge:
    """One file. `wrong`: a line for each fault; `seen`: how many of what."""

    def __init__(self, path: Path, truths: dict[str, Truth], seed: int) -> None:
        self.path, self.truths, self.rng = path, truths, np.random.default_rng(seed)
        self.wrong: list[str] = []
        self.seen: Counter[str] = Counter()

    def open(self, *names: str, **options: Any) -> Dataset:
        fields = {f"f{k}": name for k, name in enumerate(names)}
        return Dataset(str(self.path), fields, external="allow", **options)

    def opened(self, name: str) -> Dataset | None:
        """None: it was refused, which is judged."""
        self.seen["fields"] += 1
        try:
            return self.open(name)
        except Exception as error:
            self.refusal(name, self.truths[name], error)
            return None

    def fault(self, name: str, what: str, text: str) -> None:
        self.wrong.append(f"{self.path.name}: {name!r}: {what}: {text}"[:600])

    def field(self, name: str) -> None:
        """Every use of one field."""
        truth = self.truths[name]
        known = [row for row, value in truth.values.items() if value is not None]
        if (data := self.opened(name)) is None:
            return
        if truth.refused:
            self.fault(name, "is read, but", truth.refused)
            return
        if len(data) != truth.rows:
            self.fault(name, "rows", f"{len(data)} instead of {truth.rows}")
            return
        self.seen["read"] += 1
        self.seen[f"way {data._fields['f0'][0].way}"] += 1
        self.rows(name, data, truth, known, "gather")
        if len(known) < len(truth.values):
            return  # how it is read elsewhere does not matter, if it cannot be
        uses: list[Callable[..., None]] = [
            self.buffers, self.swmr, self.pickled, self.forked, self.twice, self.single, self.column, self.shards,
            self.refusing, self.cached,
        ]  # fmt: skip
        for k in self.rng.permutation(len(uses))[:2]:
            use = uses[k]
            self.seen[f"use {use.__name__}"] += 1
            try:
                use(name, data, truth, known)
            except Exception as error:
                self.fault(name, use.__name__, f"{type(error).__name__}: {error}")

    def refusal(self, name: str, truth: Truth, error: Exception) -> None:
        if bad := one_line(error, self.path):
            self.fault(name, "opening", bad)
        unreadable = None in truth.values.values()  # of all rows some are read when a field is opened
        if truth.refused or truth.may or unreadable:
            self.seen["refused"] += 1
        else:
            self.fault(name, "is refused", str(error))

    def rows(self, name: str, data: Dataset, truth: Truth, known: list[int], use: str, field: str = "f0") -> None:
        for _ in range(2):
            if not known:
                return
            rows = rows_of(self.rng, known)
            if bad := same(data.gather(rows), field, truth, rows):
                self.fault(name, f"{use} {data.describe()}", bad)

    # -- uses; each raises or notes what is wrong

    def buffers(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        if -1 in truth.shape:
            return
        shape, dtype = data.spec["f0"]
        rows = rows_of(self.rng, known)
        out = torch.empty((len(rows) + 2, *shape), dtype=dtype)
        if bad := same(data.gather(rows, {"f0": out}), "f0", truth, rows):
            self.fault(name, "buffers", bad)

    def swmr(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        again = self.open(name, swmr=True)
        self.rows(name, again, truth, known, "swmr")
        if self.rng.random() < 0.5:
            self.child(name, again, truth, known, "swmr, forked")

    def pickled(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        self.rows(name, pickle.loads(pickle.dumps(data)), truth, known, "pickled")

    def forked(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        self.child(name, data, truth, known, "forked")

    def child(self, name: str, data: Dataset, truth: Truth, known: list[int], use: str) -> None:
        def work() -> str:
            self.wrong = []
            self.rows(name, data, truth, known, use)
            return "\n".join(self.wrong)

        if said := in_a_fork(work):
            self.fault(name, use, said)

    def twice(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        """Several datasets of one file, by turns; fields with as many rows in one of them."""
        alike = [n for n, t in self.truths.items() if not t.refused and not t.may and t.rows == truth.rows]
        alike = [n for n in alike if None not in self.truths[n].values.values()]
        both = self.open(*alike)
        for _ in range(2):
            self.rows(name, data, truth, known, "one of two")
            rows = rows_of(self.rng, known)
            batch = both.gather(rows)
            for k, other in enumerate(alike):
                if bad := same(batch, f"f{k}", self.truths[other], rows):
                    self.fault(other, "one of several fields", bad)

    def single(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        for row in {known[0], known[-1], int(self.rng.choice(known))}:
            got = data[row]["f0"]
            want = truth.values[row]
            if row not in truth.loose and (got != want if truth.dtype == "str" else got.numpy().tobytes() != want):
                self.fault(name, f"data[{row}]", f"{got} instead of {want!r}")
        if known[-1] == truth.rows - 1 and not truth.loose:
            last = data[-1]["f0"]
            want = truth.values[truth.rows - 1]
            if last != want if truth.dtype == "str" else last.numpy().tobytes() != want:
                self.fault(name, "data[-1]", f"{last} instead of {want!r}")

    def column(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        if len(known) < truth.rows or truth.loose:
            return
        found = data.column("f0")
        if -1 in truth.shape:
            size = 1 if truth.dtype == "str" else int(np.prod(truth.shape[1:])) * np.dtype(truth.dtype).itemsize
            wanted = [len(truth.values[k]) // size for k in range(truth.rows)]
            if found.tolist() != wanted:
                self.fault(name, "column", f"{found} instead of {wanted}")
        elif found.tobytes() != b"".join(truth.values[k] for k in range(truth.rows)):
            self.fault(name, "column", "differs")

    def shards(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        """The same file three times, one after the other."""
        both = Dataset([str(self.path)] * 3, {"f0": name}, external="allow", cache_mb=1)
        rows = rows_of(self.rng, known).astype(np.int64)
        places = rows + self.rng.integers(0, 3, len(rows)) * truth.rows
        batch = both.gather(places)
        if bad := same(batch, "f0", truth, rows):
            self.fault(name, "three files", bad)

    def refusing(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        """The default: no other file is read."""
        try:
            here = Dataset(str(self.path), {"f0": name})
        except ConfigError as error:
            if not truth.may and (not truth.outside or "external='allow'" not in str(error)):
                self.fault(name, "is refused", str(error))
            return
        if truth.outside:
            self.fault(name, "is read", "though it leads elsewhere")
        self.rows(name, here, truth, known, "inside")

    def cached(self, name: str, data: Dataset, truth: Truth, known: list[int]) -> None:
        again = self.open(name, cache_mb=1)
        again.advise(np.asarray(known))
        for _ in range(2):
            self.rows(name, again, truth, known, "with a cache")
        if again.nbytes < 0 or len(again.describe()) != 1:
            self.fault(name, "nbytes, describe", f"{again.nbytes} {again.describe()}")
        _ = again.chunk_rows
