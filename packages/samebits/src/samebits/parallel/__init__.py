"""A model over ranks: how the strategies share its work and its weights. (Importing it imports no torch.)

Given: what the group `trainer` says of the strategy, a `World`, a model. Returned: the model as the strategy wants it.

Promised: ranks get equal shares of each batch and take the same decisions, from reduced values. Weights that a strategy
cuts are those that samebits.shards reads. With one rank, nothing of another is touched.

Raised: ConfigError for options that do not fit the model or the machine.

    ddp, fsdp, data_parallel    the strategies
    blocks                  a model's blocks: what is sharded, or computed again, as one
    weightless              a model that is built without its weights
    balance                 stragglers and peak memory
    options                 values of the group
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.parallel.balance import Balance, peak_memory
    from samebits.parallel.blocks import checkpoint_activations, find_blocks
    from samebits.parallel.data_parallel import gpus
    from samebits.parallel.ddp import name_unused, with_sync_batchnorm, without_sync, wrap_net
    from samebits.parallel.fsdp import class_name, describe_shards, padding_note, shard
    from samebits.parallel.meta_init import NeedsValues, build_on_meta
    from samebits.parallel.options import ONE_PROCESS, DDPConfig, FsdpConfig, Strategy, check_share
else:
    __getattr__ = lazy_getattr(__name__, __file__)
