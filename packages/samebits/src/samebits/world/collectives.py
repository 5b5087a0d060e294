"""Collectives of all ranks. Values that are not tensors are exchanged on the host. Importing this module does not
import torch. (The collectives of DDP and FSDP are in samebits.parallel and samebits.shards.)"""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from samebits.children import process_state
from samebits.errors import RunFailed

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn


@dataclass(frozen=True)
class World:
    """All ranks of the run, as seen by this rank. All ranks must call the methods in the same order. With one rank,
    each method returns its argument."""

    rank: int
    size: int
    local_rank: int
    device: torch.device
    _groups: dict[str, Any] = field(default_factory=dict, init=False, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        """Return True on rank 0."""
        return self.rank == 0

    def all_reduce_sum(self, values: Tensor) -> Tensor:
        """Sum the tensor over all ranks, in place, and return it."""
        if self.size > 1:
            import torch.distributed as dist

            dist.all_reduce(values)
        return values

    def all_max(self, values: list[int]) -> Callable[[], list[int]]:
        """Start an elementwise maximum over all ranks, on the CPU. Return a function that waits for the result."""
        if self.size == 1:
            return lambda: values
        import torch
        import torch.distributed as dist

        shared = torch.tensor(values, dtype=torch.int64)
        return _waits(dist.all_reduce(shared, op=dist.ReduceOp.MAX, async_op=True), shared)

    def any(self, answer: bool) -> bool:
        """Return True if `answer` is true on any rank."""
        return bool(self.all_max([int(answer)])()[0])

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """Return [tensor of rank 0, tensor of rank 1, ...] on all ranks, on this rank's device. Shapes and dtypes may
        differ between ranks."""
        if self.size == 1:
            return [values]
        import torch
        import torch.distributed as dist

        own = values.detach().contiguous().flatten().view(torch.uint8)
        told = self.broadcast_object(self.gather_object([str(values.dtype), list(values.shape), len(own)]))
        padded = own.new_zeros(max(size for *_, size in told))
        padded[: len(own)] = own
        parts = [torch.empty_like(padded) for _ in told]
        dist.all_gather(parts, padded)
        dtypes = [getattr(torch, name.removeprefix("torch.")) for name, *_ in told]
        return [part[:size].view(dtype).view(shape) for part, dtype, (_, shape, size) in zip(parts, dtypes, told)]

    def gather_object(self, value: Any, group: Any = None) -> list[Any]:
        """Return [value of rank 0, value of rank 1, ...] on rank 0, and [] on the others. Values are small JSON types.
        They are not pickled, because anybody who can reach the ranks' ports could then send code."""
        if self.size == 1:
            return [value]
        import torch
        import torch.distributed as dist

        own = _bytes(value)
        size = torch.tensor([len(own)])
        # gather to rank 0 along a tree: gloo's all-gather is a ring of N - 1 messages in sequence
        sizes = self.gather_bytes(size, group)
        most = sizes.max() if self.is_main else size[0]
        dist.broadcast(most, src=0, group=group)
        padded = torch.zeros(int(most), dtype=torch.uint8)
        padded[: len(own)] = own
        rows = self.gather_bytes(padded, group)
        return [json.loads(row[:count].numpy().tobytes()) for row, count in zip(rows, sizes.flatten().tolist())]

    def gather_bytes(self, own: Tensor, group: Any = None) -> Tensor:
        """Gather a host tensor (K,) of equal size from each rank. Return (ranks, K) on rank 0 and (0, K) on the
        others."""
        if self.size == 1:
            return own[None]
        import torch.distributed as dist

        rows = own.new_empty(self.size if self.is_main else 0, len(own))
        dist.gather(own, list(rows.unbind()) or None, dst=0, group=group)
        return rows

    def broadcast_object(self, value: Any, group: Any = None) -> Any:
        """Broadcast rank 0's value, of JSON types, to all ranks. group: as in `gather_object`."""
        if self.size == 1:
            return value
        import torch
        import torch.distributed as dist

        data = _bytes(value) if self.is_main else None
        size = torch.tensor([0 if data is None else len(data)])
        dist.broadcast(size, src=0, group=group)
        data = torch.empty(int(size), dtype=torch.uint8) if data is None else data
        dist.broadcast(data, src=0, group=group)
        return json.loads(data.numpy().tobytes())

    def broadcast(self, tensors: list[Tensor]) -> None:
        """Broadcast rank 0's tensors to all ranks, in place and in one message for all dtypes."""
        import torch
        import torch.distributed as dist

        if self.size == 1 or not tensors:
            return
        sent = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])
        dist.broadcast(sent, src=0)
        if not self.is_main:
            for tensor, part in zip(tensors, sent.split([tensor.nbytes for tensor in tensors])):
                tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))  # the clone is aligned for any dtype

    def broadcast_buffers(self, model: nn.Module) -> None:
        """Broadcast rank 0's buffers (BatchNorm's running statistics), so that all ranks evaluate the same model."""
        self.broadcast([buffer.detach() for buffer in model.buffers()])

    def start_broadcast(self, values: list[int]) -> Callable[[], list[int]]:
        """Start a broadcast of rank 0's values on the CPU. Return a function that waits for the result."""
        import torch
        import torch.distributed as dist

        shared = torch.tensor(values, dtype=torch.int64)
        return _waits(dist.broadcast(shared, src=0, async_op=True), shared)

    def barrier(self) -> None:
        """Wait until all ranks have called this."""
        self.all_max([0])()

    def dead_peers(self) -> Callable[[], list[int]]:
        """Return a function that lists the ranks on this machine whose processes have died."""
        here = machine()
        places = self.broadcast_object(self.gather_object((here, os.getpid())))
        pids = {rank: pid for rank, (other, pid) in enumerate(places) if other == here}
        # "": no such process; Z, X: a zombie or a dead process; without /proc the process counts as alive
        return lambda: [rank for rank, pid in pids.items() if process_state(pid) in ("", "Z", "X")]

    @contextmanager
    def file_of_host(self) -> Iterator[BinaryIO | None]:
        """Yield an empty file that all ranks of this machine have opened, each by itself. It is in memory, so nothing
        is left of it when they end.

        None with one rank, on macOS, and if this rank may not open the file: the ranks then share nothing."""
        if self.size == 1 or not hasattr(os, "memfd_create"):
            yield None
            return
        here = machine()
        with ExitStack() as opened:
            own = opened.enter_context(open(os.memfd_create("samebits"), "r+b", buffering=0))
            places = self.broadcast_object(self.gather_object([here, f"/proc/{os.getpid()}/fd/{own.fileno()}"]))
            path, file = next(path for other, path in places if other == here), None
            with suppress(OSError):
                file = opened.enter_context(open(path, "r+b", buffering=0))
            self.barrier()  # all have opened it, so the first rank may close its own
            yield file

    def thread_group(self) -> Any:
        """Return a gloo group of all ranks for collectives in a background thread; None with one rank. It is created
        once. With the loop's group, both threads' collectives could run in different orders on different ranks and
        deadlock."""
        if "threads" not in self._groups and self.size > 1:
            import torch.distributed as dist

            self._groups["threads"] = dist.new_group(backend="gloo")
        return self._groups.get("threads")


