"""The workers of a pack: threads, or processes if reading runs Python code. They write blocks to their offsets."""

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

tqdm.monitor_interval = 0  # no thread of tqdm in a process that forks

# rows of the source, {field: offset of the block's values in the file}, {ragged field: (rows, dims) shapes}
Task = tuple[Rows, dict[str, int], dict[str, np.ndarray]]
Done = tuple[dict[str, tuple[int, int]], list[Bad]]


_here = threading.local()  # source and path of this thread, or of the only thread of a process


def _start(source: Source, path: Path, own_process: bool) -> None:
    _here.source, _here.path = source, path
    if own_process:
        signal(SIGINT, SIG_IGN)  # the parent process handles Ctrl-C
        # exit if the parent is killed, so that no worker continues to write
        threading.Thread(target=lambda: (parent_process().join(), os._exit(1)), daemon=True).start()  # type: ignore[union-attr]


def make_pool(source: Source, path: Path, workers: int) -> Executor:
    """Return a pool of workers for `measure_rows` and `write_rows`."""
    if not source.processes:
        return ThreadPoolExecutor(workers, initializer=_start, initargs=(source, path, False))
    start = "fork" if platform == "linux" else "spawn"  # fork: no start-up cost, and the source is not pickled
    return ProcessPoolExecutor(workers, get_context(start), _start, (source, path, True))


def measure_rows(rows: Rows, name: str) -> np.ndarray:
    """Return the shapes of a ragged field in these rows, (rows, dims). Runs in a worker."""
    source: Source = _here.source
    with one_line(source.origin):
        return source.measure(rows, name)


def write_rows(task: Task) -> Done:
    """Return {field: (bytes written, their crc32)}, and the samples that could not be read."""
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
    """Return one flat array. Raise ConfigError if a shape has changed, as the sample would overwrite the next one."""
    for value, shape in zip(values, shapes, strict=True):
        if np.shape(value) != tuple(shape):
            raise ConfigError(f"field {name}: a sample had shape {tuple(shape)}, now {np.shape(value)}; did it change?")
    flat = [np.asarray(value, dtype).reshape(-1) for value in values]
    return np.concatenate(flat, dtype=dtype) if flat else np.empty(0, dtype)  # otherwise in native byte order


def in_flight(
    pool: Executor, call: Callable[[Any], Any], tasks: Iterable[tuple[Any, Any]], depth: int
) -> Iterator[tuple[Any, Any]]:
    """Yield (key, result) of tasks as they finish. At most `depth` tasks wait or run, which limits memory."""
    running: dict[Future[Any], Any] = {}
    waiting = iter(tasks)
    while True:
        running |= {pool.submit(call, task): key for key, task in islice(waiting, depth - len(running))}
        if not running:
            return
        wait(running, return_when=FIRST_COMPLETED)
        for future in [f for f in running if f.done()]:  # in submission order
            yield running.pop(future), future.result()
