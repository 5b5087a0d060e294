"""Memory that is there already, page-locked: copies from and to it need not be waited for. torch's own page-locked
memory comes in powers of two."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def lock_pages(memory: Tensor) -> None:
    """Until `unlock_pages`."""
    _check(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0), memory)


def unlock_pages(memory: Tensor) -> None:
    _check(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()), memory)


def _check(status: Any, memory: Tensor) -> None:
    if int(status) != 0:
        raise RuntimeError(f"CUDA cannot lock or unlock {memory.nbytes:,} bytes of memory: status {int(status)}")
