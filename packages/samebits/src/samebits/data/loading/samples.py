"""Read map-style data sets sample by sample: seed the random numbers of each sample, make batches, and turn each error
of the data set's own code into one line that names data set, row and split."""

from __future__ import annotations

import random
import sys
import zlib
from bdb import BdbQuit
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.data.loading.side_stream import SideStream
from samebits.data.loading.slots import to_device
from samebits.data.order import Plan
from samebits.data.permutation import hashed_number
from samebits.data.spec import Batch, Spec, empty_batch
from samebits.data.stream import Stream
from samebits.errors import ConfigError, DataFailed, RunFailed, one_line, users_traceback

_ROWS_SHOWN = 8  # at most, in a message
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float32}  # float32, as in models


def seed_sample(seed: int, number: int) -> None:
    """Seed Python, numpy and torch (CPU) from (seed, sample id), so that samples are equal in all workers."""
    value = hashed_number(seed, 5, number)
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)  # torch.manual_seed takes 70 us, because it seeds GPUs


def seed_of_split(seed: int, split: str) -> int:
    """Return the seed of the random numbers that a data set draws for this split; `seed` for the training split."""
    return seed if split == "train" else hashed_number(seed, 7, zlib.crc32(split.encode()))


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """Restore the states of the random number generators (Python, numpy, torch on the CPU) after this block."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """Seed the random numbers in this block, and restore the generators' states afterwards. seed None: do nothing."""
    if seed is None:
        yield
        return
    with own_random_numbers():
        seed_sample(seed, -1)
        yield


def check_indexed(dataset: Any) -> None:
    """Raise ConfigError if a data set lacks `__len__`, or both `__getitem__` and `gather`, or if it has no length."""
    own = type(dataset)
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(own, name)]
    if hasattr(dataset, "gather") and "__getitem__" in missing:
        missing.remove("__getitem__")
    if missing:
        raise ConfigError(
            f"data: {own.__name__} has no {missing[0]}, but samples are read by index - add __getitem__(i) and "
            "__len__ (endless data may return 10**9 and draw each sample from random numbers, which are seeded for "
            "it), or only __iter__ for a stream, or pack the samples into a file with ./run h5 pack"
        )
    try:
        len(dataset)
    except (TypeError, ValueError, OverflowError) as error:  # None, 12.5, -1, 10**20
        raise ConfigError(
            f"data: len({own.__name__}) fails: {error} - return the number of samples from __len__, an int from 0 to "
            f"{sys.maxsize}"
        ) from error


def ahead_bytes(dataset: Any) -> int:
    """Return, for remote data, how many bytes of batches are passed to `advise` before they are gathered; otherwise
    0."""
    return int(getattr(dataset, "ahead_bytes", 0))


def tensor_of(value: Any, field: str) -> Tensor:
    """Return the value of a field as a tensor. Raise ConfigError if it is not a tensor, an array or a number."""
    if isinstance(value, Tensor):
        return value
    if isinstance(value, np.ndarray) and not value.flags.writeable:
        value = value.copy()  # of np.frombuffer; torch would print a warning
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(value)
    if type(value) in _NUMBERS:
        return torch.tensor(value, dtype=_NUMBERS[type(value)])
    raise ConfigError(
        f"data: field {field!r} of a sample is a {type(value).__name__}; return tensors, arrays or numbers, or give "
        "the dataset a method collate(samples) -> dict of tensors"
    )


def spec_of(sample: Any) -> Spec:
    """Return the spec of a sample. Raise ConfigError if it is not a dict of tensors, arrays or numbers."""
    if not isinstance(sample, dict) or not sample:
        raise ConfigError(
            f"data: __getitem__ returned a {type(sample).__name__}; return a dict of tensors, arrays or numbers"
        )
    tensors = {field: tensor_of(value, field) for field, value in sample.items()}
    return {field: (tuple(tensor.shape), tensor.dtype) for field, tensor in tensors.items()}


