"""The memory of a device: its free bytes, and page-locked (pinned) memory of the host, which a GPU can copy
asynchronously."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from samebits.host import available_memory


def free_memory(device: torch.device) -> int:
    """Return the free bytes of a GPU, or of the host within its container's limit."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else available_memory()


def lock_pages(memory: Tensor) -> None:
    """Lock the pages of existing memory until `unlock_pages`. Raise RuntimeError if CUDA cannot. tensor.pin_memory()
    would allocate new memory, and only in powers of two."""
    _check(torch.cuda.cudart().cudaHostRegister(memory.data_ptr(), memory.nbytes, 0), memory)


def unlock_pages(memory: Tensor) -> None:
    """Unlock the pages of `memory`."""
    _check(torch.cuda.cudart().cudaHostUnregister(memory.data_ptr()), memory)


def _check(status: Any, memory: Tensor) -> None:
    if int(status) != 0:
        raise RuntimeError(f"CUDA cannot lock or unlock {memory.nbytes:,} bytes of memory: status {int(status)}")
