"""Deliver micro-batches to the loop.

A dataset is one of two kinds:

- `BatchDataset`: `spec` (shape and dtype of one sample, by field) and `gather(rows, out)`, which fills buffers that the
  loader owns and reuses. No per-sample Python; read from threads.
- any map-style dataset whose `__getitem__(i)` returns a dict of tensors, arrays or numbers. It may have
  `collate(samples) -> dict of tensors`, needed where the shapes of samples vary.

    threads    loading.ring         threads gather into reused (pinned) buffers, copied to the GPU beside the step
    device     loading.resident     the whole set lies on the device
    workers    loading.workers      processes run __getitem__ and write into shared slots, or send whole batches where
                                    the dataset has its own `collate`
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
from samebits.data.loading.slots import CAN_REUSE, drain, indices_on
from samebits.data.loading.waits import waits_on
from samebits.data.order import Plan
from samebits.data.spec import Batch
from samebits.data.stream import Stream, digest
from samebits.errors import ConfigError
from samebits.host import cores_each
from samebits.world import dist_env

# transform(batch, numbers): whole batches on the device; numbers (B,) are global sample numbers, which seed randomness.
# One with `takes_rows = True` is called with the data set's rows too, (B,) int64 on the host
Transform = Callable[..., Batch]

_STARVED_SHARE = 0.03
MOST_PER_CORE = 32  # workers: a typing error beyond


class BatchDataset(Protocol):
    """May also have: `advise(rows)`: these rows are gathered soon, ask the kernel for those not in memory;
    `ahead_bytes`, of what comes through a network: how much of it is to be told to `advise`, and `kept_bytes`: how much
    of it is kept;
    `column(field) -> array`: all values of a field, for orders that look at labels or lengths (of a field of variable
    length: the lengths); `chunk_rows`: samples in a chunk. Its `gather` returns the batch, which may hold more than
    `spec`, and lists (of strings)."""

    spec: dict[str, tuple[tuple[int, ...], torch.dtype]]  # field -> (shape of one sample, dtype); -1: varies

    def __len__(self) -> int: ...

    def gather(self, rows: np.ndarray, out: Batch | None) -> Batch:
        """Write sample rows[i] into out[field][i] for every field; rows: (B,) int64. Safe from several threads, and
        without the GIL in its long parts. out None (where a shape varies): return a batch of fresh memory."""
        ...


class Loader:
    """Micro-batches of this rank, on `device`, transformed; each iteration begins at the plan's begin, or where a
    `reorder` began another one.

    split: the data set's name in messages, beside its class.
    seed: of the random numbers that a map-style dataset draws, which depend on (seed, sample number) only.
    lengths: of an evaluation's plan, see EvalPlan.lengths.
    cores: that reading may keep busy; None: this rank's share of the machine.
    rows: batches have "row", (B,) int64, the sample's row of the data set; -1 for an evaluation's padding. A stream has
    no rows.
    like: of an evaluation, the training's loader: its worker processes start at the first batch, as many as that has.
    wait_s: seconds that training has waited for data. why: how batches are delivered and why so.
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
                f"data.num_workers={num_workers}: more than {MOST_PER_CORE} for each of {cores} cores, for which this "
                "machine lacks memory; auto measures how many are needed"
            )
        self._begun: tuple[list[Batch], Generator[Batch, None, None]] | None = None
        self._closed = False
        self._change: Callable[[], None] | None = None  # of a reorder that is still to come
        self.is_stream = isinstance(dataset, Stream)
        self._with_rows = rows and not self.is_stream
        self._waits = waits_on(device)
        self.lengths: Any = getattr(plan, "lengths", None)
        self.kind, self.why = choose.kind_of(dataset, plan, device, kind)
        self._samples = Samples(dataset, seed, split)
        self._source: Any = None  # None: it is opened by the first batch
        if self.is_stream:
            if num_workers not in ("auto", 0):
                raise ConfigError(f"data.num_workers={num_workers}: a stream is read in this process, give auto or 0")
            self.why = f"workers: {choose.STREAM}, in its own order"
            self._source = InProcess(self._samples, device)
        elif self.kind == "device":
            if num_workers not in ("auto", 0):
                self.why += f"; data.num_workers={num_workers} has no effect: data.loader=workers or threads has them"
            self._source = Resident(self._samples, device)
        elif self.kind == "threads":
            count, measured = choose.num_threads(self._samples, plan, num_workers, cores)
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
        return self._waits.seconds()

    @property
    def num_workers(self) -> int:
        """Worker processes that are there; 0: samples are made in this process."""
        return getattr(self._source, "num_workers", 0)

    def first(self) -> Batch:
        """The batch with which the next iteration begins; not to be changed."""
        if self._begun is None:
            batches = self._batches()
            self._begun = [next(batches)], batches
        return self._begun[0][0]

    @property
    def dataset_name(self) -> str:
        return self._samples.name

    def first_read(self) -> tuple[int, list[str]]:
        """Return what all ranks have alike: the data set's length, and digests of its first samples (a stream's: of the
        first that this rank reads), but for one that gathers."""
        samples = self._samples
        if self.is_stream and self.lengths is None:
            self.first()
        elif len(samples) and not samples.has("gather"):
            with own_random_numbers():
                first = samples.sample(0, 0)
            return len(samples), samples.digests if self.is_stream else [digest(first)]
        return len(samples), samples.digests if self.is_stream else []

    def __iter__(self) -> Iterator[Batch]:
        # at the first batch, not before: a reorder may come between
        (held, rest), self._begun = self._begun or ([], self._batches()), None
        try:
            yield from drain(held)
            yield from rest
        finally:
            rest.close()

    def _batches(self) -> Generator[Batch, None, None]:
        if self._source is None:
            if self._closed:
                raise RuntimeError("this loader is closed")
            self._source, _ = self._open()
        stream, k = self._source.stream(self.plan), 0
        try:
            while True:
                if self._change is not None and self.plan.begins_step(k):  # type: ignore[attr-defined]
                    stream.close()
                    change, self._change = self._change, None
                    self.plan = self.plan.changed(k, change)  # type: ignore[attr-defined]
                    stream, k = self._source.stream(self.plan), 0
                self._waits.begin()
                pair = next(stream, None)
                self._waits.end()
                if pair is None:
                    return
                batch, numbers = pair
                out = [batch if self.transform is None else self._transformed(batch, numbers, k)]
                if self._with_rows:
                    out = [self._with_row(out.pop(), numbers, k)]
                del pair, batch, numbers
                k += 1
                yield from drain(out)
        finally:
            stream.close()

    def reorder(self, change: Callable[[], None]) -> None:
        """From the next step on batches follow the plan's order as change() leaves it; what was made ahead is thrown
        away. change is called at that step, when nobody asks the order for rows."""
        self._change = change
        if self._begun is not None:  # a batch that was looked at, and is drawn anew
            self._begun[1].close()
            self._begun = None

    def _with_row(self, batch: Batch, numbers: Tensor, k: int) -> Batch:
        if "row" in batch:
            raise ConfigError(
                "data: a field is called 'row', as what a task with `needs_sample_ids = True` gets is - give it another name, "
                "as in data.fields"
            )
        # an evaluation's numbers are its rows, and say what is padding
        row = numbers.clone() if self.lengths is not None else indices_on(self.device, self.plan(k)[1])  # type: ignore[index]
        if getattr(self.plan, "padded", False):
            row = torch.where(numbers < 0, -1, row)
        return {**batch, "row": row}

    def _transformed(self, batch: Batch, numbers: Tensor, k: int) -> Batch:
        assert self.transform is not None
        with self._samples.transforming(numbers):
            if getattr(self.transform, "takes_rows", False):
                return self.transform(batch, numbers, self.plan(k)[1])  # type: ignore[index]
            return self.transform(batch, numbers)

    def close(self) -> None:
        """End threads and workers; safe to call twice."""
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
    """Return a sentence for the log if the loop waited for data for more than a few percent of the time; else None.

    said: the share of the last sentence, which is not said again, less its part in brackets, until that has doubled."""
    if total_s <= 0 or wait_s / total_s <= max(_STARVED_SHARE, 2 * said):
        return None
    share = f"{wait_s / total_s:.0%} of the time was spent waiting for data"
    return share if said else f"{share} ({wait_s:.2g} of {total_s:.2g} s; {why}): {remedy(why)}"


def remedy(why: str) -> str:
    """Return what to change where a loader is too slow, nothing that was tried or refused. why: the loader's."""
    kind = why.split(":")[0]
    if choose.STREAM in why:
        return "make its samples cheaper, or give it __len__ and __getitem__, for which there are workers"
    more = f"make samples cheaper ({choose.MORE})" if choose.MORE in why else "raise data.num_workers"
    held = "try data.loader=device if the set fits, " * ("as data.loader says" in why)
    return {
        "workers": f"{more}, or pack the set into HDF5 and let data.transforms do the work",
        "threads": f"{more}, {held}or change the file's layout, which ./run h5 inspect shows",
        "remote": "the network is slower than the steps; a data.cache_gb that holds the set fetches it once",
        "device": "data.loader=threads gathers beside the step",
    }.get(kind, "see data.loader")
