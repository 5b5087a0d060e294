"""Parallel training strategies: distribute the work and the weights of a model over ranks.

Input: the strategy (config group `trainer`), a `World` and a model. Output: the model, wrapped or sharded.

Guarantees: ranks get equal shares of each batch, and decide by reduced values, so that all decide the same. A sharded
model can be read with samebits.shards. With one rank, no collective is called. Importing this package does not import
torch.

Errors: ConfigError for options that do not fit the model or the hardware.

    ddp, fsdp, data_parallel    the strategies
    blocks                      find blocks of a model, which are sharded or recomputed as units
    meta_init                   build a model on the device `meta`, without memory for its weights
    balance                     find stragglers, and measure peak memory
    options                     options of the config group `trainer`
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.parallel.balance import RankTiming as RankTiming, peak_memory as peak_memory
    from samebits.parallel.blocks import checkpoint_activations as checkpoint_activations, find_blocks as find_blocks
    from samebits.parallel.data_parallel import gpus as gpus
    from samebits.parallel.ddp import (
        name_unused as name_unused,
        with_sync_batchnorm as with_sync_batchnorm,
        without_sync as without_sync,
        wrap_net as wrap_net,
    )
    from samebits.parallel.fsdp import (
        check_torch as check_torch,
        class_name as class_name,
        describe_shards as describe_shards,
        padding_note as padding_note,
        shard as shard,
    )
    from samebits.parallel.meta_init import NeedsValues as NeedsValues, build_on_meta as build_on_meta
    from samebits.parallel.options import (
        ONE_PROCESS as ONE_PROCESS,
        DDPConfig as DDPConfig,
        FsdpConfig as FsdpConfig,
        Strategy as Strategy,
        check_share as check_share,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
