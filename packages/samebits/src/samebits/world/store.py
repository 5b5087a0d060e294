"""The store of the rendezvous, by which ranks find each other and leave notes. Importing this imports no torch.

A TCPStore at MASTER_ADDR:MASTER_PORT or, for ranks that `launch.py` started on one machine, a FileStore (LAB_STORE),
which needs no port that another job could take.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from samebits.errors import ConfigError
from samebits.world.cluster import cluster_role, listener

START_TIMEOUT_S = 600.0  # most seconds between the starts of a run's processes
_stores: dict[str, Any] = {}


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
