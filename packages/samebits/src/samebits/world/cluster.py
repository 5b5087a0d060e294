"""Find the role of this process from environment variables: a plain process, one of several ranks, or of several hosts.

| started by                                        | variables                                     | role        |
|---------------------------------------------------|-----------------------------------------------|-------------|
| the plain command, also within salloc or sbatch   | none, or SLURM's without a step of 2 tasks    | None        |
| torchrun, or launch.py                            | RANK and LOCAL_RANK                           | "rank"      |
| srun, several tasks on a node                     | SLURM_PROCID of a step                        | "rank"      |
| srun, one task on each of several nodes           | SLURM_PROCID of a step                        | "host"      |
| a pod of a PyTorchJob (its RANK counts pods)      | RANK without LOCAL_RANK, MASTER_ADDR          | "host"      |
| a pod of a TrainJob                               | PET_NODE_RANK, PET_NNODES, PET_MASTER_ADDR    | "host"      |

A "rank" trains. A "host" starts hardware.num_procs ranks on its machine, as the plain command does. This module does
not import torch."""

from __future__ import annotations

import errno
import os
import re
import socket
import struct
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from ipaddress import ip_address

from samebits.errors import ConfigError

SPECIAL_STEPS = 0xFFFFFF00  # larger step numbers are SLURM's special steps: the batch script, an interactive step, ...
SIOCGIFADDR = 0x8915  # Linux: an interface's IPv4 address
RANK_VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # set by torchrun
MPI_VARIABLES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "PMIX_RANK")
IPV6_ADDRESSES = "/proc/net/if_inet6"  # Linux: one line per address: 32 hex digits, ..., name of the interface
PORTS = (15_000, 15_000)  # (first, count): below Linux's ephemeral ports (from 32,768)


@dataclass(frozen=True)
class ClusterRole:
    """The role of this process in a run with several processes.

    kind "rank": this is rank `index` of `count`, and `local_index` of `local_count` on its machine. kind "host": this
    is host `index` of `count`; local_count: number of ranks to start, None: hardware.num_procs. address, port: of
    global rank 0 or of torchrun."""

    kind: str
    index: int
    count: int
    address: str
    port: int
    local_index: int = 0
    local_count: int | None = None


def cluster_role(env: Mapping[str, str] | None = None) -> ClusterRole | None:
    """Return the role of this process; None for a plain process. Raise ConfigError for missing or conflicting
    variables."""
    env = os.environ if env is None else env
    for read in (_torchrun, _slurm_step, _train_job, _pytorch_job):
        found = read(env)
        if found is not None:
            if not 0 <= found.index < found.count:
                raise ConfigError(
                    f"the environment variables describe {found.kind} {found.index} of {found.count}, which is invalid"
                )
            return found if found.kind == "rank" or found.count > 1 else None
    for name in MPI_VARIABLES if "SLURM_JOB_ID" not in env else ():  # srun --mpi sets them as well
        if env.get(name, "1") != "1" or (name == "PMIX_RANK" and name in env):
            raise ConfigError(
                f"{name}={env[name]}: mpirun has started several processes, and each would start a separate run - "
                f"use torchrun or srun, or unset {name} if you want separate runs"
            )
    return None


def become_rank() -> None:
    """Set torchrun's variables from SLURM's, because torch and other libraries read them. Call it before importing
    torch."""
    here = cluster_role()
    for argument in sys.argv[1:]:  # added by python -m torch.distributed.launch
        name, _, value = argument.partition("=")
        if name in ("--local-rank", "--local_rank") and value == os.environ.get("LOCAL_RANK"):
            sys.argv.remove(argument)
    if here is not None:
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # its warnings are long and repeat the exceptions
    if here is not None and here.kind == "rank" and "LOCAL_RANK" not in os.environ:
        assert here.local_count is not None
        os.environ |= rank_variables(here.index, here.count, here.local_index, here.local_count)
        os.environ |= {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port)}


def rank_variables(index: int, count: int, local_index: int, local_count: int) -> dict[str, str]:
    """Return torchrun's variables for rank `index` of `count`, which is `local_index` of `local_count` on its
    machine."""
    values = {"RANK": index, "WORLD_SIZE": count, "LOCAL_RANK": local_index, "LOCAL_WORLD_SIZE": local_count}
    return {name: str(value) for name, value in values.items()}


