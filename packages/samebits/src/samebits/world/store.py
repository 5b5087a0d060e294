"""The store of the rendezvous, through which ranks find each other and exchange messages. Does not import torch.

It is a TCPStore at MASTER_ADDR:MASTER_PORT or, for ranks that `launch.py` started on one machine, a FileStore
(LAB_STORE), which does not need a port that another job could use."""

from __future__ import annotations

import errno
import os
from collections.abc import Mapping
from datetime import timedelta
from typing import Any

from samebits.errors import ConfigError
from samebits.world.cluster import cluster_role, listener

START_TIMEOUT_S = 600.0  # maximum seconds between the starts of a run's processes
_stores: dict[str, Any] = {}


def store() -> Any:
    """Return the store for the rendezvous of the ranks. It is created once per process; rank 0, or host 0, hosts it."""
    if "store" not in _stores:
        here = cluster_role()
        _stores["store"] = connect(os.environ, holds=here is not None and here.index == 0)
    return _stores["store"]


def connect(env: Mapping[str, str], holds: bool = False) -> Any:
    """Return a new connection to the store of the rank with these variables.

    holds: this process hosts the store, unless torchrun's agent does. Raise ConfigError if the connection fails, after
    START_TIMEOUT_S if no process hosts the store.
    """
    import torch.distributed as dist

    if "LAB_STORE" in env:
        return dist.FileStore(env["LAB_STORE"], int(env["WORLD_SIZE"]))
    here = cluster_role(env)
    assert here is not None
    try:
        if "TORCHELASTIC_RUN_ID" in env:  # torchrun's agent hosts the store
            return of_this_attempt(next(dist.rendezvous("env://"))[0])
        # not dist.rendezvous, in which rank 0 would wait for the others, which wait for its directory
        wait = timedelta(seconds=START_TIMEOUT_S)
        own = listener(here) if holds else None
        fd = own.detach() if own else None  # the store owns the socket now
        return dist.TCPStore(here.address, here.port, None, holds, wait, False, master_listen_fd=fd)
    except (dist.DistError, ValueError, OSError) as error:
        why = str(error).partition("\n")[0]
        if isinstance(error, OSError) and error.errno == errno.EADDRINUSE:
            why = "another program uses this port; give all ranks another MASTER_PORT"
        raise ConfigError(
            f"MASTER_ADDR={here.address} MASTER_PORT={here.port}: the ranks cannot connect: {why}"
        ) from None


def forget_store() -> None:
    """Close this process's store, before it becomes the parent of ranks, which connect themselves."""
    _stores.clear()


def of_this_attempt(store: Any) -> Any:
    """Return the store with the restart count as a prefix, because torchrun's agent keeps its contents over restarts.

    All ranks have the same restart count only on one machine; several machines need
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1."""
    import torch.distributed as dist

    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    return dist.PrefixStore(f"attempt_{attempt}", store) if os.environ.get("GROUP_WORLD_SIZE") == "1" else store
