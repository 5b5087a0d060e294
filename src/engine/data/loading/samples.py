"""Map-style datasets, sample by sample: random numbers of each sample's own, what a batch of them looks like."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from engine.data.loading.side_stream import SideStream
from engine.data.loading.slots import Batch, Spec, to_device
from engine.data.order import Plan
from engine.data.permutation import hashed
from engine.errors import ConfigError

_NUMBERS = {bool: torch.bool, int: torch.int64, float: torch.float32}  # floats as a model's, not as Python's


def seed_sample(seed: int, number: int) -> None:
    """Python's, numpy's and torch's CPU random numbers from (seed, sample number): the same in any worker."""
    value = int(hashed(seed, 5, np.array([number]))[0])
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)  # torch.manual_seed costs 70 us, for the GPUs' sake


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


def check_indexed(dataset: Any) -> None:
    """A dataset knows its length, and its samples by number."""
    own = type(dataset)
    missing = [name for name in ("__len__", "__getitem__") if not hasattr(own, name)]
    if hasattr(dataset, "gather") and "__getitem__" in missing:
        missing.remove("__getitem__")
    if missing:
        raise ConfigError(
            f"data: {own.__name__} has no {missing[0]}, and samples are asked for by number: give it __getitem__(i) "
            "and __len__ (endless data: __len__ of 10**9, and __getitem__(i) that draws from a generator seeded by i), "
            "or __iter__ alone, for a stream, or pack its samples into a file with src/h5.py"
        )


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


def fill(dataset: Any, seed: int, numbers: list[int], rows: np.ndarray, spec: Spec, batch: Batch) -> None:
    """Samples `rows`, each with the random numbers of its number, into batch: (B, ...) by field."""
    if hasattr(dataset, "gather"):
        dataset.gather(rows, batch)
        return
    for i, (number, row) in enumerate(zip(numbers, rows.tolist(), strict=True)):
        seed_sample(seed, number)
        write_sample(dataset[row], spec, batch, i)


class InProcess:
    """No workers: samples are made when the loop asks. The loop's own random numbers go on as if nothing was drawn."""

    def __init__(self, dataset: Any, device: torch.device, seed: int) -> None:
        self.dataset, self.device, self._seed = dataset, device, seed
        self._side = SideStream.of(device)

    def stream(self, plan: Plan) -> Iterator[tuple[Batch, Tensor]]:
        """(micro-batch, its sample numbers) on the device, in order, until the plan ends."""
        k = 0
        while (part := plan(k)) is not None:
            with own_random_numbers():
                batch = self._make(*part)
            pair = [self._deliver(batch, torch.from_numpy(part[0]))]
            del batch
            yield pair.pop()
            k += 1

    def _deliver(self, batch: Batch, numbers: Tensor) -> tuple[Batch, Tensor]:
        if self._side is None:
            return to_device(batch, self.device), numbers.to(self.device)
        locked = self._side.cuda.locked
        batch = {field: locked(value) if isinstance(value, Tensor) else value for field, value in batch.items()}
        return self._side.receive(self._side.send(batch, locked(numbers)))

    def _make(self, numbers: np.ndarray, rows: np.ndarray) -> Batch:
        if hasattr(self.dataset, "collate"):
            samples = []
            for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
                seed_sample(self._seed, number)
                samples.append(self.dataset[row])
            return dict(self.dataset.collate(samples))
        if hasattr(self.dataset, "gather"):
            spec = self.dataset.spec
        else:
            seed_sample(self._seed, int(numbers[0]))
            spec = spec_of(self.dataset[int(rows[0])])
        empty: Any = torch.empty if self._side is None else self._side.cuda.empty
        batch = {field: empty((len(rows), *shape), dtype=dtype) for field, (shape, dtype) in spec.items()}
        fill(self.dataset, self._seed, numbers.tolist(), rows, spec, batch)
        return batch

    def close(self) -> None:
        pass
