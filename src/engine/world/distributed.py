"""The process group: this process's rank, the store (rendezvous), and collectives. Importing this imports no torch.
(ddp.py, fsdp.py and shards.py have the strategies' own collectives.)

A process is a rank when RANK, WORLD_SIZE and LOCAL_RANK are in its environment: torchrun or `launch.py` put them there,
or `cluster.become_rank` after srun. The store for the rendezvous is a TCPStore at MASTER_ADDR:MASTER_PORT or, for ranks
that `launch.py` started on one machine, a FileStore (LAB_STORE), which needs no port that another job could take.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError, RunFailed
from engine.host import count_gpus, process_state
from engine.world import wire
from engine.world.cluster import cluster_role, gpu_index, interface_towards, listener, rank_variables

if TYPE_CHECKING:
    import torch
    from torch import Tensor, nn

EAGER_RANKS = 32  # with more ranks, gloo connects each pair at its first message, not at the start
MOST_FILES = 1 << 16  # limit on a rank's open files
START_TIMEOUT_S = 600.0  # most seconds between the starts of a run's processes
_stores: dict[str, Any] = {}
_groups: dict[str, Any] = {}
_never_freed: list[Any] = []


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
    """Whether all three are set. `cluster_role` refuses some of them alone (left over in a shell), or ignores them."""
    return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()


def own_rank() -> int:
    return int(os.environ["RANK"]) if is_rank() else 0


def started_ranks() -> int | None:
    """World size, where this process was started as a rank (launch.py, torchrun, a scheduler); None: it is no rank."""
    return int(os.environ["WORLD_SIZE"]) if is_rank() else None


def local_rank() -> int:
    """Which of the ranks on this machine this is."""
    return int(os.environ["LOCAL_RANK"]) if is_rank() else 0


def own_gpu() -> int:
    """Index of this rank's GPU among the visible ones."""
    return gpu_index(local_rank(), count_gpus())


def own_device(kind: str) -> torch.device:
    """This process's. kind: cpu, cuda or mps. Of cuda with its index, which some of torch.cuda's functions want."""
    import torch

    return torch.device(kind, own_gpu()) if kind == "cuda" else torch.device(kind)


def has_parent() -> bool:
    """Whether `launch.py` started this process: then its parent prints failures."""
    return "LAB_PARENT" in os.environ


def local_ranks() -> int:
    """How many ranks share this machine."""
    return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if is_rank() else 1


def num_hosts() -> int:
    """Number of hosts whose host process starts ranks of this run; 1 for a plain process or a rank."""
    here = cluster_role()
    return here.count if here is not None and here.kind == "host" else 1


def first_rank(local_size: int) -> int:
    """Global rank of the first of the `local_size` ranks that this process starts."""
    here = cluster_role()
    return here.index * local_size if here is not None and here.kind == "host" else 0


def rank_environment(local_rank: int, local_size: int, store_file: str) -> dict[str, str]:
    """Environment variables of one of the `local_size` ranks of this machine; with a single host, a FileStore."""
    here = cluster_role()
    if here is None or here.kind == "rank":
        return rank_variables(local_rank, local_size, local_rank, local_size) | {"LAB_STORE": store_file}
    index, count = first_rank(local_size) + local_rank, here.count * local_size
    meeting = {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port), "LAB_HOSTS": str(here.count)}
    return rank_variables(index, count, local_rank, local_size) | meeting


def store() -> Any:
    """The store for the rendezvous of the ranks, made once per process. Rank 0, or host 0, holds it."""
    if "store" not in _stores:
        here = cluster_role()
        _stores["store"] = connect(os.environ, holds=here is not None and here.index == 0)
    return _stores["store"]


def connect(env: Mapping[str, str], holds: bool = False) -> Any:
    """A new connection to the store of the rank with these variables. holds: this process holds it, unless torchrun's
    agent does. Raises ConfigError, after START_TIMEOUT_S if nobody holds it."""
    import torch.distributed as dist

    if "LAB_STORE" in env:
        return dist.FileStore(env["LAB_STORE"], int(env["WORLD_SIZE"]))
    here = cluster_role(env)
    assert here is not None
    try:
        if "TORCHELASTIC_RUN_ID" in env:  # torchrun's agent holds the store
            return of_this_attempt(next(dist.rendezvous("env://"))[0])
        # not dist.rendezvous: rank 0 would wait for the others, which wait for its directory
        wait = timedelta(seconds=START_TIMEOUT_S)
        own = listener(here) if holds else None
        fd = own.detach() if own else None  # the store owns the socket from here on
        return dist.TCPStore(here.address, here.port, None, holds, wait, False, master_listen_fd=fd)
    except (dist.DistError, ValueError, OSError) as error:
        why = str(error).partition("\n")[0]
        raise ConfigError(
            f"MASTER_ADDR={here.address} MASTER_PORT={here.port}: the ranks cannot meet there: {why}"
        ) from None


