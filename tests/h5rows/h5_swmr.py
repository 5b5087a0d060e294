"""A file that a SWMR writer in another process adds to: the rows that were flushed when it was opened, whole."""

from __future__ import annotations

import os
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from h5_judge import ROOT, in_a_fork, one_line
from h5_types import NATIVE, Draw

from h5rows.dataset import Dataset

FILTERS: list[dict[str, Any]] = [
    {}, {"compression": "gzip"}, {"compression": "gzip", "shuffle": True, "fletcher32": True}, {"compression": "lzf"},
    dict(hdf5plugin.Zstd()), dict(hdf5plugin.LZ4()), dict(hdf5plugin.Blosc()),
]  # fmt: skip


def rows_from(begin: int, end: int, inner: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    """Row k is determined by k."""
    flat = np.arange(begin, end)[:, None] * 7 + np.arange(int(np.prod(inner)))
    return (flat % (2 if dtype.kind == "b" else 101)).reshape(end - begin, *inner).astype(dtype)


class Writer:
    """`steps` in a child, one for each line that it is sent."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path, w = path, Draw(seed)
        self.fields: dict[str, tuple[tuple[int, ...], np.dtype]] = {}
        with h5py.File(path, "w", libver="latest") as file:
            for k in range(w.between(1, 3)):
                inner = tuple(w.between(1, 4) for _ in range(w.between(0, 2)))
                dtype, chunks = np.dtype(w.one_of(NATIVE)), (w.between(1, 9), *(w.between(1, n) for n in inner))
                most = (None, *(w.one_of([n, n + 3, None]) for n in inner))
                file.create_dataset(f"x{k}", (0, *inner), dtype, chunks=chunks, maxshape=most, **w.one_of(FILTERS))
                self.fields[f"x{k}"] = inner, dtype
        self.sizes = np.cumsum([w.between(1, 12) for _ in range(8)]).tolist()

    def start(self) -> None:
        self.asked, self.ask = os.pipe()
        self.said, self.say = os.pipe()
        if (pid := os.fork()) == 0:
            try:
                os.close(self.ask)  # else it would outlive a reader that dies
                self._write()
            finally:
                os._exit(0)
        self.pid = pid
        os.close(self.asked)
        os.close(self.say)
        assert os.read(self.said, 1) == b"."

    def _write(self) -> None:
        with h5py.File(self.path, "r+", libver="latest") as file:
            file.swmr_mode = True
            os.write(self.say, b".")
            before = 0
            for size in self.sizes:
                if not os.read(self.asked, 1):
                    return
                for name, (inner, dtype) in self.fields.items():
                    file[name].resize(size, 0)
                    file[name][before:] = rows_from(before, size, inner, dtype)
                    file[name].flush()
                before = size
                os.write(self.say, b".")
            os.read(self.asked, 1)

    def step(self) -> None:
        os.write(self.ask, b".")
        assert os.read(self.said, 1) == b"."

    def stop(self) -> None:
        os.close(self.ask)
        os.waitpid(self.pid, 0)


def wrong_rows(data: Dataset, writer: Writer, size: int, w: Draw) -> str:
    if len(data) != size:
        return f"{len(data)} rows instead of {size}"
    for _ in range(2):
        rows = w.rng.integers(0, size, 9)
        batch = data.gather(rows)
        for name, (inner, dtype) in writer.fields.items():
            wide = np.int64 if dtype.kind == "u" and dtype.itemsize > 3 else dtype
            if batch[name].numpy().tobytes() != rows_from(0, size, inner, dtype)[rows].astype(wide).tobytes():
                return f"{name} differs in {rows}"
    return ""


def refused(path: Path, names: dict[str, str]) -> list[str]:
    """Without swmr, such a file is not opened."""
    try:
        Dataset(str(path), names, "all", ROOT)
    except Exception as error:
        return list(filter(None, [one_line(error, path), "" if "swmr=true" in str(error) else str(error)]))
    return ["a file that is being written is opened without swmr"]


def judge_swmr(path: Path, seed: int) -> tuple[list[str], Counter[str]]:
    path.parent.mkdir(exist_ok=True)
    writer, w, wrong = Writer(path, seed), Draw(seed + 1), []
    seen = Counter({"files": 1, "fields": len(writer.fields)})
    if not writer.fields:
        return wrong, seen
    writer.start()
    opened: list[tuple[Dataset, int]] = []
    names = {name: name for name in writer.fields}
    try:
        for size in writer.sizes:
            writer.step()
            if not opened:
                wrong += refused(path, names)
            if w.chance(0.4) or not opened:
                opened.append((Dataset(str(path), names, "all", ROOT, swmr=True), size))
            for data, rows in opened:
                seen["read"] += 1
                said: Any = wrong_rows(data, writer, rows, w) or (
                    in_a_fork(partial(wrong_rows, data, writer, rows, w)) if w.chance(0.2) else ""
                )
                wrong += [f"opened at {rows}, now {size}: {said}"] if said else []
    finally:
        writer.stop()
    return wrong, seen