def _torchrun(env: Mapping[str, str]) -> ClusterRole | None:
    if "LOCAL_RANK" not in env:
        return None
    if missing := [name for name in ("RANK", "WORLD_SIZE") if not env.get(name)]:
        raise ConfigError(
            f"LOCAL_RANK={env['LOCAL_RANK']}: set for a rank of torchrun, but {missing[0]} is not "
            "set - unset LOCAL_RANK for a plain run"
        )
    index, count = _number(env, "RANK"), _number(env, "WORLD_SIZE")
    if count > 1 and "LAB_STORE" not in env:  # ranks of launch.py use a FileStore
        for name in ("MASTER_ADDR", "MASTER_PORT"):
            _text(env, name)
    address, port = env.get("MASTER_ADDR", ""), _port(env, "MASTER_PORT", 0)
    local = _number(env, "LOCAL_RANK"), _number(env, "LOCAL_WORLD_SIZE", 1)
    return ClusterRole("rank", index, count, address, port, *local)


def _train_job(env: Mapping[str, str]) -> ClusterRole | None:
    """Return the role in a pod of Kubeflow Trainer v2, which sets torchrun's arguments (PET_*) and leaves starting the
    ranks to the pod."""
    if "PET_NNODES" not in env or "RANK" in env:
        return None
    if not env["PET_NNODES"].isdecimal():
        raise ConfigError(f"PET_NNODES={env['PET_NNODES']}: an elastic number of pods needs torchrun in the pod")
    if env["PET_NNODES"] == "1":
        return None
    index, count = _number(env, "PET_NODE_RANK"), _number(env, "PET_NNODES")
    port = _port(env, "PET_MASTER_PORT", 29_500)
    return ClusterRole("host", index, count, _text(env, "PET_MASTER_ADDR"), port, local_count=_ranks_of_pod(env))


def _pytorch_job(env: Mapping[str, str]) -> ClusterRole | None:
    """Return the role in a pod of a PyTorchJob. RANK counts pods, but WORLD_SIZE counts ranks: pods times nprocPerNode,
    if that is a number."""
    if "RANK" not in env or "WORLD_SIZE" not in env:
        return None
    index, ranks, each = _number(env, "RANK"), _number(env, "WORLD_SIZE"), _ranks_of_pod(env)
    if ranks == 1:
        return None
    count, left = divmod(ranks, each or 1)
    if left:
        raise ConfigError(f"WORLD_SIZE={ranks} is not a multiple of PET_NPROC_PER_NODE={each}")
    return ClusterRole("host", index, count, _text(env, "MASTER_ADDR"), _port(env, "MASTER_PORT", 29_500), 0, each)


def _ranks_of_pod(env: Mapping[str, str]) -> int | None:
    text = env.get("PET_NPROC_PER_NODE", "")
    return int(text) if text.isdecimal() else None  # auto, gpu or cpu: use hardware.num_procs


def _slurm_step(env: Mapping[str, str]) -> ClusterRole | None:
    """Return the role of a task of an srun step with several tasks: a rank or a host. The script of sbatch and the
    shell of salloc also have the allocation's variables, but are plain processes."""
    if _number(env, "SLURM_STEP_ID", SPECIAL_STEPS) >= SPECIAL_STEPS or "SLURM_PROCID" not in env:
        return None
    index, count = _number(env, "SLURM_PROCID"), _number(env, "SLURM_STEP_NUM_TASKS")
    if count == 1:
        return None
    tasks = tasks_per_node(_text(env, "SLURM_STEP_TASKS_PER_NODE"))
    address = env.get("MASTER_ADDR") or first_host(_text(env, "SLURM_STEP_NODELIST"))
    # all tasks compute the same port; other jobs and steps compute other ports
    derived = PORTS[0] + (31 * _number(env, "SLURM_JOB_ID") + _number(env, "SLURM_STEP_ID")) % PORTS[1]
    port = _port(env, "MASTER_PORT", derived)
    if max(tasks) == 1:
        return ClusterRole("host", index, count, address, port)
    local = _number(env, "SLURM_LOCALID"), tasks[_number(env, "SLURM_NODEID")]
    return ClusterRole("rank", index, count, address, port, *local)


def first_host(nodes: str) -> str:
    """Return the first host of a SLURM node list: gpu[07-09,12],login1 -> gpu07."""
    return re.sub(r"\[([^],-]+)[^]]*\]", r"\1", re.split(r",(?![^[]*\])", nodes)[0])


