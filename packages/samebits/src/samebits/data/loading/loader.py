"""Deliver micro-batches to the training loop.

A data set is one of two kinds:

- `BatchDataset`: has `spec` (shape and dtype of one sample, by field) and `gather(rows, out)`, which fills buffers that
  the loader owns and reuses. It runs no Python code per sample and is read by threads.
- any map-style data set whose `__getitem__(i)` returns a dict of tensors, arrays or numbers. It may have
  `collate(samples) -> dict of tensors`, which it needs if the shapes of samples vary.

    threads    loading.ring         threads gather into reused (pinned) buffers; copies to the GPU run in the background
    device     loading.resident     the complete data set is on the device
    workers    loading.workers      processes run __getitem__ and write into shared slots, or send complete batches if
                                    the data set has its own `collate`
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from functools import partial
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from samebits.data.loading import choose
from samebits.data.loading.open_workers import open_workers
from samebits.data.loading.resident import Resident
from samebits.data.loading.ring import Ring
from samebits.data.loading.samples import InProcess, Samples, own_random_numbers
from samebits.data.loading.slots import CAN_REUSE, indices_on
from samebits.data.loading.waits import waits_on
from samebits.data.order import Plan
from samebits.data.spec import Batch
from samebits.data.stream import Stream, digest
from samebits.errors import ConfigError
from samebits.host import cores_each
from samebits.world import dist_env

# transform(batch, sample_ids): changes a micro-batch on the device; sample_ids: (B,) int64, global, for random numbers.
# If it has `takes_rows = True`, it gets a third argument: the rows of the data set, (B,) int64 on the host
Transform = Callable[..., Batch]

_STARVED_SHARE = 0.03
MOST_PER_CORE = 32  # workers; a larger number is a typing error


class BatchDataset(Protocol):
    """A data set that reads many rows in one call. `gather` may return more than `spec`, and lists (of strings).

    Optional methods and attributes:
    `advise(rows)`: these rows are gathered soon, so it may prefetch them.
    `ahead_bytes`: for remote data, how many bytes ahead to call `advise`.
    `kept_bytes`: for remote data, how many bytes are cached.
    `column(field) -> array`: all values of a field (if it has a variable length: the lengths).
    `chunk_rows`: samples per chunk.
    """

    spec: dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> (shape of one sample, dtype); -1: varies

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray, out: Batch | None) -> Batch:
        """Write sample rows[i] into out[field][i] for each field, and return the batch; rows: (B,) int64.

        Must be thread-safe, and should release the GIL while it reads. out=None (if a shape varies): return new memory.
        """


class Loader:
    """Iterate over the micro-batches of this rank, on `device` and transformed.

    Each iteration starts at the beginning of the plan, or at the last `reorder`. Raise ConfigError for arguments that
    do not fit the data set.

    dataset, plan: the samples, and which of them this rank reads in which order.
    transform: see Transform; None: batches are not changed.
    kind, num_workers: data.loader, data.num_workers.
    seed: of the random numbers that a map-style data set draws; they depend only on the seed and the sample id.
    start_method: of worker processes: fork, spawn or forkserver; None: Python's default.
    cores: number of cores that reading may use; None: this rank's share of the machine.
    like: for an evaluation, the loader of the training: use as many workers or threads, without measuring again, and
        start them at the first batch.
    split: name of the split, for messages.
    rows: add "row" to batches, (B,) int64, the row of the data set; -1 for padding. Streams have no rows.

    Attributes:
    wait_s: seconds that training has waited for data.
    why: how batches are made, and the reason.
    """

    def __init__(
        self,
        dataset: Any,
        plan: Plan,
        device: torch.device,
        transform: Transform | None = None,
        kind: str = "auto",
        num_workers: int | str = "auto",
        *,
        seed: int,
        start_method: str | None = None,
        cores: int | None = None,
        like: Loader | None = None,
        split: str = "",
        rows: bool = False,
    ) -> None:
        if num_workers != "auto" and not (isinstance(num_workers, int) and num_workers >= 0):
            raise ConfigError(f"data.num_workers={num_workers!r} must be auto or a number of at least 0")
        self.plan, self.device, self.transform = plan, device, transform
        cores = cores_each(dist_env.local_size) if cores is None else cores
        if isinstance(num_workers, int) and num_workers > MOST_PER_CORE * cores:
            raise ConfigError(
                f"data.num_workers={num_workers}: more than {MOST_PER_CORE} for each of {cores} cores "
                "- give auto to measure how many are needed"
            )
        self._begun: tuple[list[Batch], Generator[Batch, None, None]] | None = None
        self._closed = False
        self._change: Callable[[], None] | None = None  # of a pending reorder
        self.is_stream = isinstance(dataset, Stream)
        self._with_rows = rows and not self.is_stream
        self._waits = waits_on(device)
        self.size_and_real: Any = getattr(plan, "size_and_real", None)
        self.kind, self.why = choose.kind_of(dataset, plan, device, kind)
        self._samples = Samples(dataset, seed, split)
        self._source: Any = None  # None: opened by the first batch
        if self.is_stream:
            if num_workers not in ("auto", 0):
                raise ConfigError(f"data.num_workers={num_workers}: a stream is read in this process, give auto or 0")
            self.why = f"workers: {choose.STREAM}, in its own order"
            self._source = InProcess(self._samples, device)
        elif self.kind == "device":
            if num_workers not in ("auto", 0):
                self.why += (
                    f"; data.num_workers={num_workers} has no effect: only data.loader=workers and threads use it"
                )
            self._source = Resident(self._samples, device)
        elif self.kind == "threads":
            same = like._source.num_threads if like is not None and like.kind == "threads" else None
            count, measured = choose.num_threads(self._samples, plan, num_workers, cores, same)
            self.why += f"; {measured}" + ("" if CAN_REUSE else "; this torch cannot reuse buffers")
            self._source = Ring(self._samples, device, count)
        else:
            if num_workers == "auto" and like is not None and like.kind == "workers":
                num_workers = like.num_workers
            self._open = partial(open_workers, self._samples, plan, device, num_workers, start_method, cores)
            if like is None:
                self._source, measured = self._open()
                self.why += f"; {measured}"
        if getattr(plan, "note", ""):
            self.why += f"; {plan.note}"  # type: ignore[attr-defined]

    @property
    def wait_s(self) -> float:
        """Return how long training has waited for data, in seconds."""
        return self._waits.seconds()

    @property
    def num_workers(self) -> int:
        """Return the number of running worker processes; 0: this process makes the samples."""
        return getattr(self._source, "num_workers", 0)

    def first(self) -> Batch:
        """Return the first batch of the next iteration, which must not be changed."""
        if self._begun is None:
            batches = self._batches()
            self._begun = [next(batches)], batches
        return self._begun[0][0]

    @property
    def dataset_name(self) -> str:
        """Return the name of the data set's class, for messages."""
        return self._samples.name

    def first_read(self) -> tuple[int, list[str]]:
        """Return (length, digests of the first samples) of the data set, which must be equal on all ranks.

        The digests are those of row 0, read twice, or of the first samples of a stream that this rank has read; [] if
        the data set has `gather`."""
        samples = self._samples
        if self.is_stream and self.size_and_real is None:
            self.first()
        elif len(samples) and not samples.has("gather"):
            with own_random_numbers():
                first = [digest(samples.sample(0, 0)) for _ in range(1 if self.is_stream else 2)]
            return len(samples), samples.digests if self.is_stream else first
        return len(samples), samples.digests if self.is_stream else []

    def __iter__(self) -> Iterator[Batch]:
        # at the first batch, not before, because a reorder may come first
        (held, rest), self._begun = self._begun or ([], self._batches()), None
        try:
            while held:
                yield held.pop()
            yield from rest
        finally:
            rest.close()

    def _batches(self) -> Generator[Batch, None, None]:
        if self._source is None:
            if self._closed:
                raise RuntimeError("this loader is closed")
            self._source, _ = self._open()
        parts: list[Any] | None = []
        stream, k = self._source.stream(self.plan), 0
        try:
            while True:
                if self._change is not None and self.plan.begins_step(k):  # type: ignore[attr-defined]
                    stream.close()
                    change, self._change = self._change, None
                    self.plan = self.plan.reordered(k, change)  # type: ignore[attr-defined]
                    stream, k, parts = self._source.stream(self.plan), 0, []
                parts = parts or self._waits.next(stream)
                if not parts:
                    return
                batch, sample_ids = parts.pop()
                out = [batch if self.transform is None else self._transformed(batch, sample_ids, k)]
                if self._with_rows:
                    out = [self._with_row(out.pop(), sample_ids, k)]
                del batch, sample_ids
                k += 1
                yield out.pop()  # no name of this frame refers to the batch while the loop has it
        finally:
            stream.close()

    def reorder(self, change: Callable[[], None]) -> None:
        """Apply a change of the order at the next step: batches that were prepared for later steps are discarded.

        change: called at that step, while no thread requests rows; from then on batches follow the order as it leaves
        it."""
        self._change = change
        if self._begun is not None:  # a batch that `first` returned, and is read again
            self._begun[1].close()
            self._begun = None

    def _with_row(self, batch: Batch, sample_ids: Tensor, k: int) -> Batch:
        if "row" in batch:
            raise ConfigError(
                "data: a field is called 'row', which is reserved for the row of the data set "
                "(`needs_sample_ids = True`) - give it another name in data.fields"
            )
        # sample ids of an evaluation are rows, or -1 for padding
        row = sample_ids.clone() if self.size_and_real is not None else indices_on(self.device, self.plan(k)[1])  # type: ignore[index]
        if getattr(self.plan, "padded", False):
            row = torch.where(sample_ids < 0, -1, row)
        return {**batch, "row": row}

    def _transformed(self, batch: Batch, sample_ids: Tensor, k: int) -> Batch:
        assert self.transform is not None
        try:
            if getattr(self.transform, "takes_rows", False):
                return self.transform(batch, sample_ids, self.plan(k)[1])  # type: ignore[index]
            return self.transform(batch, sample_ids)
        except BaseException:
            with self._samples.transforming(sample_ids):  # for errors only: it costs 6 calls
                raise

    def close(self) -> None:
        """Stop threads and workers. It can be called twice."""
        if self._begun is not None:
            self._begun[1].close()
            self._begun = None
        self._closed = True
        if self._source is not None:
            self._source.close()

    def __enter__(self) -> Loader:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def starvation(wait_s: float, total_s: float, why: str, said: float = 0.0) -> str | None:
    """Return a sentence for the log if the loop waited for data for more than a few percent of the time, otherwise
    None.

    said: the share in the last sentence; 0: there was none. The next sentence is shorter, and follows only if the share
    has doubled."""
    if total_s <= 0 or wait_s / total_s <= max(_STARVED_SHARE, 2 * said):
        return None
    share = f"{wait_s / total_s:.0%} of the time was spent waiting for data"
    return share if said else f"{share} ({wait_s:.2g} of {total_s:.2g} s; {why}): {remedy(why)}"


def remedy(why: str) -> str:
    """Return what to change if loading is too slow, without options that were tried already. why: Loader.why."""
    kind = why.split(":")[0]
    if choose.STREAM in why:
        return "make its samples cheaper, or give it __len__ and __getitem__, so that workers can read it"
    more = f"make samples cheaper ({choose.MORE})" if choose.MORE in why else "raise data.num_workers"
    held = "try data.loader=device if the set fits, " * ("set by data.loader" in why)
    return {
        "workers": f"{more}, or pack the set into HDF5 and use data.transforms for the work per sample",
        "threads": f"{more}, {held}or change the file's layout, which ./run h5 inspect shows",
        "remote": "the network is slower than the training steps; if data.cache_gb is large enough for the "
        "set, it is fetched only once",
        "device": "data.loader=threads gathers in the background",
    }.get(kind, "see data.loader")
