"""The spec of a batch: {field: (shape of one sample, dtype)}. A shape that begins with -1 means that samples differ in
length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Batch = dict[str, Tensor]
Spec = dict[str, "tuple[tuple[int, ...], torch.dtype]"]


def sample_bytes(spec: Spec) -> int:
    """Return the number of bytes of one sample."""
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in spec.values())


def empty_batch(spec: Spec, rows: int, make: Any = torch.empty) -> Batch:
    """Return uninitialized buffers for `rows` samples, (rows, *shape) by field. make: torch.empty or a function like
    it."""
    return {field: make((rows, *shape), dtype=dtype) for field, (shape, dtype) in spec.items()}


def is_ragged(spec: Spec) -> bool:
    """Return True if samples differ in length."""
    return any(-1 in shape for shape, _ in spec.values())
