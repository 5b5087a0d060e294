"""Apply the transforms of each part of data=mixed to its samples in a batch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.transforms.fields import Batch, Transform, compose
from lab.transforms.spec import described
from samebits.errors import ConfigError


def filling(dtype: torch.dtype) -> int | float | bool:
    """Return the value of a field that a part lacks; it is not a valid label."""
    if dtype.is_floating_point or dtype.is_complex or dtype == torch.bool:
        return 0
    return -1 if dtype.is_signed else torch.iinfo(dtype).max


class PartTransforms:
    """A transform that applies to each sample the transforms of its part.

    part_of: rows -> index of the part; it runs on the host, so that nothing waits for the device. fields: {part: its
    fields}; its transforms get only these. transforms: {part: its transforms}. prepared: chain -> the function to call
    for it, e.g. compiled.
    """

    takes_rows = True

    def __init__(
        self,
        part_of: Callable[[np.ndarray], np.ndarray],
        fields: Mapping[str, Sequence[str]],
        transforms: Mapping[str, Sequence[Transform]],
        training: bool,
        prepared: Callable[[Any], Any],
    ) -> None:
        self.part_of, self.names = part_of, list(fields)
        self.fields = [[*names, "set"] for names in fields.values()]
        chains = [compose(transforms[name], training) for name in self.names]
        self.chains = [None if chain is None else prepared(chain) for chain in chains]
        # output fields of each chain
        self._specs: list[dict[str, tuple[torch.Size, torch.dtype]]] = [{} for _ in self.names]

    def __call__(self, batch: Batch, sample_ids: Tensor, rows: np.ndarray) -> Batch:
        """Return the transformed batch. rows: (B,) rows of the data set. Raise ConfigError if parts return different
        fields."""
        of = self.part_of(rows)
        groups = [np.flatnonzero(of == k) for k in range(len(self.names))]
        order = np.concatenate(groups)
        places = _on(sample_ids.device, np.stack([order, np.argsort(order)]))
        done, begin = [], 0
        for k, group in enumerate(groups):
            done.append(self._of_part(k, batch, sample_ids, places[0, begin : begin + len(group)]))
            begin += len(group)
        self._check_alike()
        fields = {field: spec for specs in self._specs for field, spec in specs.items()}
        sizes = [len(group) for group in groups]

        def column(field: str, spec: tuple[torch.Size, torch.dtype]) -> Tensor:
            parts = zip(done, sizes, strict=True)
            return torch.cat([part[field] if field in part else _filled(n, spec, places) for part, n in parts])

        return {field: column(field, spec)[places[1]] for field, spec in fields.items()}

    def _of_part(self, k: int, batch: Batch, sample_ids: Tensor, at: Tensor) -> Batch:
        """Return the transformed samples of one part; {} if it has none in this batch."""
        if not len(at) and self._specs[k]:
            return {}
        # to find the output fields of a part without samples, transform two other samples and drop them
        taken = at if len(at) else at.new_zeros(2)
        part = {field: batch[field][taken] for field in self.fields[k]}
        chain = self.chains[k]
        done = part if chain is None else chain(part, sample_ids[taken])
        self._specs[k] = {field: (values.shape[1:], values.dtype) for field, values in done.items()}
        wrong = next((values for values in done.values() if len(values) != len(taken)), None)
        if wrong is not None:
            raise ConfigError(f"data.parts.{self.names[k]}.transforms: returned {len(wrong)} samples for {len(taken)}")
        return done if len(at) else {}

    def _check_alike(self) -> None:
        known: dict[str, tuple[str, Any]] = {}
        for name, specs in zip(self.names, self._specs):
            for field, spec in specs.items():
                home, other = known.setdefault(field, (name, spec))
                if spec != other:
                    here, there = described(*spec), described(*other)
                    raise ConfigError(
                        f"data.parts.{name}.transforms: the field {field!r} becomes {here}, but in "
                        f"data.parts.{home} {there}: they must agree, because a batch contains both"
                    )


def _filled(count: int, spec: tuple[torch.Size, torch.dtype], like: Tensor) -> Tensor:
    return torch.full((count, *spec[0]), filling(spec[1]), dtype=spec[1], device=like.device)


def _on(device: torch.device, values: np.ndarray) -> Tensor:
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
