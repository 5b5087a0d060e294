"""Lock pages of existing memory (pinned memory), so that the GPU can copy it asynchronously. tensor.pin_memory() would
allocate new memory, and only in powers of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lock_pages(memory: Tensor) -> None:
    """Lock the pages of `memory` until `unlock_pages`. Raise RuntimeError if CUDA cannot."""
    _check(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0), memory)


def unlock_pages(memory: Tensor) -> None:
    """Unlock the pages of `memory`."""
    _check(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()), memory)


def _check(status: Any, memory: Tensor) -> None:
    if int(status) != 0:
        raise RuntimeError(f"CUDA cannot lock or unlock {memory.nbytes:,} bytes of memory: status {int(status)}")
