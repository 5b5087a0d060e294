"""The rank of this process, from environment variables. Importing this module does not import torch.

A process is a rank if RANK, WORLD_SIZE and LOCAL_RANK are set: by torchrun, by `launch.py`, or by `cluster.become_rank`
after srun.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from samebits.errors import ConfigError
from samebits.host import count_gpus
from samebits.world.cluster import cluster_role, gpu_index, rank_variables

if TYPE_CHECKING:
    import torch


class DistEnv:
    """The rank's environment variables. They are read at each use, because they may be set while the process runs."""

    @property
    def is_rank(self) -> bool:
        """Return True if all three variables are set. `cluster_role` handles incomplete ones, e.g. left over in a
        shell."""
        return {"RANK", "WORLD_SIZE", "LOCAL_RANK"} <= os.environ.keys()

    @property
    def rank(self) -> int:
        """Return the global rank; 0 for a plain process."""
        return int(os.environ["RANK"]) if self.is_rank else 0

    @property
    def size(self) -> int | None:
        """Return the world size if this process was started as a rank (launch.py, torchrun, a scheduler), otherwise
        None."""
        return int(os.environ["WORLD_SIZE"]) if self.is_rank else None

    @property
    def local_rank(self) -> int:
        """Return the index of this rank among the ranks on this machine."""
        return int(os.environ["LOCAL_RANK"]) if self.is_rank else 0

    @property
    def local_size(self) -> int:
        """Return the number of ranks on this machine."""
        return int(os.environ.get("LOCAL_WORLD_SIZE", "1")) if self.is_rank else 1

    @property
    def hosts(self) -> int:
        """Return the number of hosts whose host process starts ranks of this run; 1 for a plain process or a rank."""
        here = cluster_role()
        return here.count if here is not None and here.kind == "host" else 1

    @property
    def has_parent(self) -> bool:
        """Return True if `launch.py` started this process; then its parent prints failures."""
        return "LAB_PARENT" in os.environ

    def ranks_here(self, num_procs: int) -> int:
        """Return how many of the run's `num_procs` ranks are on this machine."""
        return num_procs // self.hosts if self.size is None else self.local_size

    def gpu(self) -> int:
        """Return the index of this rank's GPU among the visible ones."""
        return gpu_index(self.local_rank, count_gpus())

    def device(self, kind: str) -> torch.device:
        """Return this process's device. kind: cpu, cuda or mps. A cuda device has its index, which some functions of
        torch.cuda require."""
        import torch

        return torch.device(kind, self.gpu()) if kind == "cuda" else torch.device(kind)


dist_env = DistEnv()


def check_no_rank(command: str, remedy: str = "") -> None:
    """Raise ConfigError if this process is a rank, or its shell has the variables of one. command: what cannot be one;
    remedy: how to get several processes."""
    if dist_env.is_rank:
        raise ConfigError(
            f"{command} - run it without torchrun or srun{remedy}; if this shell has their variables, type: unset RANK "
            "WORLD_SIZE LOCAL_RANK"
        )


def first_rank(local_size: int) -> int:
    """Return the global rank of the first of the `local_size` ranks that this process starts."""
    here = cluster_role()
    return here.index * local_size if here is not None and here.kind == "host" else 0


def rank_environment(local_rank: int, local_size: int, store_file: str) -> dict[str, str]:
    """Return the environment variables of one of the `local_size` ranks of this machine. A single host uses a
    FileStore."""
    here = cluster_role()
    if here is None or here.kind == "rank":
        return rank_variables(local_rank, local_size, local_rank, local_size) | {"LAB_STORE": store_file}
    index, count = first_rank(local_size) + local_rank, here.count * local_size
    meeting = {"MASTER_ADDR": here.address, "MASTER_PORT": str(here.port), "LAB_HOSTS": str(here.count)}
    return rank_variables(index, count, local_rank, local_size) | meeting