def write_sample(sample: Any, spec: Spec, batch: Batch, i: int) -> None:
    """Write a sample to row i of the buffers.

    Raise ConfigError if its fields, shapes or dtypes differ from the spec: nothing is cast or broadcast.
    """
    if not isinstance(sample, dict):
        spec_of(sample)  # raises the error
    if sample.keys() != spec.keys():
        raise ConfigError(f"data: samples differ in their fields: {sorted(spec)} and {sorted(sample)}")
    for field, (shape, dtype) in spec.items():
        value = tensor_of(sample[field], field)
        if value.shape != shape or value.dtype != dtype:
            raise ConfigError(
                f"data: samples differ in field {field!r}: {dtype} {shape} and {value.dtype} {tuple(value.shape)}; "
                "make them equal in __getitem__, or give the dataset a method collate(samples) -> dict of tensors"
            )
        batch[field][i].copy_(value)


class Samples:
    """The interface through which loaders read a data set. Other attributes are those of the data set (spec, advise,
    ...).

    seed: of the random numbers of the samples. split: name for messages; empty: none. Its methods raise DataFailed for
    exceptions in the data set's code.
    """

    def __init__(self, dataset: Any, seed: int, split: str = "") -> None:
        self.dataset, self._seed, self._split = dataset, seed, split
        if isinstance(dataset, Stream):
            dataset.begin_sample = partial(seed_sample, seed)
        self.progress: np.ndarray | None = None  # in a worker: the current row, in shared memory; -1: none

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # pickle reads some before `dataset` is set
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @property
    def name(self) -> str:
        """Return the name of the class of the data set, or of the source of a stream."""
        return type(self.dataset.source if isinstance(self.dataset, Stream) else self.dataset).__name__

    def has(self, method: str) -> bool:
        """Return True if the data set has this method."""
        return hasattr(self.dataset, method)

    def place(self, rows: Sequence[int], what: str = "") -> str:
        """Return a text for messages on samples, e.g. "Noisy, rows 3, 5 of split train". what: instead of "row"."""
        what = what or ("sample" if isinstance(self.dataset, Stream) else "row")
        shown = ", ".join(map(str, rows[:_ROWS_SHOWN])) + ", ..." * (len(rows) > _ROWS_SHOWN)
        which = f"{what}{'s' * (len(rows) != 1)} {shown}" if len(rows) else f"some {what}s"
        return f"{self.name}, {which}" + (f" of split {self._split}" if self._split else "")

    def transforming(self, sample_ids: Tensor) -> AbstractContextManager[None]:
        """Return a context in which data.transforms run on the batch of these samples."""
        return _Making(self, sample_ids, "data.transforms", "sample number")

    def sample(self, number: int, row: int) -> Any:
        """Return the sample at `row`, with the random numbers of sample id `number`."""
        with _Making(self, [row]):
            return self._draw(number, row)

    def _draw(self, number: int, row: int) -> Any:
        seed_sample(self._seed, number)  # a stream may return the sample that it has read last, without seeding
        return self.dataset[row]

    def collated(self, sample_ids: Sequence[int], rows: Sequence[int]) -> Batch:
        """Return the batch that the data set's `collate` makes of these samples."""
        samples = [self.sample(number, row) for number, row in zip(sample_ids, rows, strict=True)]
        nothing = [row for row, sample in zip(rows, samples, strict=True) if sample is None]
        with _Making(self, nothing or rows, "collate, of samples that are None" if nothing else "collate"):
            batch = self.dataset.collate(samples)
            if not isinstance(batch, Mapping):
                raise ConfigError(f"data: collate returned a {type(batch).__name__}; return a dict of tensors")
            return dict(batch)

    def gather(self, rows: np.ndarray, out: Batch | None) -> Batch:
        """Call the data set's `gather`. Raise ConfigError if it returns other memory than `out`: loaders use `out`."""
        with _Making(self, rows):
            batch: Batch = self.dataset.gather(rows, out)
            if out is not None and batch is not None:
                for field, values in out.items():
                    if field not in batch or batch[field].data_ptr() != values.data_ptr():
                        raise ConfigError(
                            f"data: {self.name}.gather(rows, out) returned other memory for {field!r} than "
                            f"out[{field!r}]: write the rows into the tensors of `out`, and return it"
                        )
            return batch

    def first(self, number: int, row: int) -> tuple[Spec, Any]:
        """Return (the spec of this sample, the sample); (the spec of the data set, None) if it has `gather`."""
        if self.has("gather"):
            return dict(self.dataset.spec), None
        with _Making(self, [row]):
            sample = self._draw(number, row)
            return spec_of(sample), sample

    def fill(self, sample_ids: list[int], rows: np.ndarray, spec: Spec, batch: Batch, first: Any = None) -> None:
        """Write the samples `rows` to batch, (B, ...) by field, each with the random numbers of its sample id.

        first: the sample at rows[0], if it has been read."""
        if self.has("gather"):
            self.gather(rows, batch)
            return
        for i, (number, row) in enumerate(zip(sample_ids, rows.tolist(), strict=True)):
            with _Making(self, [row]):
                write_sample(self._draw(number, row) if i or first is None else first, spec, batch, i)


