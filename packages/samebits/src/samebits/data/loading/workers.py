"""Processes that make samples and write them into slots of one shared tensor.

    this process   indices -> slot, slot index -> worker   ...   batch = view of the slot when it is full
    worker         for each index: seed, dataset[row] -> its place in the slot

Only slot indices are pickled. A slot is reused after the last view of it is gone; if a consumer keeps many batches, it
gets copies. If the data set has its own `collate`, batches differ in size: slots then contain only their indices, and
the worker answers with the batch, whose tensors torch passes in shared memory.

Workers ignore the signals of a terminal or a scheduler, because this process decides when to end. They end if this
process dies, by `close` (even if a batch or an iterator still exists), or before multiprocessing waits for its
processes at exit.
"""

from __future__ import annotations

import multiprocessing as mp
import os
import pickle
import shutil
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from multiprocessing import util
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
import torch
import torch.multiprocessing
from torch import Tensor

from samebits.children import file_offsets
from samebits.data.loading.samples import Samples, deliver
from samebits.data.loading.side_stream import SideStream
from samebits.data.loading.slots import CAN_REUSE, Lease, to_device
from samebits.data.loading.worker import Layout, Maker, WorkerTraceback, work
from samebits.data.order import Plan
from samebits.data.spec import Batch, Spec
from samebits.errors import ConfigError, DataFailed
from samebits.files import in_words
from samebits.signals import LIKELY_CAUSES

_JOBS_EACH = 2  # jobs per worker: one in progress, one waiting
_SPARE = 3  # slots that the consumer may use: the current batch, the previous and the next one


