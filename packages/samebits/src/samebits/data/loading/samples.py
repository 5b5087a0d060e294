"""Map-style datasets, sample by sample: random numbers of each sample's own, what a batch of them looks like, and one
line that names data set, row and split for whatever goes wrong in the data set's own code."""

from __future__ import annotations

import random
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from functools import partial
from types import TracebackType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from samebits.data.loading.side_stream import SideStream
from samebits.data.loading.slots import drain, to_device
from samebits.data.order import Plan
from samebits.data.permutation import hashed
from samebits.data.spec import Batch, Spec, empty_batch
from samebits.data.stream import Stream
from samebits.errors import ConfigError, DataFailed, RunFailed, one_line

_ROWS_SHOWN = 8  # of a batch, in a message
_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float32}  # floats as a model's, not as Python's


def seed_sample(seed: int, number: int) -> None:
    """Python's, numpy's and torch's CPU random numbers from (seed, sample number): the same in any worker."""
    value = int(hashed(seed, 5, np.array([number]))[0])
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)  # torch.manual_seed costs 70 us, for the GPUs' sake


def seed_of_split(seed: int, split: str) -> int:
    """Return the seed of what a data set draws for this split; the training split's is `seed`."""
    return seed if split == "train" else int(hashed(seed, 7, np.array([zlib.crc32(split.encode())]))[0])


@contextmanager
def random_numbers_of(seed: int, number: int) -> Iterator[None]:
    """What is drawn inside is that of (seed, sample number), and does not change what is drawn after."""
    with own_random_numbers():
        seed_sample(seed, number)
        yield


@contextmanager
def own_random_numbers() -> Iterator[None]:
    """What is drawn inside does not change what is drawn after."""
    states = random.getstate(), np.random.get_state(), torch.get_rng_state()
    try:
        yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        torch.set_rng_state(states[2])


@contextmanager
def drawing(seed: int | None) -> Iterator[None]:
    """In this block random numbers are those of the seed, and what is drawn changes none that is drawn after; None:
    they go on."""
    if seed is None:
        yield
        return
    with own_random_numbers():
        seed_sample(seed, -1)
        yield


def check_indexed(dataset: Any) -> None:
    """A dataset knows its length, and its samples by number."""
    own = type(dataset)
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(own, name)]
    if hasattr(dataset, "gather") and "__getitem__" in missing:
        missing.remove("__getitem__")
    if missing:
        raise ConfigError(
            f"data: {own.__name__} has no {missing[0]}, and samples are asked for by number: give it __getitem__(i) "
            "and __len__ (endless data: __len__ of 10**9, and __getitem__(i) that draws torch's, numpy's or "
            "Python's random numbers, which are seeded for each sample of each split), or __iter__ alone, for a "
            "stream, or pack its samples into a file, ./run h5 pack"
        )


def ahead_bytes(dataset: Any) -> int:
    """Of what comes through a network: bytes of the batches that `advise` is told of before they are gathered."""
    return int(getattr(dataset, "ahead_bytes", 0))


