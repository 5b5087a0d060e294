"""Background threads that fill reused batch buffers ahead of the loop.

loop      <- batch <- batch <- ...      views of a buffer, in order; the loop waits only if the next one is not ready
threads      gather -> buffer [-> GPU]  a job is one buffer: one micro-batch, or several if they are small
slots        the buffers                a buffer is reused only if no tensor, view, numpy alias or tensor saved for
                                        backward uses it, and no copy to the GPU reads it
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from queue import SimpleQueue
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.data.loading.samples import ahead_bytes
from samebits.data.loading.side_stream import Sent, SideStream, locked_bytes
from samebits.data.loading.slots import Slots, split, to_device
from samebits.data.order import Plan
from samebits.data.spec import Batch, is_ragged, sample_bytes
from samebits.world import dist_env

# Small micro-batches are gathered together up to this size, because each hand-over between threads costs about 50 us.
# Measured with batches of 0.8 MB, relative to the speed of index_select: one thread 4 MB 0.97, 8 MB 1.03; two threads
# 1.04 and 1.07; two threads on a busy machine, at real-time priority, 1.02 and 1.24, and 16 MB 1.08.
GROUP_BYTES = 8 * 1024 * 1024
GROUP_MOST = 64
_WINDOW_BYTES = 256 * 1024 * 1024  # a window of chunks is gathered together, up to this size
_LOCKED_BYTES = 1 << 30  # limit of the page-locked memory of prepared jobs; there are always at least two


_Told = Callable[[int, int], Sequence[range]]


@dataclass
class _Job:
    plan: Plan
    begin: int  # micro-batches begin ... end - 1
    end: int
    told: Sequence[range]  # call `advise` with the rows of these micro-batches
    cancelled: bool = False
    sizes: list[int] = field(default_factory=list)
    sample_ids: Tensor | None = None
    batch: Batch | None = None
    sent: Sent | None = None  # if it is copied to the GPU
    error: BaseException | None = None
    ready: Any = field(default_factory=threading.Lock)

    def rows(self, of: range | None = None) -> tuple[list[int], np.ndarray, np.ndarray] | None:
        """Return (sizes, sample ids, rows) of the micro-batches `of`, by default all of this job; None if the plan has
        ended."""
        parts = [self.plan(k) for k in (range(self.begin, self.end) if of is None else of)]
        found = [part for part in parts if part is not None]
        if not found:
            return None
        sample_ids, rows = found[0] if len(found) == 1 else map(np.concatenate, zip(*found, strict=True))
        return [len(part[0]) for part in found], sample_ids, rows


class _Filler:
    """State of the threads. It has no reference to the Ring, so that the threads end if the Ring is
    garbage-collected."""

    def __init__(self, dataset: Any, device: torch.device, num_threads: int) -> None:
        self.dataset, self.device = dataset, device
        self.ragged = is_ragged(dataset.spec)
        self.side = SideStream.of(device)
        self.slots = Slots(dataset.spec, 2 * num_threads + 4, None if self.side is None else self.side.cuda)
        self.tasks: SimpleQueue[_Job | None] = SimpleQueue()

    def work(self) -> None:
        """Run jobs until None is in the queue."""
        _never_preempt()
        with self.side.cuda.here() if self.side else contextlib.nullcontext():
            while (job := self.tasks.get()) is not None:
                try:
                    if not job.cancelled:
                        self.fill(job)
                except BaseException as error:
                    job.error = error
                job.ready.release()
                del job

    def fill(self, job: _Job) -> None:
        """Gather the rows of a job, and start their copy to the GPU."""
        found = job.rows()
        if found is None:
            return
        job.sizes, sample_ids, rows = found
        for told in filter(None, job.told):
            if (later := job.rows(told)) is not None:
                self.dataset.advise(later[2])
        job.sample_ids = torch.from_numpy(sample_ids)
        if self.ragged:
            job.batch, slot = self.dataset.gather(rows, None), None
        else:
            job.batch, slot = self.slots.take(len(rows))
            self.dataset.gather(rows, job.batch)
        if self.side is not None:
            job.sent = self.side.send(job.batch, self.side.cuda.locked(job.sample_ids))
            if slot is None:
                job.sent.copied.synchronize()  # the data set's memory: only `job` keeps it until the copy is done
            else:
                slot.copied = job.sent.copied
            job.batch = job.sample_ids = None


def _never_preempt() -> None:
    """On Linux, prevent this thread from preempting the training loop when it is woken to fill a buffer.

    Measured on 2 cores with a step of 10 ms: this adds 0.1 ms to the step instead of 0.45. A lower priority has no
    effect."""
    if hasattr(os, "SCHED_BATCH"):
        with contextlib.suppress(OSError):  # a sandbox may forbid it; then nothing changes
            os.sched_setscheduler(threading.get_native_id(), os.SCHED_BATCH, os.sched_param(0))


def _stop(filler: _Filler, threads: list[threading.Thread], pid: int) -> None:
    if os.getpid() != pid:
        return
    for _ in threads:
        filler.tasks.put(None)
    for thread in threads:
        if thread is not threading.current_thread():
            thread.join(timeout=5)  # daemons: if one hangs in a read, the process can still end
    threads.clear()


class Ring:
    """A source of batches that threads gather. The threads are kept for the next plan."""

    def __init__(self, dataset: Any, device: torch.device, num_threads: int) -> None:
        self.dataset, self.device, self.num_threads = dataset, device, num_threads
        self._pid = -1

    def _start(self) -> None:
        if self._pid == os.getpid():
            return
        self._pid = os.getpid()  # threads do not survive a fork: a child starts new ones
        self._filler = _Filler(self.dataset, self.device, self.num_threads)
        names = [f"ring-{i}" for i in range(self.num_threads)]
        self._threads = [threading.Thread(target=self._filler.work, name=name, daemon=True) for name in names]
        for thread in self._threads:
            thread.start()
        self._end = weakref.finalize(self, _stop, self._filler, self._threads, self._pid)

    def stream(self, plan: Plan) -> Iterator[list[tuple[Batch, Tensor]]]:
        """Yield lists of (micro-batch, its sample ids) on the device, in reverse order, until the plan ends."""
        self._start()
        jobs: deque[_Job] = deque()
        count = self.num_threads
        group, told = _group(plan, self.dataset, count), _told(plan, self.dataset, count + 2)
        late = GROUP_MOST * count  # by then a job has its full size
        jobs_ahead = self._jobs_ahead(plan, max(group(0), group(late) - late))
        begin, delivered = 0, 0
        try:
            while True:
                # few at first: the first batches must not wait until thousands of samples are read from a disk
                while len(jobs) < min(jobs_ahead, delivered + max(2, count)):
                    begin = self._submit(plan, begin, group(begin), jobs, told)
                job, delivered = jobs.popleft(), delivered + 1
                job.ready.acquire()
                if job.error is not None:
                    raise job.error
                if not job.sizes:
                    return
                yield self._split(job)
        finally:
            for job in jobs:
                job.cancelled = True

    def _jobs_ahead(self, plan: Plan, size: int) -> int:
        """Return how many jobs the threads get in advance. size: micro-batches of a job."""
        count, part = self.num_threads + 2, plan(0)
        if self._filler.side is None or part is None or is_ragged(self.dataset.spec):
            return count
        rows = size * len(part[0])
        locked = sum(locked_bytes(rows * sample_bytes({"": field})) for field in self.dataset.spec.values())
        return max(2, min(count, _LOCKED_BYTES // locked))

    def _split(self, job: _Job) -> list[tuple[Batch, Tensor]]:
        """Return the micro-batches of a job in reverse order, and keep no reference to the job's memory."""
        if job.sent is not None:
            assert self._filler.side is not None
            batch, sample_ids = self._filler.side.receive(job.sent)
        else:
            assert job.batch is not None
            assert job.sample_ids is not None
            batch, sample_ids = job.batch, job.sample_ids
            if self.device.type != "cpu":
                batch, sample_ids = to_device(batch, self.device), sample_ids.to(self.device)
        job.batch = job.sent = None
        return split(batch, sample_ids, job.sizes)

    def _submit(self, plan: Plan, begin: int, end: int, jobs: deque[_Job], told: _Told) -> int:
        job = _Job(plan, begin, end, told(begin, end))
        job.ready.acquire()
        jobs.append(job)
        self._filler.tasks.put(job)
        return end

    def close(self) -> None:
        """Stop the threads. It can be called twice."""
        if self._pid == os.getpid():
            self._end()
        self._pid = -1


