"""The code of a worker process of workers.py: run each job of its pipe, until the pipe or its parent ends."""

from __future__ import annotations

import signal
import traceback
from multiprocessing.connection import Connection
from multiprocessing.reduction import ForkingPickler
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.children import Offsets, die_with_starter, own_offsets
from samebits.data.loading.samples import Samples
from samebits.data.spec import Batch, Spec
from samebits.errors import DataFailed, one_line
from samebits.signals import STOP_SIGNALS

_ALIGN = 64


class Layout:
    """The layout of a slot: two rows of int64 (sample ids, dataset rows), then the fields, each (capacity, *shape)."""

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
        """Return (indices (2, rows) int64, fields (rows, *shape)) of a slot; slot: (nbytes,) uint8."""
        indices = slot[: 16 * self.capacity].view(torch.int64).view(2, self.capacity)[:, :rows]
        batch = {}
        for field, begin, end in self.fields:
            shape, dtype = self.spec[field]
            batch[field] = slot[begin:end].view(dtype).view(self.capacity, *shape)[:rows]
        return indices, batch


class Maker:
    """Make the batch of a job (slot, number of samples); the slot contains the sample ids and rows.

    The batch is written to the slot. If the data set has a `collate`, it is returned instead.
    """

    def __init__(self, samples: Samples, shared: Tensor, layout: Layout, collates: bool) -> None:
        self.samples, self._shared, self._layout, self._collates = samples, shared, layout, collates

    def __call__(self, slot: int, rows: int) -> Batch | None:
        """Make a batch in the slot and return None, or return the batch of the data set's `collate`."""
        indices, batch = self._layout.views(self._shared[slot], rows)
        if self._collates:
            return self.samples.collated(*indices.tolist())
        self.samples.fill(indices[0].tolist(), indices[1].numpy(), self._layout.spec, batch)
        return None


class WorkerTraceback(Exception):
    """The traceback of an error in a worker, as text."""


def work(
    make: Maker, making: Tensor, pipe: Connection, inherited: list[Connection], offsets: Offsets, by_main_thread: bool
) -> None:
    """Answer each job with (batch or None, None), or with (None, (the error, its traceback)).

    making: (1,) int64 in shared memory, set to the current row. inherited: pipes of other workers, to be closed.
    offsets: `file_offsets` before the fork. by_main_thread: whether the main thread started this process."""
    refused = None
    try:
        own_offsets(offsets)
    except OSError as error:
        refused = DataFailed(
            f"data: a worker cannot reopen a file to get its own file position ({one_line(error)}); open "
            "files in __getitem__, or give data.num_workers=0"
        )
    for number in STOP_SIGNALS:
        signal.signal(number, signal.SIG_IGN)  # the run handles them, and ends this process
    die_with_starter(by_main_thread)
    for other in inherited:
        other.close()  # if these stayed open, earlier workers would not see their parent end
    torch.set_num_threads(1)
    make.samples.progress = making.numpy()
    try:
        while (job := pipe.recv()) is not None:
            pipe.send_bytes(_answer(make, job, refused))
    except (EOFError, OSError):
        return  # the parent has ended or closed the pipe


def _answer(make: Maker, job: tuple[int, int], refused: DataFailed | None) -> Any:
    """Run a job and return the pickled answer; a pickling error is an answer too. refused: the error that ends all
    jobs."""
    try:
        if refused is not None:
            raise refused
        made = make(*job)
        try:
            return ForkingPickler.dumps((made, None))
        except Exception as error:
            raise DataFailed(f"data: a batch of {make.samples.name} cannot be pickled: {one_line(error)}") from error
    except BaseException as error:
        text = traceback.format_exc()
        try:
            answer = ForkingPickler.dumps((None, (error, text)))
            ForkingPickler.loads(answer)
        except Exception:
            answer = ForkingPickler.dumps((None, (RuntimeError(one_line(error)), text)))
        return answer
