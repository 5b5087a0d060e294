"""Explain out-of-memory errors in one line that names the key to change."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from samebits.device import Hardware, free_memory
from samebits.errors import OutOfMemory, first_line
from samebits.host import count_gpus, private_memory

USED = 0.9  # fraction of the free memory for a trial; the rest is for fragmentation, other data, libraries
# errors without a class: messages of the CPU's allocator, MPS, cuDNN and cuBLAS
TELLING = ("can't allocate memory", "out of memory", "not enough memory", "alloc_failed")


def is_out_of_memory(error: BaseException) -> bool:
    """Return True if the error, or its cause, means that memory is full."""
    if isinstance(error, (MemoryError, torch.OutOfMemoryError)):
        return True
    if isinstance(error, RuntimeError) and any(text in str(error).lower() for text in TELLING):
        return True
    return error.__cause__ is not None and is_out_of_memory(error.__cause__)  # e.g. an error while building an object


def limit_memory(device: torch.device, processes: int) -> None:
    """Make allocations of this process fail beyond its share of the memory that is free now, as if memory were full.

    processes: number of processes of the run on this machine. They share the host's memory, or each uses one of the
    first GPUs; the GPU with the least free memory sets the limit.
    """
    if device.type == "cuda":
        used = range(min(processes, count_gpus()))
        free = min(free_memory(torch.device("cuda", index)) for index in used)
        whole = torch.cuda.mem_get_info(device)[1]
        torch.cuda.set_per_process_memory_fraction(min(1.0, USED * free / whole), device)
        return
    import resource

    # RLIMIT_DATA counts private memory that the process may write to
    limit = private_memory() + int(USED * free_memory(device) / processes)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


@contextmanager
def explained(
    hardware: Hardware, where: Callable[[], str], snapshot: Callable[[], str | None] = lambda: None
) -> Iterator[None]:
    """Convert out-of-memory errors within this block to OutOfMemory, which names the key to change.

    where: returns what the rank is doing, e.g. "training, at step 12". snapshot: writes the history of memory and
    returns its path, or None.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, OutOfMemory) or not is_out_of_memory(error):
            raise
        place, written = where(), snapshot()
        text = f"out of memory ({place}; {first_line(error)}): {advice(hardware, place.startswith('evaluating'))}"
        held = f"; memory history: {written}" if written else ""
        raise OutOfMemory(f"{text}{held}; see docs/troubleshooting.md#out-of-memory") from error


def advice(hardware: Hardware, evaluating: bool) -> str:
    """Return the keys to change when memory is full. evaluating: True if this happened in evaluation."""
    if evaluating and hardware.eval_batch_size > 1:
        size = hardware.eval_batch_size
        return f"evaluation uses batches of {size} samples - set hardware.eval_batch_size={max(1, size // 2)}"
    size = -(-max(hardware.micro_batch_sizes) // hardware.devices)
    if size > 1:
        auto = " (auto finds the largest)" if hardware.devices == 1 else ""  # not available with trainer=dp
        return (
            f"a micro-batch has {size} samples - hardware.micro_batch_size={size // 2} computes the same step in "
            f"smaller parts{auto}, hardware.activation_checkpointing=auto stores fewer activations"
        )
    return (
        "hardware.micro_batch_size is already 1 - use hardware.activation_checkpointing=auto, trainer=fsdp on more "
        "ranks, or a smaller model"
    )
