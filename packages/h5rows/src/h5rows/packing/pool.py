"""The workers of a pack: threads, or processes where reading is Python work, that write blocks at their places."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Executor, Future, ProcessPoolExecutor, ThreadPoolExecutor, wait
from itertools import islice
from multiprocessing import get_context, parent_process
from pathlib import Path
from signal import SIG_IGN, SIGINT, signal
from sys import platform
from typing import Any

import numpy as np
from tqdm import tqdm

from h5rows.errors import ConfigError
from h5rows.packing.file import pwrite_all
from h5rows.source import Bad, Rows, Source, one_line

tqdm.monitor_interval = 0  # no thread of tqdm's beside a fork

# rows of the source, {field: byte in the file where the block's values go}, {ragged field: (rows, dims) shapes}
Task = tuple[Rows, dict[str, int], dict[str, np.ndarray]]
Done = tuple[dict[str, tuple[int, int]], list[Bad]]


_here = threading.local()  # what a thread works for, or the only thread of a process


def _start(source: Source, path: Path, own_process: bool) -> None:
    _here.source, _here.path = source, path
    if own_process:
        signal(SIGINT, SIG_IGN)  # the parent ends the pack
        # a killed parent must not leave workers behind that still write
        threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()  # type: ignore[union-attr]


def make_pool(source: Source, path: Path, workers: int) -> Executor:
    """For `measure_rows` and `write_rows`."""
    if not source.processes:
        return ThreadPoolExecutor(workers, initializer=_start, initargs=(source, path, False))
    start = "fork" if platform == "linux" else "spawn"  # fork: no start-up cost, and the source is not pickled
    return ProcessPoolExecutor(workers, get_context(start), _start, (source, path, True))


def measure_rows(rows: Rows, name: str) -> np.ndarray:
    source: Source = _here.source
    with one_line(source.origin):
        return source.measure(rows, name)


def write_rows(task: Task) -> Done:
    """-> (field: (bytes written, their crc32)), the samples that could not be read."""
    rows, places, shapes = task
    source: Source = _here.source
    with one_line(source.origin):
        values, bad = source.read(rows, list(places))
    done = {}
    with open(_here.path, "r+b", buffering=0) as file:
        for name, place in places.items():
            data = values[name]
            if name in shapes:
                expected = np.delete(shapes[name], [b.place for b in bad], axis=0)
                data = flatten(data, expected, source.fields[name].dtype, name)
            done[name] = (data.nbytes, pwrite_all(file.fileno(), data, place))
    return done, bad


def flatten(values: list[np.ndarray], shapes: np.ndarray, dtype: np.dtype, name: str) -> np.ndarray:
    """One flat array. The room in the file was measured before: a sample of another size would run into the next."""
    for value, shape in zip(values, shapes, strict=True):
        if np.shape(value) != tuple(shape):
            raise ConfigError(f"field {name}: a sample measured as {tuple(shape)} is {np.shape(value)}; did it change?")
    flat = [np.asarray(value, dtype).reshape(-1) for value in values]
    return np.concatenate(flat) if flat else np.empty(0, dtype)


def in_flight(
    pool: Executor, call: Callable[[Any], Any], tasks: Iterable[tuple[Any, Any]], depth: int
) -> Iterator[tuple[Any, Any]]:
    """(key, result) as they finish; at most `depth` tasks wait or run, so that memory stays bounded."""
    running: dict[Future[Any], Any] = {}
    waiting = iter(tasks)
    while True:
        running |= {pool.submit(call, task): key for key, task in islice(waiting, depth - len(running))}
        if not running:
            return
        wait(running, return_when=FIRST_COMPLETED)
        for future in [f for f in running if f.done()]:  # in the order they were given
            yield running.pop(future), future.result()
