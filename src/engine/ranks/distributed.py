"""Ranks: who is who, and what they tell each other; importing it imports no torch. (ddp.py, fsdp.py and shards.py
are the strategies' own.)

A process is a rank when RANK, WORLD_SIZE and LOCAL_RANK are in its environment: torchrun or `launch.py` put them there,
or `cluster.become_rank` after srun. The ranks meet at a store: MASTER_ADDR, MASTER_PORT or, for ranks that `launch.py`
started on one machine, a file (LAB_STORE), which needs no port that another job could take.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError
from engine.ranks import wire
from engine.ranks.cluster import cluster_role, gpu_index, interface_towards, listener, rank_variables
from engine.ranks.cuda import count_gpus

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

EAGER_RANKS = 32  # more do not all connect with each other beforehand
MOST_FILES = 1 << 16  # open files of a rank
START_TIMEOUT_S = 600.0  # how far apart the processes of a run may start
_stores: dict[str, Any] = {}


@dataclass(frozen=True)
class World:
    rank: int
    size: int
    local_rank: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        return self.rank == 0


def is_rank() -> bool:
    """Others of these variables alone, left over in a shell, are refused by `place` or mean nothing."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def rank() -> int:
    return int(os.environ["RANK"]) if is_rank() else 0


def started_ranks() -> int | None:
    """How many ranks somebody else (torchrun, a scheduler) has started; None: this process is no rank."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else None


def local_rank() -> int:
    """Which of the ranks on this machine this is."""
    return int(os.environ["LOCAL_RANK"]) if is_rank() else 0


def gpu() -> int:
    """The number of the GPU that this rank takes, among those that it can see."""
    return gpu_index(local_rank(), count_gpus())


def has_parent() -> bool:
    """Whether `launch.py` started this process: its parent tells the user what has failed."""
    return "LAB_PARENT" in os.environ


def local_ranks() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_rank() else 1


def hosts() -> int:
    """How many processes like this one, on a machine each, start ranks of this run."""
    here = cluster_role()
    return here.count if here is not None and here.kind == "host" else 1


def first_rank(local_size: int) -> int:
    """Of the `local_size` ranks that this process starts."""
    here = cluster_role()
    return here.index * local_size if here is not None and here.kind == "host" else 0


def rank_environment(local_rank: int, local_size: int, store_file: str) -> dict[str, str]:
    """What makes a process one of the `local_size` ranks of this machine; those of a single machine meet at a file."""
    here = cluster_role()
    if here is None or here.kind == "rank":
        return rank_variables(local_rank, local_size, local_rank, local_size) | {"LAB_STORE": store_file}
    index, count = first_rank(local_size) + local_rank, here.count * local_size
    meeting = {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port), "LAB_HOSTS": str(here.count)}
    return rank_variables(index, count, local_rank, local_size) | meeting


def store() -> Any:
    """The store at which the ranks meet, made once for each process."""
    if "store" not in _stores:
        import torch.distributed as dist

        here = cluster_role()
        if "LAB_STORE" in os.environ:
            _stores["store"] = dist.FileStore(os.environ["LAB_STORE"], int(os.environ["WORLD_SIZE"]))
            return _stores["store"]
        assert here is not None
        try:
            if "TORCHELASTIC_RUN_ID" in os.environ:  # torchrun's agent holds the store
                _stores["store"] = of_this_attempt(next(dist.rendezvous("env://"))[0])
            else:  # not by rendezvous: it makes rank 0 wait for ranks that wait for its directory
                wait = timedelta(seconds=START_TIMEOUT_S)
                leads = here.index == 0
                own = listener(here) if leads else None
                fd = own.detach() if own else None  # the store's from here on
                _stores["store"] = dist.TCPStore(here.address, here.port, None, leads, wait, False, master_listen_fd=fd)
        except (dist.DistError, ValueError, OSError) as error:
            why = str(error).partition("\n")[0]
            raise ConfigError(
                f"MASTER_ADDR={here.address} MASTER_PORT={here.port}: the ranks cannot meet there: {why}"
            ) from None
    return _stores["store"]


def forget_store() -> None:
    """This process goes on as the parent of ranks, which connect by themselves."""
    _stores.clear()


def of_this_attempt(store: Any) -> Any:
    """torchrun's agent keeps its store when it restarts the ranks, with the addresses of those that are gone. On one
    machine all know how often it did; several need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1, their counts may differ."""
    import torch.distributed as dist

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt_{attempt}", store) if os.environ.get("GROUP_WORLD_SIZE") == "1" else store


@contextmanager
def world(device_type: str, timeout_s: float) -> Iterator[World]:
    """This process's place among the ranks; several ranks form a process group that ends with the block.

    device_type: cpu, cuda or mps. timeout_s: how long a collective may wait for the other ranks.
    """
    import torch

    size = started_ranks() or 1
    device = torch.device(device_type, gpu()) if device_type == "cuda" else torch.device(device_type)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = World(rank(), size, local_rank(), device)
    if size == 1:
        yield world
        return

    import torch.distributed as dist

    if size > local_ranks():
        choose_interface(os.environ["MASTER_ADDR"])
    allow_connections(size)
    # gloo beside nccl: what lives on the host (random states, flags) is exchanged without touching the GPU
    backend = "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo"
    group_store = dist.PrefixStore("group", store())
    dist.init_process_group(
        backend, store=group_store, rank=rank(), world_size=size, timeout=timedelta(seconds=timeout_s)
    )
    yield world
    # not after an exception: the other ranks may be stuck, and NCCL would wait for them; the process ends anyway
    meet(world)  # rank 0 has more to do at the end: whoever started the ranks would take the first to leave for lost
    dist.destroy_process_group()


def choose_interface(address: str) -> None:
    """gloo and NCCL take the network that leads to rank 0, unless the user has named another."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(address)):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without the = also all whose names begin so


