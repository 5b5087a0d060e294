"""The process group of the ranks. Importing this module does not import torch."""

from __future__ import annotations

import os
import resource
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any

from samebits.world.cluster import interface_towards
from samebits.world.collectives import World
from samebits.world.environment import dist_env
from samebits.world.store import store

EAGER_RANKS = 32  # with more ranks, gloo connects each pair at its first message instead of at the start
MOST_FILES = 1 << 16  # limit on a rank's open files
_never_freed: list[Any] = []


@contextmanager
def process_group(device_type: str, timeout_s: float) -> Iterator[World]:
    """Yield the World of this process. Several ranks form a process group within the block.

    device_type: cpu, cuda or mps. timeout_s: longest time that a collective waits for other ranks.
    """
    import torch

    size = dist_env.size or 1
    device = dist_env.device(device_type)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = World(dist_env.rank, size, dist_env.local_rank, device)
    if size == 1:
        yield world
        return

    import torch.distributed as dist

    if size > dist_env.local_size:
        choose_interface(os.environ["MASTER_ADDR"])
    allow_connections(size)
    group_store, timeout = dist.PrefixStore("group", store()), timedelta(seconds=timeout_s)
    dist.init_process_group(backend(device.type), store=group_store, rank=world.rank, world_size=size, timeout=timeout)
    yield world
    # not in a finally block: after an exception other ranks may be stuck, and NCCL would wait for them
    world.barrier()  # rank 0 has more to do at the end, and the launcher would report a rank that exits early as lost
    dist.destroy_process_group()


def backend(device_type: str) -> str:
    """Return the backend. CUDA uses gloo in addition to nccl, to exchange host tensors without the GPU."""
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"


def world_of_one(device_type: str = "cpu") -> World:
    """Return the world of this process by itself, without a process group. device_type: cpu, cuda or mps."""
    return World(0, 1, 0, dist_env.device(device_type))


@contextmanager
def group_of_one(world: World) -> Iterator[None]:
    """Simulate a rank of `world` with trainer=ddp in one process: within the block, DDP has a group of only this
    process, so it builds its buckets and waits for nobody."""
    if world.size == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group(backend(world.device.type), store=dist.HashStore(), rank=0, world_size=1)
    # do not free the gloo group: freeing waits for gloo's threads while it holds the GIL, and a thread that still frees
    # memory of a finished collective waits for the GIL. The process ends soon
    _never_freed.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def choose_interface(address: str) -> None:
    """Make gloo and NCCL use the network interface that routes to rank 0, unless the user has set one."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(address)):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without "=" it would be a prefix of names


def allow_connections(size: int) -> None:
    """Raise the limit on open files, because gloo connects each of `size` ranks with all others, about one file
    each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a lower limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if size > EAGER_RANKS:  # if this version of torch supports it: connect at the first message
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")