def tensor_of(value: Any, field: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(value)
    if type(value) in _NUMBERS:
        return torch.tensor(value, dtype=_NUMBERS[type(value)])
    raise ConfigError(
        f"data: field {field!r} of a sample is a {type(value).__name__}; return tensors, arrays or numbers, or give "
        "the dataset a method collate(samples) -> dict of tensors"
    )


def spec_of(sample: Any) -> Spec:
    if not isinstance(sample, dict) or not sample:
        raise ConfigError(
            f"data: __getitem__ returned a {type(sample).__name__}; return a dict of tensors, arrays or numbers"
        )
    tensors = {field: tensor_of(value, field) for field, value in sample.items()}
    return {field: (tuple(tensor.shape), tensor.dtype) for field, tensor in tensors.items()}


def write_sample(sample: Any, spec: Spec, batch: Batch, i: int) -> None:
    """Into row i of the buffers; a sample that does not fit them is an error, never cast or broadcast."""
    if not isinstance(sample, dict):
        spec_of(sample)  # which says so
    if sample.keys() != spec.keys():
        raise ConfigError(f"data: samples differ in their fields: {sorted(spec)} and {sorted(sample)}")
    for field, (shape, dtype) in spec.items():
        value = tensor_of(sample[field], field)
        if value.shape != shape or value.dtype != dtype:
            raise ConfigError(
                f"data: samples differ in field {field!r}: {dtype} {shape} and {value.dtype} {tuple(value.shape)}; "
                "make them alike in __getitem__, or give the dataset a method collate(samples) -> dict of tensors"
            )
        batch[field][i].copy_(value)


class Samples:
    """What loaders read a data set by. split: its name for messages; empty: it has none.

    Other attributes are the data set's (spec, advise, ...).
    """

    def __init__(self, dataset: Any, seed: int, split: str = "") -> None:
        self.dataset, self._seed, self._split = dataset, seed, split
        if isinstance(dataset, Stream):
            dataset.begin_sample = partial(seed_sample, seed)
        self.progress: np.ndarray | None = None  # of a worker: the row that is being made, in shared memory; -1: none

    def __len__(self) -> int:
        return len(self.dataset)

    def __getattr__(self, name: str) -> Any:
        if name == "dataset" or name.startswith("__"):  # pickle asks for some before there is a data set
            raise AttributeError(name)
        return getattr(self.dataset, name)

    @property
    def name(self) -> str:
        """The class of the data set, or of the source of a stream."""
        return type(self.dataset.source if isinstance(self.dataset, Stream) else self.dataset).__name__

    def has(self, method: str) -> bool:
        return hasattr(self.dataset, method)

    def place(self, rows: Sequence[int], what: str = "") -> str:
        """ "Noisy, rows 3, 5 of split train": what a message says of samples that were being made."""
        what = what or ("sample" if isinstance(self.dataset, Stream) else "row")
        shown = ", ".join(map(str, rows[:_ROWS_SHOWN])) + ", ..." * (len(rows) > _ROWS_SHOWN)
        which = f"{what}{'s' * (len(rows) != 1)} {shown}" if len(rows) else f"some {what}s"
        return f"{self.name}, {which}" + (f" of split {self._split}" if self._split else "")

    def transforming(self, numbers: Tensor) -> AbstractContextManager[None]:
        """In this block data.transforms work on the batch of these samples."""
        return _Making(self, numbers, "data.transforms", "sample number")

    def sample(self, number: int, row: int) -> Any:
        with _Making(self, [row]):
            return self._draw(number, row)

    def _draw(self, number: int, row: int) -> Any:
        seed_sample(self._seed, number)
        return self.dataset[row]

    def collated(self, numbers: Sequence[int], rows: Sequence[int]) -> Batch:
        """The batch of these samples by the data set's own `collate`."""
        samples = [self.sample(number, row) for number, row in zip(numbers, rows, strict=True)]
        nothing = [row for row, sample in zip(rows, samples, strict=True) if sample is None]
        with _Making(self, nothing or rows, "collate, of samples that are None" if nothing else "collate"):
            batch = self.dataset.collate(samples)
            if not isinstance(batch, Mapping):
                raise ConfigError(f"data: collate returned a {type(batch).__name__}; return a dict of tensors")
            return dict(batch)

    def gather(self, rows: np.ndarray, out: Batch | None) -> Batch:
        """The data set's own `gather`."""
        with _Making(self, rows):
            batch: Batch = self.dataset.gather(rows, out)
            return batch

    def spec_of(self, number: int, row: int) -> Spec:
        """What one sample looks like."""
        if self.has("gather"):
            return dict(self.dataset.spec)
        with _Making(self, [row]):
            return spec_of(self._draw(number, row))

    def fill(self, numbers: list[int], rows: np.ndarray, spec: Spec, batch: Batch) -> None:
        """Samples `rows`, each with the random numbers of its number, into batch: (B, ...) by field."""
        if self.has("gather"):
            self.gather(rows, batch)
            return
        for i, (number, row) in enumerate(zip(numbers, rows.tolist(), strict=True)):
            with _Making(self, [row]):
                write_sample(self._draw(number, row), spec, batch, i)


class _Making:
    """In this block the user's code makes these rows. Its failure, sys.exit() too, becomes a DataFailed that names the
    data set, the rows and the split; the one line of a ConfigError or RunFailed gets them appended."""

    __slots__ = ("_rows", "_samples", "_step", "_what")

    def __init__(self, samples: Samples, rows: Any, step: str = "", what: str = "") -> None:
        self._samples, self._rows, self._step, self._what = samples, rows, step, what

    def __enter__(self) -> None:
        self._report(self._rows[0] if len(self._rows) == 1 and not self._step else -1)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._report(-1)
        if isinstance(error, (ConfigError, RunFailed)):
            if self._what == "":  # else it is about the config, not about a sample
                error.args = (f"{error} ({self})", *error.args[1:])
        elif isinstance(error, (Exception, SystemExit)):
            raised = f"sys.exit({error.code!r})" if isinstance(error, SystemExit) else one_line(error)
            step = f"in {self._step}: " if self._step else ""
            raise DataFailed(f"data: {step}{raised} ({self})") from error

    def _report(self, row: int) -> None:
        if self._samples.progress is not None:
            self._samples.progress[0] = row

    def __str__(self) -> str:
        rows: list[int] = []
        dataset = self._samples.dataset
        if isinstance(dataset, Stream) and not (self._step or self._what):
            return self._samples.place([dataset.reading])
        with suppress(RuntimeError):  # of a GPU that has failed, whose tensors cannot be read
            rows = [int(row) for row in self._rows[: _ROWS_SHOWN + 1]]
        return self._samples.place(rows, self._what)


class InProcess:
    """No workers: samples are made when the loop asks. The loop's own random numbers go on as if nothing was drawn."""

    def __init__(self, samples: Samples, device: torch.device) -> None:
        self._samples, self.device = samples, device
        self._side = SideStream.of(device)

    def stream(self, plan: Plan) -> Iterator[tuple[Batch, Tensor]]:
        """(micro-batch, its sample numbers) on the device, in order, until the plan ends."""
        k = 0
        while (part := plan(k)) is not None:
            with own_random_numbers():
                batch = self._make(*part)
            pair = [deliver(batch, torch.from_numpy(part[0]), self.device, self._side)]
            del batch
            yield from drain(pair)
            k += 1

    def _make(self, numbers: np.ndarray, rows: np.ndarray) -> Batch:
        samples = self._samples
        if samples.has("collate"):
            return samples.collated(numbers.tolist(), rows.tolist())
        spec = samples.spec_of(int(numbers[0]), int(rows[0]))
        batch = empty_batch(spec, len(rows), torch.empty if self._side is None else self._side.cuda.empty)
        samples.fill(numbers.tolist(), rows, spec, batch)
        return batch

    def close(self) -> None:
        pass


def deliver(batch: Batch, numbers: Tensor, device: torch.device, side: SideStream | None) -> tuple[Batch, Tensor]:
    """A batch of fresh memory, on the device. side: SideStream.of(device)."""
    if side is None:
        return to_device(batch, device), numbers.to(device)
    locked = side.cuda.locked
    batch = {field: locked(value) if isinstance(value, Tensor) else value for field, value in batch.items()}
    return side.receive(side.send(batch, locked(numbers)))
