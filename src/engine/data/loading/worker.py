"""The worker's side of workers.py: for each job of its pipe, samples into a shared slot."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.data.loading.samples import fill
from engine.data.loading.slots import Batch, Spec
from engine.host import STOP_SIGNALS, die_with_starter

_ALIGN = 64


class Layout:
    """One slot: two rows of int64 (sample numbers, dataset rows), then the fields, each (capacity, *shape)."""

    def __init__(self, spec: Spec, capacity: int) -> None:
        self.spec, self.capacity = spec, capacity
        self.fields: list[tuple[str, int, int]] = []
        end = 2 * 8 * capacity
        for field, (shape, dtype) in spec.items():
            begin = -(-end // _ALIGN) * _ALIGN
            end = begin + capacity * int(np.prod(shape)) * dtype.itemsize
            self.fields.append((field, begin, end))
        self.nbytes = -(-end // _ALIGN) * _ALIGN

    def views(self, slot: Tensor, rows: int) -> tuple[Tensor, Batch]:
        """slot: (nbytes,) uint8 -> indices (2, rows) int64, fields (rows, *shape)."""
        indices = slot[: 16 * self.capacity].view(torch.int64).view(2, self.capacity)[:, :rows]
        batch = {}
        for field, begin, end in self.fields:
            shape, dtype = self.spec[field]
            batch[field] = slot[begin:end].view(dtype).view(self.capacity, *shape)[:rows]
        return indices, batch


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as text."""


def belong_to_the_run(by_main_thread: bool, worker: int = 0) -> None:
    """First of all in a worker: it leaves signals to the run, whose process ends it, and it never outlives that."""
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    die_with_starter(by_main_thread)


def work(
    dataset: Any,
    seed: int,
    shared: Tensor,
    layout: Layout,
    pipe: Connection,
    inherited: list[Connection],
    by_main_thread: bool,
) -> None:
    belong_to_the_run(by_main_thread)
    for other in inherited:
        other.close()  # forked with this worker: kept open, the workers before it would not see their parent end
    torch.set_num_threads(1)
    try:
        while True:
            job = pipe.recv()
            if job is None:
                return
            slot, rows = job
            try:
                indices, batch = layout.views(shared[slot], rows)
                fill(dataset, seed, indices[0].tolist(), indices[1].numpy(), layout.spec, batch)
                answer = None
            except BaseException as error:
                answer = _portable(error), traceback.format_exc()
            pipe.send(answer)
    except (EOFError, OSError):
        return  # the parent is gone or has closed the pipe


def _portable(error: BaseException) -> BaseException:
    from multiprocessing.reduction import ForkingPickler

    try:
        ForkingPickler.loads(ForkingPickler.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}")
    return error