def machine() -> str:
    """Return a name for this machine or container. Its host name may be that of another container on the machine."""
    name = platform.node()
    with suppress(OSError):  # macOS
        name += os.readlink("/proc/self/ns/pid") + Path("/proc/sys/kernel/random/boot_id").read_text()
    return name


def gather_rows(own: Tensor) -> tuple[Tensor, int]:
    """Gather rows (B, ...) of each rank. Return (rows (N, ...) of all ranks in their order, index of the first own
    row).

    It is differentiable: a rank's rows get the gradients of the losses of all ranks. All ranks must call this with the
    same number of rows, otherwise it raises RunFailed. With one rank it is the identity. Use it in losses of a task
    with `needs_global_batch`."""
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return own, 0
    count, rank = len(own), dist.get_rank()
    if own.is_meta:  # FLOP are counted on meta tensors: only shapes matter
        return own.repeat(dist.get_world_size(), *[1] * (own.dim() - 1)), rank * count
    most = torch.tensor([count, -count])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)  # on the host, without a GPU synchronization
    if (counts := to_host(most)) != [count, -count]:
        raise RunFailed(
            f"rank {rank} gathers {count} rows, other ranks {-counts[1]} to {counts[0]}: the numbers must be equal "
            "for gather_rows - in a metric, use world.all_gather(tensor)"
        )

    def summed(gradient: Tensor) -> Tensor:
        total = gradient.contiguous().clone()
        dist.all_reduce(total)
        return total

    parts = [torch.empty_like(own) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, own.detach().contiguous())
    parts[rank] = own
    rows = torch.cat(parts)
    if rows.requires_grad:
        rows.register_hook(summed)
    return rows, rank * count


def gather_in_order(own: Tensor, sample_ids: Tensor) -> Tensor:
    """Gather rows (B, ...) of each rank, without gradients, in the order of their sample ids: (N, ...).

    sample_ids: batch["sample_id"], (B,). The result of a step, e.g. for a queue, is then equal for any number of ranks.
    Rows of padding (-1) come first. All ranks must call this with the same number of rows."""
    ids, rows = gather_rows(sample_ids)[0], gather_rows(own.detach())[0]
    return rows[ids.argsort(stable=True)]


def to_host(values: Tensor) -> Any:
    """Return the values as a number or (nested) list. All device synchronizations use this function, so that the
    watchdog recognizes a waiting rank: an NCCL collective that another rank does not join blocks here, not when it is
    launched."""
    return values.tolist()


def to_cpu(values: Tensor) -> Tensor:
    """Return the tensor on the CPU; see `to_host`."""
    return values.cpu()


def _waits(work: Any, shared: Tensor) -> Callable[[], list[int]]:
    def result() -> list[int]:
        work.wait()
        return to_host(shared)

    return result


def _bytes(value: Any) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)