class _Making:
    """A context in which the data set's code runs for these rows.

    Exceptions, including sys.exit(), are converted to a DataFailed that names data set, rows and split. The same text
    is appended to the message of a ConfigError or RunFailed."""

    __slots__ = ("_rows", "_samples", "_step", "_what")

    def __init__(self, samples: Samples, rows: Any, step: str = "", what: str = "") -> None:
        self._samples, self._rows, self._step, self._what = samples, rows, step, what

    def __enter__(self) -> None:
        self._report(self._rows[0] if not self._step and len(self._rows) == 1 else -1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._report(-1)
        if isinstance(error, (ConfigError, RunFailed)):
            if self._what == "":  # otherwise the error is about the config
                error.args = (f"{error} ({self})", *error.args[1:])
        elif isinstance(error, (Exception, SystemExit)) and not isinstance(error, BdbQuit):  # `q` at a breakpoint
            raised = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else one_line(error)
            step = f"in {self._step}: " if self._step else ""
            failed = DataFailed(f"data: {step}{raised} ({self})")
            failed.short = users_traceback(error)
            raise failed from error

    def _report(self, row: int) -> None:
        if self._samples.progress is not None:
            self._samples.progress[0] = row

    def __str__(self) -> str:
        rows: list[int] = []
        dataset = self._samples.dataset
        if isinstance(dataset, Stream) and not (self._step or self._what):
            return self._samples.place([dataset.reading])
        with suppress(RuntimeError):  # tensors on a failed GPU cannot be read
            rows = [int(row) for row in self._rows[: _ROWS_SHOWN + 1]]
        return self._samples.place(rows, self._what)


class InProcess:
    """A source of batches without workers: this process makes them on demand. Its own random numbers do not change."""

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._samples, self.device = samples, device
        self._side = SideStream.of(device)

    def stream(self, plan: Plan) -> Iterator[list[tuple[Batch, Tensor]]]:
        """Yield lists of (micro-batch, its sample ids) on the device, in reverse order, until the plan ends."""
        k = 0
        while (part := plan(k)) is not None:
            with own_random_numbers():
                batch = self._make(*part)
            made = [deliver(batch, torch.from_numpy(part[0]), self.device, self._side)]
            del batch
            yield made
            k += 1

    def _make(self, sample_ids: np.ndarray, rows: np.ndarray) -> Batch:
        samples = self._samples
        if samples.has("collate"):
            return samples.collated(sample_ids.tolist(), rows.tolist())
        spec, first = samples.first(int(sample_ids[0]), int(rows[0]))
        batch = empty_batch(spec, len(rows), torch.empty if self._side is None else self._side.cuda.empty)
        samples.fill(sample_ids.tolist(), rows, spec, batch, first)
        return batch

    def close(self) -> None:
        """Do nothing."""


def deliver(batch: Batch, sample_ids: Tensor, device: torch.device, side: SideStream | None) -> tuple[Batch, Tensor]:
    """Return a batch of new memory and its sample ids on the device. side: SideStream.of(device)."""
    if side is None:
        return to_device(batch, device), sample_ids.to(device)
    locked = side.cuda.locked
    batch = {field: locked(value) if isinstance(value, Tensor) else value for field, value in batch.items()}
    return side.receive(side.send(batch, locked(sample_ids)))
