"""Which of a run's ranks this process is, by its environment variables. Importing this imports no torch.

A process is a rank when RANK, WORLD_SIZE and LOCAL_RANK are set: by torchrun, by `launch.py`, or by
`cluster.become_rank` after srun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from samebits.host import count_gpus
from samebits.world.cluster import cluster_role, gpu_index, rank_variables

if TYPE_CHECKING:
    import torch


class DistEnv:
    """Read anew at each use: the variables are set while a process lives."""

    @property
    def is_rank(self) -> bool:
        """Whether all three are set. `cluster_role` refuses some alone (left over in a shell), or ignores them."""
        return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()

    @property
    def rank(self) -> int:
        return int(os.environ["RANK"]) if self.is_rank else 0

    @property
    def size(self) -> int | None:
        """World size, where this process was started as a rank (launch.py, torchrun, a scheduler); None: it is none."""
        return int(os.environ["WORLD_SIZE"]) if self.is_rank else None

    @property
    def local_rank(self) -> int:
        """Which of the ranks on this machine this is."""
        return int(os.environ["LOCAL_RANK"]) if self.is_rank else 0

    @property
    def local_size(self) -> int:
        """How many ranks share this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.is_rank else 1

    @property
    def hosts(self) -> int:
        """Number of hosts whose host process starts ranks of this run; 1 for a plain process or a rank."""
        here = cluster_role()
        return here.count if here is not None and here.kind == "host" else 1

    @property
    def has_parent(self) -> bool:
        """Whether `launch.py` started this process: then its parent prints failures."""
        return "LAB_PARENT" in os.environ

    def ranks_here(self, num_procs: int) -> int:
        """How many of the run's `num_procs` ranks share this machine."""
        return num_procs // self.hosts if self.size is None else self.local_size

    def gpu(self) -> int:
        """Index of this rank's GPU among the visible ones."""
        return gpu_index(self.local_rank, count_gpus())

    def device(self, kind: str) -> torch.device:
        """This process's. kind: cpu, cuda or mps. Of cuda with its index, which some of torch.cuda's functions want."""
        import torch

        return torch.device(kind, self.gpu()) if kind == "cuda" else torch.device(kind)


dist_env = DistEnv()


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
