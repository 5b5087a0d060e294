"""Weights that are sharded over ranks, and the check that replicas are equal. Importing it does not import torch.

Input: plain tensors or DTensors, a model, a `World`. Output: this rank's part of each tensor; norms and products that
are equal on all ranks.

Guarantees: `local_parts` and `is_dtensor` read shards without DTensor's dispatch. Norms and dot products over shards
are those of the complete tensors, with the same bits on all ranks. With one rank there is no communication.

Errors: RunFailed if values that must be equal on several ranks differ, and for optimizers that cannot update shards.

    tensors    sharded tensors
    replicas   checks that ranks have equal values
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.shards.replicas import ReplicaChecks as ReplicaChecks, checksum as checksum, numbers_in as numbers_in
    from samebits.shards.tensors import (
        empty_like as empty_like,
        global_dot as global_dot,
        global_norm as global_norm,
        is_dtensor as is_dtensor,
        is_sharded as is_sharded,
        local_parts as local_parts,
        on_shards as on_shards,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
