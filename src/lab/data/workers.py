"""Deliver a map-style dataset: `__getitem__` runs here or in workers, each sample with random numbers of its own."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.data.order import Plan
from lab.data.permutation import hashed
from lab.data.ring import Batch
from lab.errors import ConfigError


def seed_sample(seed: int, number: int) -> None:
    """Python's, numpy's and torch's CPU random numbers from (seed, sample number): the same in any worker."""
    value = int(hashed(seed, 5, np.array([number]))[0])
    random.seed(value)
    np.random.seed(value & 0xFFFFFFFF)
    torch.default_generator.manual_seed(value >> 1)


def collate(samples: list[dict[str, Any]]) -> Batch:
    """Stacks samples of one shape; floats become float32, as a model's."""
    batch = {}
    for field in samples[0]:
        values = [tensor_of(sample[field], field) for sample in samples]
        shapes = sorted({tuple(value.shape) for value in values})
        if len(shapes) > 1:
            raise ConfigError(
                f"data: samples differ in shape in field {field!r}: {shapes[0]} and {shapes[1]}; make them alike in "
                "__getitem__, or give the dataset a method collate(samples) -> dict of tensors"
            )
        batch[field] = torch.stack(values)
    return batch


def tensor_of(value: Any, field: str) -> Tensor:
    if isinstance(value, Tensor):
        return value
    if isinstance(value, (np.ndarray, np.generic)):
        return torch.as_tensor(value)
    if isinstance(value, (bool, int, float)):
        return torch.tensor(value)
    raise ConfigError(
        f"data: field {field!r} of a sample is a {type(value).__name__}; return tensors, arrays or numbers"
    )


class InProcess:
    """No workers: samples are made when the loop asks. The loop's own random numbers go on as if nothing was drawn."""

    def __init__(self, dataset: Any, device: torch.device, seed: int) -> None:
        self.dataset, self.device, self._seed = dataset, device, seed
        self._collate: Callable[[list[Any]], Batch] = getattr(dataset, "collate", collate)

    def stream(self, plan: Plan) -> Iterator[tuple[Batch, Tensor]]:
        """(micro-batch, its sample numbers) on the device, in order, until the plan ends."""
        k = 0
        while (part := plan(k)) is not None:
            numbers, rows = part
            states = random.getstate(), np.random.get_state(), torch.get_rng_state()
            try:
                samples = []
                for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
                    seed_sample(self._seed, number)
                    samples.append(self.dataset[row])
            finally:
                random.setstate(states[0])
                np.random.set_state(states[1])
                torch.set_rng_state(states[2])
            pair = [
                (
                    {f: v.to(self.device) for f, v in self._collate(samples).items()},
                    torch.from_numpy(numbers).to(self.device),
                )
            ]
            del samples
            yield pair.pop()
            k += 1

    def close(self) -> None:
        pass


def open_workers(
    dataset: Any, plan: Plan, device: torch.device, num_workers: int | str, seed: int, start_method: str | None
) -> tuple[Any, str]:
    return InProcess(dataset, device, seed), "in this process"