def _told(plan: Plan, dataset: Any, jobs: int) -> _Told:
    """Return a function (begin, end of a job) -> the micro-batches whose rows are passed to `advise` during that job.

    jobs: number of jobs that are in progress or prepared."""
    if not hasattr(dataset, "advise"):
        return lambda begin, end: ()
    part, told = plan(0), 0
    if not ahead_bytes(dataset) or part is None:

        def soon(begin: int, end: int) -> list[range]:
            nonlocal told
            first, told = told, max(told, end + min((end - begin) * jobs, end))
            return [range(first, end), range(max(first, end), told)]  # its own rows first, unless a job before has

        return soon
    row_bytes = getattr(dataset, "nbytes", 0) / len(dataset) if is_ragged(dataset.spec) else sample_bytes(dataset.spec)
    own = ahead_bytes(dataset) / dist_env.local_size  # the ranks of a host share the cache
    ahead = int(own / max(1, row_bytes * len(part[0]))) + 1
    ahead = min(ahead, -(-len(dataset) // len(part[0])))  # at most one epoch
    # Large steps need few requests, because neighboring rows are merged. Even larger ones left the network idle between
    # two steps, and mixed rows of several windows, because all rows of a shard in a step are requested together.
    step = max(2, ahead // 8)

    def further(begin: int, end: int) -> list[range]:
        nonlocal told
        if begin == 0 or told > end + ahead - step:  # the first batch must not wait for rows of later ones
            return []
        first = max(told, begin)
        told = first + step
        return [range(first, told)]

    return further


def _group(plan: Plan, dataset: Any, num_threads: int) -> Callable[[int], int]:
    """Return a function that maps the first micro-batch of a job to the first one of the next job."""
    part, spec = plan(0), dataset.spec
    if part is None or is_ragged(spec):
        return lambda begin: begin + 1
    batch_bytes = max(1, len(part[0]) * sample_bytes(spec))
    window: Callable[[int], int | None] = getattr(plan, "window", lambda k: None)
    if ahead_bytes(dataset):  # deliver each batch as early as possible, not with its window
        return lambda begin: begin + 1
    if window(0) is None:
        group = min(max(1, GROUP_BYTES // batch_bytes), GROUP_MOST)
        # the first jobs have one micro-batch, because these are needed soon
        return lambda begin: begin + min(group, 1 + begin // num_threads)
    most = max(1, _WINDOW_BYTES // batch_bytes)

    def window_end(begin: int) -> int:  # so that each chunk of a window is read and decompressed once
        here, end = window(begin), begin + 1
        while end - begin < most and window(end) == here:
            end += 1
        return end

    return window_end