class Workers:
    """A source of batches that worker processes make. The workers are kept for the next plan; only one stream at a
    time.

    spec: of one sample; None: the data set has a `collate`. capacity: the largest number of samples of a micro-batch.
    start_method: fork, spawn or forkserver; None: Python's default. Raise ConfigError if the data set cannot be sent to
    a worker or shared memory is too small."""

    def __init__(
        self,
        samples: Samples,
        device: torch.device,
        num_workers: int,
        spec: Spec | None,
        capacity: int,
        start_method: str | None,
    ) -> None:
        self.device, self.num_workers, self._samples = device, num_workers, samples
        self._layout, self._collates = Layout(spec or {}, capacity), spec is None
        count = num_workers * _JOBS_EACH + _SPARE
        _check_shared_memory(count * self._layout.nbytes)
        try:
            self._shared = torch.empty((count, self._layout.nbytes), dtype=torch.uint8).share_memory_()
            self._making = torch.full((num_workers, 1), -1).share_memory_()  # the row that each worker is making
        except RuntimeError as error:  # /dev/shm is missing, read-only or not permitted
            raise ConfigError(
                f"data.num_workers={num_workers}: workers need shared memory ({error}); mount /dev/shm, or give "
                "data.loader=threads"
            ) from error
        # one storage per slot, so that references to each can be counted
        self._slots = [torch.from_numpy(row) for row in self._shared.numpy()]
        self._leases = [Lease(slot) for slot in self._slots] if CAN_REUSE else []
        self._copied: list[Any] = [None] * count  # events after the copies to the GPU
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._unanswered: list[deque[tuple[int, int]]] = [deque() for _ in range(num_workers)]  # (slot, rows)
        self._working: set[int] = set()  # slots that a worker may be writing to
        self._stream_number = 0
        # runs before multiprocessing's exit handler, which would wait for workers that ignore its signal
        then: list[Callable[[], None]] = []
        self._end = util.Finalize(self, _stop, (self._pipes, self._processes, then), exitpriority=100)
        self._start(start_method)
        self._side = SideStream.of(device)
        if self._side is not None and not self._collates:  # after the start, because workers need no page-locked memory
            self._side.cuda.register(self._shared)
            then.append(partial(_unlock, self._side, self._shared, self._copied))

    def _start(self, start_method: str | None) -> None:
        context: Any = mp.get_context(start_method)
        by_main_thread = threading.current_thread() is threading.main_thread()
        if self._collates:
            util.get_temp_dir()  # for the sockets that pass tensors; a killed worker would not remove its own folder
        make = Maker(self._samples, self._shared, self._layout, self._collates)
        for i in range(self.num_workers):
            ours, theirs = context.Pipe()
            forks = context.get_start_method() == "fork"
            inherited = [*self._pipes, ours] if forks else []
            arguments = (make, self._making[i], theirs, inherited, file_offsets() if forks else {}, by_main_thread)
            process = context.Process(target=work, args=arguments, daemon=True, name=f"data-worker-{i}")
            try:
                process.start()
            except (pickle.PicklingError, TypeError, AttributeError, ValueError) as error:
                raise ConfigError(
                    f"data: {self._samples.name} cannot be sent to a worker started by "
                    f"{context.get_start_method()} ({error}); open files in __getitem__, or give data.num_workers=0"
                ) from error
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def stream(self, plan: Plan) -> Iterator[list[tuple[Batch, Tensor]]]:
        """Yield lists of (micro-batch, its sample ids) on the device, in reverse order, until the plan ends.

        Raise DataFailed for an error in the data set's code, or if a worker died.
        """
        if not self._processes:
            raise RuntimeError("this loader is closed")
        self._stream_number += 1
        mine = self._stream_number
        self._drain()
        workers: deque[int] = deque()  # workers with a job, in the order of the batches
        k, part = 0, plan(0)
        while True:
            if self._stream_number != mine:
                raise RuntimeError("a new iteration of this loader has started, so the earlier one cannot continue")
            while part is not None and len(workers) < self.num_workers * _JOBS_EACH:
                workers.append(k % self.num_workers)
                self._submit(workers[-1], *part)
                k += 1
                part = plan(k)
            if not workers:
                return
            yield [self._receive(workers.popleft())]

    def _submit(self, worker: int, sample_ids: np.ndarray, rows: np.ndarray) -> None:
        slot = next((i for i in range(len(self._slots)) if self._free(i)), None)
        if slot is None:  # _deliver leaves one free, unless copies to the GPU are pending
            for copied in filter(None, self._copied):
                copied.synchronize()
            slot = next(i for i in range(len(self._slots)) if self._free(i))
        assert len(rows) <= self._layout.capacity
        indices, _ = self._layout.views(self._slots[slot], len(rows))
        indices.copy_(torch.from_numpy(np.stack([sample_ids, rows])))
        self._working.add(slot)
        self._unanswered[worker].append((slot, len(rows)))
        try:
            self._pipes[worker].send((slot, len(rows)))
        except OSError as error:
            raise self._death(worker) from error

    def _receive(self, worker: int) -> tuple[Batch, Tensor]:
        """Wait for the worker's next batch and deliver it."""
        made, failed = self._answer(worker)
        slot, rows = self._unanswered[worker].popleft()
        self._working.discard(slot)
        if failed is not None:
            cause, text = failed
            raise cause from WorkerTraceback(f"in worker {worker}\n{text}")
        if made is None:
            return self._deliver(slot, rows)
        indices, _ = self._layout.views(self._slots[slot], rows)
        return deliver(made, indices[0].clone(), self.device, self._side)

    def _answer(self, worker: int) -> Any:
        try:
            return self._pipes[worker].recv()
        except (EOFError, OSError) as error:
            raise self._death(worker) from error

    def _drain(self) -> None:
        """Wait for the jobs of a stream that was not read to its end, and discard their results."""
        for worker, jobs in enumerate(self._unanswered):
            while jobs:
                self._answer(worker)
                jobs.popleft()
        self._working.clear()

    def _free(self, slot: int) -> bool:
        copied = self._copied[slot]
        if slot in self._working or (copied is not None and not copied.query()):
            return False
        return not CAN_REUSE or self._leases[slot].is_free()

    def _deliver(self, slot: int, rows: int) -> tuple[Batch, Tensor]:
        indices, batch = self._layout.views(self._slots[slot], rows)
        if self._side is not None:
            sent = self._side.send(batch, indices[0])
            self._copied[slot] = sent.copied
            return self._side.receive(sent)
        sample_ids = indices[0].clone()
        if self.device.type != "cpu":
            return to_device(batch, self.device), sample_ids.to(self.device)
        held = sum(not self._free(i) for i in range(len(self._slots)) if i not in self._working and i != slot)
        if held >= _SPARE - 1 or not CAN_REUSE:  # copy, so that slots do not run out
            return {field: value.clone() for field, value in batch.items()}, sample_ids
        return batch, sample_ids

    def _death(self, worker: int) -> DataFailed:
        """Close the workers, and return the error for one that died."""
        process, rows = self._processes[worker], [int(self._making[worker])]
        process.join(timeout=2)
        pid, code = process.pid, process.exitcode
        if rows == [-1] and self._unanswered[worker]:  # it died in gather or collate, or between two samples
            slot, count = self._unanswered[worker][0]
            rows = self._layout.views(self._slots[slot], count)[0][1].tolist()
        self.close()
        hint = LIKELY_CAUSES.get(-(code or 0), " (it crashed in native code)")
        if code is not None and code >= 0:
            hint = " (its code ended the process, for example by os._exit)"
        died = DataFailed(
            f"data: worker {worker} (pid {pid}) died with exit code {code}{hint}; data.num_workers=0 shows where "
            f"({self._samples.place(rows)}); see docs/troubleshooting.md#data-worker-died"
        )
        died.short = "a data worker died\n"  # the traceback of this process would not show where
        return died

    def close(self) -> None:
        """End the workers. It can be called twice."""
        self._end()


def _unlock(side: SideStream, shared: Tensor, copied: list[Any]) -> None:
    for event in filter(None, copied):
        event.synchronize()
    side.cuda.unregister(shared)


def _stop(pipes: list[Connection], processes: list[Any], then: list[Callable[[], None]]) -> None:
    for pipe in pipes:
        with suppress(OSError):
            pipe.send(None)  # closing is not enough if processes forked later have the pipe open
        pipe.close()
    for process in processes:
        process.join(timeout=1)
        if process.is_alive():  # it is working on a long sample
            process.kill()
            process.join(timeout=5)
        process.close()
    pipes.clear()
    processes.clear()
    while then:
        then.pop()()


def _check_shared_memory(nbytes: int) -> None:
    if not os.path.isdir("/dev/shm"):
        return
    if nbytes > (free := shutil.disk_usage("/dev/shm").free):
        raise ConfigError(
            f"data.num_workers: the batches ahead need {in_words(nbytes)} of shared memory and /dev/shm has "
            f"{in_words(free)} free; lower data.num_workers or hardware.micro_batch_size, "
            "or give the container more (--shm-size)"
        )
