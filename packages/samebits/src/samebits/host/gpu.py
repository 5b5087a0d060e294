"""Count GPUs without initializing CUDA, because CUDA does not work in processes forked from one that has initialized
it.

torch.cuda.device_count() may initialize CUDA if NVML does not work (containers without it, MIG, Jetson). Importing this
module does not import torch.
"""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

VISIBLE = "CUDA_VISIBLE_DEVICES"
MOST_CONTEXT = 1 << 30  # bytes; memory above this belongs to another process
_counted: dict[str | None, int] = {}  # {CUDA_VISIBLE_DEVICES: GPUs}; forked processes inherit it


def count_gpus() -> int:
    """Return the number of GPUs that this process may use, without initializing CUDA."""
    import torch

    if not torch.backends.cuda.is_built() or os.environ.get(VISIBLE) == "":
        return 0
    if torch.cuda.is_initialized():
        return torch.cuda.device_count()
    visible = os.environ.get(VISIBLE)
    if visible not in _counted:
        told = _told_by_driver()
        _counted[visible] = _count_in_a_child() if told < 0 else told
    return _counted[visible]


def hide_gpus() -> None:
    """Hide the GPUs from a process that computes on the CPU, because optimizers query CUDA, which opens a context on
    GPU 0."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        os.environ[VISIBLE] = ""


def start_method() -> str:
    """Return fork, which is fast, or spawn if fork is unsafe: on macOS, after CUDA was initialized, or in a process
    with several threads (a notebook), because a lock held by a thread stays locked in a forked process."""
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    return "fork" if sys.platform == "linux" and not started and num_threads() == 1 else "spawn"


def num_threads() -> int:
    """Return the number of Python threads of this process."""
    return threading.active_count()


def pci_address(device: torch.device) -> str | None:
    """Return the PCI address as in /sys/bus/pci/devices; None if this version of torch does not provide it. Initializes
    CUDA."""
    import torch

    if device.type != "cuda":
        return None
    found: Any = torch.cuda.get_device_properties(device)
    parts = [getattr(found, f"pci_{name}_id", -1) for name in ("domain", "bus", "device")]
    return None if -1 in parts else "{:04x}:{:02x}:{:02x}.0".format(*parts)


def memory_of_process(device: torch.device) -> int:
    """Return the maximum bytes of a GPU that this process has used: torch's tensors, cache and fragments, and the
    memory of CUDA, its libraries and NCCL."""
    import torch

    return torch.cuda.max_memory_reserved(device) + min(held_beside_torch(device), MOST_CONTEXT)


def held_beside_torch(device: torch.device) -> int:
    """Return the bytes in use outside of this process's torch allocator: CUDA context, NCCL buffers, other
    processes."""
    import torch

    free, total = torch.cuda.mem_get_info(device)
    return max(0, total - free - torch.cuda.memory_reserved(device))


def _told_by_driver() -> int:
    """Return the number of GPUs from NVML (amdsmi for ROCm), without CUDA; negative if that fails."""
    import torch

    name = "_device_count_amdsmi" if torch.version.hip else "_device_count_nvml"
    return int(getattr(torch.cuda, name, lambda: -1)())


def _count_in_a_child() -> int:
    import torch

    child = os.fork()
    if child == 0:
        count = 0
        try:
            count = min(torch.cuda.device_count(), 255)
        finally:
            os._exit(count)
    return max(0, os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
