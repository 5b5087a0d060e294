"""Counting GPUs without initializing CUDA: CUDA does not work in processes forked from one that has initialized it.
torch.cuda.device_count() may do that where NVML does not answer (containers without it, MIG, Jetson).
Importing this imports no torch."""

from __future__ import annotations

import os
import sys
import threading

VISIBLE = "CUDA_VISIBLE_DEVICES"
_counted: dict[str | None, int] = {}  # {CUDA_VISIBLE_DEVICES: GPUs}; forked processes inherit it


def count_gpus() -> int:
    """Number of GPUs that this process may use; does not initialize CUDA in it."""
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
    """For a process that computes on the CPU: optimizers query CUDA, which would open a context on GPU 0."""
    torch = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        os.environ[VISIBLE] = ""


def start_method() -> str:
    """fork, which is fast, or spawn where fork is unsafe: on macOS, after CUDA was initialized, or in a process with
    several threads (a notebook), as a lock that a thread holds stays locked forever in a forked process."""
    torch = sys.modules.get("torch")
    started = torch is not None and torch.cuda.is_initialized()
    return "fork" if sys.platform == "linux" and not started and num_threads() == 1 else "spawn"


def num_threads() -> int:
    """Python threads of this process."""
    return threading.active_count()


def _told_by_driver() -> int:
    """Number of GPUs by NVML (amdsmi for ROCm), without CUDA; below 0: it does not answer."""
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