def allow_connections(size: int) -> None:
    """gloo connects each of `size` ranks with all others, at about one open file each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if size > EAGER_RANKS:  # where torch knows it: connect when there is something to say
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")


def broadcast_buffers(model: nn.Module, world: World) -> None:
    """Give all ranks rank 0's buffers (BatchNorm's running statistics), so that all evaluate one model."""
    if world.size > 1:
        import torch.distributed as dist

        for buffer in model.buffers():
            dist.broadcast(buffer, src=0)


def all_sum(values: Tensor, world: World) -> Tensor:
    """The sum over all ranks, in place."""
    if world.size > 1:
        import torch.distributed as dist

        dist.all_reduce(values)
    return values


def all_gather(values: Tensor, world: World) -> list[Tensor]:
    """[rank 0's tensor, rank 1's, ...] on all ranks, on this rank's device; their shapes and dtypes may differ."""
    if world.size == 1:
        return [values]
    import torch
    import torch.distributed as dist

    own = values.detach().contiguous().flatten().view(torch.uint8)
    told = share_from_main(gather([str(values.dtype), list(values.shape), len(own)], world), world)
    padded = own.new_zeros(max(size for *_, size in told))
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in told]
    dist.all_gather(parts, padded)
    dtypes = [getattr(torch, name.removeprefix("torch.")) for name, *_ in told]
    return [part[:size].view(dtype).view(shape) for part, dtype, (_, shape, size) in zip(parts, dtypes, told)]


def all_max(values: list[int], world: World) -> Callable[[], list[int]]:
    """Begin to find the greatest of all ranks' values, one by one, on the CPU -> a function that waits for them."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(values, dtype=torch.int64)
    work = dist.all_reduce(shared, op=dist.ReduceOp.MAX, async_op=True)

    def result() -> list[int]:
        work.wait()
        return to_host(shared)

    return result


def any_rank(answer: bool, world: World) -> bool:
    """Whether it is true on any rank."""
    return bool(all_max([int(answer)], world)()[0]) if world.size > 1 else answer


def to_host(values: Tensor) -> Any:
    """A number, or a list of them. Where a run waits for its device: the watch knows who stands here (a collective that
    another rank does not come to keeps the device waiting, not the call that began it)."""
    return values.tolist()


def meet(world: World) -> None:
    """Wait until all ranks are here."""
    if world.size > 1:
        all_max([0], world)()


def dead_peers(world: World) -> Callable[[], list[int]]:
    """A function that names the ranks on this machine whose processes are gone. All ranks call this together."""
    import socket

    places = share_from_main(gather((socket.gethostname(), os.getpid()), world), world)
    pids = {rank: pid for rank, (host, pid) in enumerate(places) if host == socket.gethostname()}
    return lambda: [rank for rank, pid in pids.items() if _gone(pid)]


def _gone(pid: int) -> bool:
    """No process, or one that has ended and waits for its parent to notice."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return os.path.isdir("/proc/self")  # without /proc there is no telling


def gather(value: Any, world: World) -> list[Any]:
    """[value of rank 0, value of rank 1, ...] on rank 0, [] elsewhere. Values are small, of the types of wire.py."""
    if world.size == 1:
        return [value]
    import torch
    import torch.distributed as dist

    own = _bytes(wire.encode(value))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(sizes, torch.tensor([len(own)]))
    padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(world.size)] if world.is_main else None
    dist.gather(padded, parts, dst=0)
    return [wire.decode(part[: int(size)].numpy().tobytes()) for part, size in zip(parts or [], sizes)]


def share_from_main(value: Any, world: World) -> Any:
    """Rank 0's value, of the types of engine.ranks.wire, on all ranks."""
    if world.size == 1:
        return value
    import torch
    import torch.distributed as dist

    data = _bytes(wire.encode(value)) if world.is_main else None
    size = torch.tensor([0 if data is None else len(data)])
    dist.broadcast(size, src=0)
    data = torch.empty(int(size), dtype=torch.uint8) if data is None else data
    dist.broadcast(data, src=0)
    return wire.decode(data.numpy().tobytes())


def _bytes(data: bytes) -> Tensor:
    import torch

    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