def forget_store() -> None:
    """Drop this process's store: it becomes the parent of ranks, which connect by themselves."""
    _stores.clear()


def of_this_attempt(store: Any) -> Any:
    """The store, prefixed by the restart count: torchrun's agent keeps it over restarts, old addresses included.
    Only on one machine do all ranks see the same restart count; several need TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."""
    import torch.distributed as dist

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt_{attempt}", store) if os.environ.get("GROUP_WORLD_SIZE") == "1" else store


@contextmanager
def process_group(device_type: str, timeout_s: float) -> Iterator[World]:
    """This process's rank, world size and device. Several ranks form a process group for the length of the block.

    device_type: cpu, cuda or mps. timeout_s: longest wait of a collective for the other ranks.
    """
    import torch

    size = started_ranks() or 1
    device = own_device(device_type)
    if device.type == "cuda":
        torch.cuda.set_device(device)
    world = World(own_rank(), size, local_rank(), device)
    if size == 1:
        yield world
        return

    import torch.distributed as dist

    if size > local_ranks():
        choose_interface(os.environ["MASTER_ADDR"])
    allow_connections(size)
    group_store, timeout = dist.PrefixStore("group", store()), timedelta(seconds=timeout_s)
    dist.init_process_group(backend(device.type), store=group_store, rank=own_rank(), world_size=size, timeout=timeout)
    yield world
    # not in a finally: after an exception other ranks may be stuck, and NCCL would wait for them
    meet(world)  # rank 0 has more to do at the end, and the launcher would take a rank that leaves first for lost
    _groups.clear()
    dist.destroy_process_group()


def backend(device_type: str) -> str:
    """gloo beside nccl: host tensors (random states, flags) are exchanged without touching the GPU."""
    return "cpu:gloo,cuda:nccl" if device_type == "cuda" else "gloo"


@contextmanager
def group_of_one(world: World) -> Iterator[None]:
    """In this block one process can play a rank of `world` with trainer=ddp: DDP has its buckets, in a group of this
    process alone, and there is no other rank to wait for."""
    if world.size == 1:
        yield
        return
    import torch.distributed as dist

    dist.init_process_group(backend(world.device.type), store=dist.HashStore(), rank=0, world_size=1)
    # gloo's group is freed with the GIL held, waits for its threads, and one that still frees what belonged to a
    # finished collective waits for the GIL: so it is not freed before the process ends, which it does soon
    _never_freed.append(dist.group.WORLD)
    try:
        yield
    finally:
        dist.destroy_process_group()


def ranks_here(num_procs: int) -> int:
    """How many of the run's `num_procs` ranks share this machine."""
    return num_procs // num_hosts() if started_ranks() is None else local_ranks()


def choose_interface(address: str) -> None:
    """Make gloo and NCCL use the network interface that routes to rank 0, unless the user has named one."""
    if "GLOO_SOCKET_IFNAME" not in os.environ and (interface := interface_towards(address)):
        os.environ["GLOO_SOCKET_IFNAME"] = interface
        os.environ.setdefault("NCCL_SOCKET_IFNAME", f"={interface}")  # without "=": a prefix of names


def allow_connections(size: int) -> None:
    """Raise the limit on open files: gloo connects each of `size` ranks with all others, about one file each."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = MOST_FILES if hard == resource.RLIM_INFINITY else min(hard, MOST_FILES)
    if soft != resource.RLIM_INFINITY and soft < most:
        with suppress(OSError, ValueError):  # macOS has a lower limit of its own
            resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if size > EAGER_RANKS:  # in versions of torch that know it: connect at the first message
        os.environ.setdefault("TORCH_GLOO_LAZY_INIT", "1")


def broadcast_buffers(model: nn.Module, world: World) -> None:
    """Give all ranks rank 0's buffers (BatchNorm's running statistics), so that all evaluate one model."""
    if world.size > 1:
        broadcast_together([buffer.detach() for buffer in model.buffers()])


def broadcast_together(tensors: list[Tensor]) -> None:
    """Give all ranks rank 0's values, in place: one message of bytes, whatever the dtypes."""
    import torch
    import torch.distributed as dist

    if not tensors:
        return
    sent = torch.cat([tensor.contiguous().view(-1).view(torch.uint8) for tensor in tensors])
    dist.broadcast(sent, src=0)
    if dist.get_rank():
        for tensor, part in zip(tensors, sent.split([tensor.nbytes for tensor in tensors])):
            tensor.copy_(part.clone().view(tensor.dtype).view(tensor.shape))  # a clone is aligned for any dtype


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


