"""What a batch is made of: {field: (shape of one sample, dtype)}. A shape that begins with -1 is of samples that differ
in length."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from torch import Tensor

Batch = dict[str, Tensor]
Spec = dict[str, "tuple[tuple[int, ...], torch.dtype]"]


def sample_bytes(spec: Spec) -> int:
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in spec.values())


def empty_batch(spec: Spec, rows: int, make: Any = torch.empty) -> Batch:
    """Memory for so many rows. make: torch.empty, or one like it."""
    return {field: make((rows, *shape), dtype=dtype) for field, (shape, dtype) in spec.items()}


def is_ragged(spec: Spec) -> bool:
    return any(-1 in shape for shape, _ in spec.values())
