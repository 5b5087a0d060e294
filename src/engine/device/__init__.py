"""Models on devices: precision, strategies, memory, what is computed where. (Importing it imports no torch.)

Given: the groups `hardware` and `trainer` (options), a `World`, a model. Returned: `Hardware`, the settings that follow
from the machine, and the model as the strategy wants it.

Promised: ranks get equal shares of each batch and take the same decisions, from reduced values; nothing in a step asks
the device. With one rank, nothing of another is touched.

Raised: ConfigError for options that do not go together or do not fit the machine, RunFailed where ranks do not hold the
same.

    hardware, threads, seed, dynamo     device, precision, batch sizes; settings that follow from the machine
    ddp, fsdp, blocks, data_parallel    the strategies
    skipping                steps that are left out without asking the device
    replicas                whether all ranks hold the same
    balance                 stragglers and peak memory
    options, rules          values of the groups; which go together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.pages import lazy

if TYPE_CHECKING:
    from engine.device.balance import Balance, DeviceClock, HostClock, peak_memory
    from engine.device.blocks import checkpoint_activations, find_blocks
    from engine.device.ddp import name_unused, with_sync_batchnorm, without_sync, wrap_net
    from engine.device.dynamo import CompiledChain, compile_report, compiled, for_evaluation
    from engine.device.fsdp import (
        class_name,
        describe_shards,
        global_dot,
        global_norm,
        is_part,
        is_sharded,
        local_parts,
        on_shards,
        shard,
    )
    from engine.device.hardware import (
        Hardware,
        apply_hardware,
        choose_device,
        count_processes,
        in_channels_last,
        make_autocast,
        make_scaler,
        order_as_weights,
        resolve_hardware,
        update_scale,
    )
    from engine.device.options import ONE_PROCESS, DDPConfig, FsdpConfig, HardwareConfig
    from engine.device.precision import WithBf16Weights
    from engine.device.replicas import Replicas, checksum, numbers_in
    from engine.device.rules import check_options
    from engine.device.seed import StepNumbers, draw_nothing, rng_state, seed_everything, set_rng_state
    from engine.device.skipping import (
        FUSED,
        all_of,
        any_of,
        begin_momentum,
        copy_buffers,
        put_back_buffers,
        takes_found_inf,
        unless,
        update_average,
    )
    from engine.device.threads import rough_flop, settle_threads, threads_for, threads_of_run
    from engine.device.weightless import NeedsValues, build_weightless
else:
    __getattr__ = lazy(__name__, __file__)
