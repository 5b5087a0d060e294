"""Choose how a Loader makes batches: resolve `auto` from measurements, and give the reason in one sentence."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from samebits.data.loading.samples import ahead_bytes
from samebits.data.order import Plan
from samebits.data.spec import Batch, empty_batch, is_ragged, sample_bytes
from samebits.device import free_memory
from samebits.errors import ConfigError
from samebits.files import amount, in_words

KINDS = ("auto", "threads", "workers", "device")

_RESIDENT_BYTES = 1 << 30  # larger sets are not loaded completely by `auto`, because that delays the start
_SMALL_BYTES = 64 << 20  # sets up to this size are loaded completely, however few of their samples are read
_RESIDENT_BATCH_BYTES = 1 << 20  # on a CPU, threads should gather larger batches in the background
_TRIAL_S = 0.02
_PIECE_S = 0.02  # a trial gathers only a part of a batch that takes longer, as of a file that is read from a disk
MORE, STREAM = "more are not faster", "a stream is read in this process"  # in `why`
_GAIN = 1.1  # more workers must be faster by this factor to be worth their memory
_WAITING = 8  # workers per core for samples that wait for a disk or a network ...
_MOST_WAITING, _MOST_THREADS = 64, 16  # ... up to these numbers


def is_batch_dataset(dataset: Any) -> bool:
    """Return True if a data set has `spec` and `gather`."""
    return hasattr(dataset, "spec") and hasattr(dataset, "gather")


def kind_of(dataset: Any, plan: Plan, device: torch.device, kind: str) -> tuple[str, str]:
    """Return (threads, workers or device; the reason). kind: data.loader.

    Raise ConfigError if the data set cannot be read in the requested way.
    """
    if kind not in KINDS:
        raise ConfigError(f"data.loader={kind!r} is unknown; use one of {', '.join(KINDS)}")
    if not is_batch_dataset(dataset):
        if kind in ("threads", "device"):
            raise ConfigError(
                f"data.loader={kind} needs a dataset with `spec` and `gather`; {type(dataset).__name__} has only "
                "__getitem__: use data.loader=workers"
            )
        return "workers", "workers: the dataset has no `gather`, only __getitem__"
    if kind != "auto":
        if is_ragged(dataset.spec) and (kind == "device" or (kind == "workers" and not hasattr(dataset, "collate"))):
            raise ConfigError(f"data.loader={kind} needs samples of one shape; use data.loader=threads")
        return kind, f"{kind}: set by data.loader"
    return _for_batch_dataset(dataset, plan, device)


def _for_batch_dataset(dataset: Any, plan: Plan, device: torch.device) -> tuple[str, str]:
    if is_ragged(dataset.spec):
        return "threads", "threads: samples vary in length"
    if ahead_bytes(dataset):
        return "threads", "remote: rows are fetched in the background"
    row_bytes = sample_bytes(dataset.spec)
    nbytes = row_bytes * len(dataset)
    stored = getattr(dataset, "nbytes", nbytes)
    if nbytes > 2 * stored:
        return "threads", f"threads: its samples overlap, so {in_words(stored)} would become {in_words(nbytes)}"
    limit = min(_RESIDENT_BYTES, free_memory(device) // 10)
    part = plan(0)
    batch_bytes = row_bytes * len(part[0]) if part else 0
    where = "in RAM" if device.type == "cpu" else f"on {device}"
    if nbytes > limit:
        most = f"auto keeps at most {in_words(limit)} {where}"
        return "threads", f"threads: the whole set is {in_words(nbytes)}, and {most}"
    few = getattr(plan, "num_evaluated", len(dataset))
    # each of these samples may need a chunk of its own, which each evaluation would decode again
    if nbytes > _SMALL_BYTES and 10 * few * (getattr(dataset, "chunk_rows", None) or 1) <= len(dataset):
        return "threads", f"threads: an evaluation reads {few:,} of {len(dataset):,} samples"
    if device.type == "cpu" and batch_bytes > _RESIDENT_BATCH_BYTES:
        return "threads", f"threads: batches of {in_words(batch_bytes)} are gathered in the background"
    return "device", f"device: the whole set, {in_words(nbytes)}, is kept {where}"


def num_threads(
    dataset: Any, plan: Plan, num_workers: int | str, cores: int, like: int | None = None
) -> tuple[int, str]:
    """Return (number of threads of the ring, the reason). num_workers: the number, or auto to measure it by gathering
    the plan's first batches for a moment. cores: number of cores that this process may use. like: the number of the
    training's threads, for `auto` in an evaluation, which then measures nothing."""
    if isinstance(num_workers, int):
        return max(1, num_workers), f"{max(1, num_workers)} threads, set by data.num_workers"
    if (first := plan(0)) is None:
        return 1, "1 thread, as there is nothing to read"
    if ahead_bytes(dataset):
        return 2, "2 threads, which wait for the network"
    most = _MOST_THREADS
    if not is_ragged(dataset.spec):  # each thread has its own buffers
        most = max(4, min(most, free_memory(torch.device("cpu")) // 10 // (sample_bytes(dataset.spec) * len(first[1]))))
    if like is not None:
        return (like, "as many threads as in training") if like <= most else (most, f"{most} threads, as memory allows")
    # at least two: while one waits to hand over its batch, the other one gathers
    numbers = [count for count in counts(cores) if min(2, cores) <= count <= most]
    piece = _piece(dataset, first[1])
    rates = doubling(lambda count: _rate(dataset, plan, count, piece), numbers)
    best = min(count for count, rate in rates.items() if rate >= 0.9 * max(rates.values()))
    measured = [f"{amount(n, 'thread')} {rate:,.0f} samples/s" for n, rate in rates.items()]
    return best, f"{amount(best, 'thread')}{enough(best, rates)}; measured: {', '.join(measured)}"


def counts(cores: int) -> list[int]:
    """Return the numbers of workers or threads to try: 1, 2, 4, ..., cores, then 2, 4, ... times cores."""
    tried = [1 << i for i in range(cores.bit_length()) if 3 << i <= 2 * cores]  # not those slightly below `cores`
    most = max(cores, min(_WAITING * cores, _MOST_WAITING))
    return tried + [cores << i for i in range(most.bit_length()) if cores << i <= most and cores << i not in tried]


def enough(chosen: int, rates: dict[int, float]) -> str:
    """Return the part of `why` for the case that larger numbers were tried: they are not faster."""
    return f"; {MORE}" if chosen < max(rates, default=0) else ""


def doubling(rate: Callable[[int], float], numbers: Sequence[int]) -> dict[int, float]:
    """Return {number: rate(number)} for ascending numbers.

    Stop when a number gains less than a tenth over the one before, or cannot be started.
    """
    rates: dict[int, float] = {}
    for i, number in enumerate(numbers):
        try:
            rates[number] = rate(number)
        except (OSError, ConfigError):  # out of memory, shared memory, processes or files
            if not rates:
                raise
            break
        if i and rates[number] < _GAIN * rates[numbers[i - 1]]:
            break
    return rates


def _gather(dataset: Any, rows: np.ndarray, out: Batch | None) -> None:
    """Gather rows as the ring does, which advises them: reading a mapped file without this loads much more per row."""
    if hasattr(dataset, "advise"):
        dataset.advise(rows)
    dataset.gather(rows, None if out is None else {field: value[: len(rows)] for field, value in out.items()})


def _piece(dataset: Any, rows: np.ndarray) -> int:
    """Return how many rows of a batch a trial gathers at once: all, or as many as take less than _PIECE_S.

    The rows are gathered in growing parts, so a slow batch is not gathered completely. It goes on while larger parts
    take less time per row, because the first one may open a file, and a call may take long for any number of rows."""
    out = None if is_ragged(dataset.spec) else empty_batch(dataset.spec, len(rows))
    done, size, fastest = 0, 1, math.inf
    while done < len(rows):
        began = time.perf_counter()
        _gather(dataset, rows[done : done + size], out)
        row_s = (time.perf_counter() - began) / len(rows[done : done + size])
        done, size = done + size, 2 * size
        is_faster, fastest = row_s < 0.75 * fastest, min(row_s, fastest)
        if done < len(rows) and not is_faster and size * fastest > _PIECE_S:
            return max(1, min(len(rows), int(_PIECE_S / fastest)))
    return len(rows)


def _rate(dataset: Any, plan: Plan, count: int, piece: int) -> float:
    """Return samples per second of `count` threads that gather into buffers which were used before. piece: number of
    rows that are gathered at once.

    All threads have one clock. With one for each, threads that take turns on a core would count as if they ran at once.
    """
    first = plan(0)
    assert first is not None
    outs = [None if is_ragged(dataset.spec) else empty_batch(dataset.spec, piece, torch.zeros) for _ in range(count)]
    gathered: list[int] = []
    errors: list[BaseException] = []
    began = time.perf_counter()

    def work(k: int) -> None:
        out = outs[k]
        try:
            while time.perf_counter() < began + _TRIAL_S:
                _, rows = plan(k) or first
                for begin in range(0, len(rows), piece):
                    part = rows[begin : begin + piece]
                    _gather(dataset, part, out)
                    gathered.append(len(part))
                    if time.perf_counter() >= began + _TRIAL_S:
                        break
                k += count
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(k,), daemon=True) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]
    return sum(gathered) / (time.perf_counter() - began)


def loader_speeds(
    dataset: Any, cores: int, given: int | str, speed: Callable[[str, int], float]
) -> dict[tuple[str, int], float]:
    """Return {(data.loader, data.num_workers): speed} of the ways in which this data set can be loaded.

    Numbers of workers are tried as long as more are faster, and also `given`, if it is a number. 0 workers: this
    process. speed(loader, num_workers): measures one way. cores: number of cores that this process may use."""
    batches = is_batch_dataset(dataset)
    found = {}
    if not batches or not is_ragged(dataset.spec):
        way = ("device", 0) if batches else ("workers", 0)
        found[way] = speed(*way)
    for kind in ("threads", "workers") if batches else ("workers",):
        rates = doubling(partial(speed, kind), counts(cores))
        if isinstance(given, int) and given > 0 and given not in rates:
            rates[given] = speed(kind, given)
        found |= {(kind, count): rate for count, rate in sorted(rates.items())}
    return found