def tasks_per_node(text: str) -> list[int]:
    """Expand SLURM's number of tasks per node: 2(x3),1 -> [2, 2, 2, 1]."""
    parts = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(tasks) for tasks, times in parts for _ in range(int(times or 1))]


def gpu_index(local_index: int, visible: int) -> int:
    """Return the index of a rank's GPU among the `visible` ones: its local rank, or 0 if srun --gpus-per-task shows
    only one. Raise ConfigError if there are too few GPUs."""
    if local_index < visible:
        return local_index
    if visible == 1 and "SLURM_STEP_ID" in os.environ:
        return 0
    raise ConfigError(
        f"rank {local_index} of this machine has no GPU: {visible} are visible for all ranks of this machine"
    )


def interface_towards(address: str) -> str | None:
    """Return the network interface that routes to `address`, e.g. eth0; None if unknown.

    By default gloo uses the address that the host name resolves to, which is 127.0.1.1 on many Debian machines.
    """
    if not sys.platform.startswith("linux"):
        return None
    with suppress(OSError, UnicodeError):
        for family, *_, target in socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM):
            with socket.socket(family, socket.SOCK_DGRAM) as probe, suppress(OSError):
                probe.connect(target)  # UDP connect sends nothing, it only looks up the route
                own = probe.getsockname()[0].partition("%")[0]
                name = _interface_of_ipv6(own) if family == socket.AF_INET6 else _interface_of_ipv4(own, probe)
                if name is not None:
                    return name
    return None


def _interface_of_ipv4(own: str, probe: socket.socket) -> str | None:
    import fcntl

    packed = socket.inet_aton(own)
    for _, name in socket.if_nameindex():
        with suppress(OSError):  # an interface without an IPv4 address
            request = struct.pack("256s", name.encode()[:15])
            if fcntl.ioctl(probe.fileno(), SIOCGIFADDR, request)[20:24] == packed and packed[0] != 127:
                return name
    return None


def _interface_of_ipv6(own: str) -> str | None:
    packed = socket.inet_pton(socket.AF_INET6, own)
    if packed[:12] == bytes(10) + b"\xff\xff":  # ::ffff:10.0.0.1, an IPv4-mapped address
        return None
    with open(IPV6_ADDRESSES) as file:
        for line in file:
            digits, *_, name = line.split()
            if bytes.fromhex(digits) == packed and name != "lo":
                return name
    return None


def listener(here: ClusterRole) -> socket.socket | None:
    """Return a socket that listens only on rank 0's address, not on all interfaces.

    None: this machine does not have that address (a service, or NAT), or its host name resolves to loopback here and to
    another address elsewhere.
    """
    alone = here.kind == "rank" and here.local_count == here.count
    try:
        known = socket.getaddrinfo(here.address, here.port, type=socket.SOCK_STREAM)
    except socket.gaierror:  # the name of a service may resolve only after its pods have started
        return None
    for family, _, _, _, address in known:
        host = str(address[0])
        loopback = ip_address(host.partition("%")[0]).is_loopback
        if loopback and not alone and here.address != host:
            continue
        found = socket.socket(family, socket.SOCK_STREAM)
        try:
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(address)
            found.listen(2048)
        except OSError as error:
            found.close()
            if error.errno != errno.EADDRNOTAVAIL:
                raise
        else:
            return found
    return None


def _text(env: Mapping[str, str], name: str) -> str:
    if not env.get(name):
        ranks = ", ".join(f"{known}={env[known]}" for known in RANK_VARIABLES if known in env)
        plain = f" - for a plain run unset {ranks}" if ranks else ""
        raise ConfigError(
            f"{name}: is not set, but this is one of several processes, which need it to connect; set it{plain}"
        )
    return env[name]


def _number(env: Mapping[str, str], name: str, default: int | None = None) -> int:
    text = env.get(name, "") or (_text(env, name) if default is None else str(default))
    if not text.isdecimal():
        raise ConfigError(f"{name}={text}: must be a number")
    return int(text)


def _port(env: Mapping[str, str], name: str, default: int) -> int:
    port = _number(env, name, default)
    if env.get(name) and not 0 < port < 1 << 16:
        raise ConfigError(f"{name}={port}: must be a port, from 1 to 65535")
    return port
