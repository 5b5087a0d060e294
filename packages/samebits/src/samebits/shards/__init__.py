"""Weights that are cut over ranks, and whether ranks hold the same. (Importing it imports no torch.)

Given: plain tensors or DTensors, a model, a `World`. Returned: this rank's part of each; tensors that are the same on
all ranks.

Promised: a shard is read as the part of a weight that it is (`local_parts`, `is_part`), without DTensor's dispatch; a
norm or a product over shards is that of the whole, with the same bits on all ranks. With one rank, nothing of another
is touched.

Raised: RunFailed where ranks do not hold the same, and for optimizers that cannot update shards.

    tensors    sharded tensors
    replicas   whether all ranks hold the same
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.shards.replicas import Replicas, checksum, numbers_in
    from samebits.shards.tensors import global_dot, global_norm, is_part, is_sharded, local_parts, on_shards
else:
    __getattr__ = lazy_getattr(__name__, __file__)