def gather_rows(own: Tensor) -> tuple[Tensor, int]:
    """(B, ...) of each rank -> ((N, ...) of all ranks, in their order; the row where its own begin).

    With gradients: in the backward pass a rank's rows get what the losses of all ranks say of them. All ranks call
    this, with equally many rows; with one rank it is the identity. For losses of a task that is `across_samples`.
    """
    import torch
    import torch.distributed as dist

    if not (dist.is_available() and dist.is_initialized()):
        return own, 0
    count, rank = len(own), dist.get_rank()
    if own.is_meta:  # while FLOP are counted: shapes alone
        return own.repeat(dist.get_world_size(), *[1] * (own.dim() - 1)), rank * count
    most = torch.tensor([count, -count])
    dist.all_reduce(most, op=dist.ReduceOp.MAX)  # on the host, which does not wait for a GPU
    if (counts := to_host(most)) != [count, -count]:
        raise RunFailed(f"rank {rank} gathers {count} rows, others {-counts[1]} to {counts[0]}: all must have as many")

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


def all_max(values: list[int], world: World) -> Callable[[], list[int]]:
    """Start an elementwise all-reduce MAX on the CPU; returns a function that waits for it and returns the maxima."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(values, dtype=torch.int64)
    work = dist.all_reduce(shared, op=dist.ReduceOp.MAX, async_op=True)

    def result() -> list[int]:
        work.wait()
        return to_host(shared)

    return result


def broadcast_from_main(values: list[int], world: World) -> Callable[[], list[int]]:
    """Start a broadcast of rank 0's values on the CPU; returns a function that waits for them."""
    import torch
    import torch.distributed as dist

    shared = torch.tensor(values, dtype=torch.int64)
    work = dist.broadcast(shared, src=0, async_op=True)

    def result() -> list[int]:
        work.wait()
        return to_host(shared)

    return result


def note(key: str) -> None:
    """Leave a mark that any rank can see, in the store of the rendezvous."""
    store().set(key, "1")


def is_noted(key: str) -> bool:
    return bool(store().check([key]))


def any_rank(answer: bool, world: World) -> bool:
    """Whether `answer` is true on any rank (all-reduce)."""
    return bool(all_max([int(answer)], world)()[0]) if world.size > 1 else answer


def to_host(values: Tensor) -> Any:
    """The values as a number or (nested) list. Device syncs go through here, so the watchdog recognizes a waiting rank:
    an NCCL collective that another rank does not join blocks here, not in the call that launched it."""
    return values.tolist()


def on_host(values: Tensor) -> Tensor:
    """The tensor on the CPU; as `to_host`."""
    return values.cpu()


def meet(world: World) -> None:
    """Barrier: wait until all ranks are here."""
    if world.size > 1:
        all_max([0], world)()


def dead_peers(world: World) -> Callable[[], list[int]]:
    """Returns a function that lists the ranks on this machine whose processes have died. All ranks call dead_peers."""
    import socket

    places = share_from_main(gather((socket.gethostname(), os.getpid()), world), world)
    pids = {rank: pid for rank, (host, pid) in enumerate(places) if host == socket.gethostname()}
    # "" where there is none; a zombie or a dead one; without /proc nothing is known: not gone
    return lambda: [rank for rank, pid in pids.items() if process_state(pid) in ("", "Z", "X")]


def group_for_threads(world: World) -> Any:
    """A gloo group of all ranks for collectives in a thread beside the loop: on the loop's own group the two would mix
    in another order on each rank, and wait for ever. All ranks call this; made once. None with one rank."""
    if "threads" not in _groups and world.size > 1:
        import torch.distributed as dist

        _groups["threads"] = dist.new_group(backend="gloo")
    return _groups.get("threads")


def gather(value: Any, world: World, group: Any = None) -> list[Any]:
    """[value of rank 0, value of rank 1, ...] on rank 0, [] elsewhere. Values are small, of the types of wire.py."""
    if world.size == 1:
        return [value]
    import torch
    import torch.distributed as dist

    own = _bytes(wire.encode(value))
    sizes = [torch.zeros(1, dtype=torch.int64) for _ in range(world.size)]
    dist.all_gather(sizes, torch.tensor([len(own)]), group=group)
    padded = torch.zeros(int(max(sizes)), dtype=torch.uint8)
    padded[: len(own)] = own
    parts = [torch.empty_like(padded) for _ in range(world.size)] if world.is_main else None
    dist.gather(padded, parts, dst=0, group=group)
    return [wire.decode(part[: int(size)].numpy().tobytes()) for part, size in zip(parts or [], sizes)]


def share_from_main(value: Any, world: World) -> Any:
    """Broadcast rank 0's value, of the types of wire.py, to all ranks."""
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
