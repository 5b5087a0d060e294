"""Processes and devices: how ranks start, find each other, stay in step, and end. (Importing it imports no torch.)

Given: the groups `hardware` and `trainer` (options) and a function to run in each rank. Returned: a `World` (rank,
size, device) in each, and `Hardware`, the settings that follow from the machine.

Promised: ranks get equal shares of each batch and take the same decisions, from reduced values. What ranks tell each
other is JSON and tensors; nothing is unpickled. A failure is reported in one line with its cause, by the rank that
failed first; a hang names the stuck rank with its stack; no process stays. With one rank, each collective returns
its argument.

Raised: ConfigError for what does not fit the machine, RankLost and RunFailed for ranks that failed or died, Stopped
where an evaluation was cut short on all ranks.

    cluster, rendezvous     ranks and hosts from environment variables; agreeing on the run directory
    launch, distributed     starting ranks; process group and collectives (wire: their values as JSON)
    ddp, fsdp, blocks, data_parallel    the strategies      weightless  models built without memory, for fsdp
    hardware, threads, seed, dynamo     device, precision, batch sizes; settings that follow from the machine
    skipping                steps that are left out without asking the device
    replicas                whether all ranks hold the same
    stop, watch, failures   stopping together, hang watchdog, the first failure on record
    board, timer            what ranks say in the store: "I failed", "I am stuck here"; the watchdog of native code
    balance                 stragglers and peak memory      terminal    breakpoints in ranks
    options, rules          values of the groups; which go together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.pages import lazy

if TYPE_CHECKING:
    from engine.ranks.balance import Balance, DeviceClock, HostClock, peak_memory
    from engine.ranks.blocks import checkpoint_activations, find_blocks
    from engine.ranks.cluster import become_rank, cluster_role
    from engine.ranks.ddp import name_unused, with_sync_batchnorm, without_sync, wrap_net
    from engine.ranks.distributed import (
        World,
        all_gather,
        all_sum,
        any_rank,
        broadcast_buffers,
        broadcast_together,
        dead_peers,
        gather,
        gather_rows,
        group_for_threads,
        group_of_one,
        has_parent,
        local_ranks,
        meet,
        num_hosts,
        on_host,
        own_device,
        own_rank,
        process_group,
        ranks_here,
        share_from_main,
        started_ranks,
        to_host,
    )
    from engine.ranks.dynamo import CompiledChain, compile_report, compiled, for_evaluation
    from engine.ranks.failures import recording
    from engine.ranks.fsdp import (
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
    from engine.ranks.hardware import (
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
    from engine.ranks.launch import LIKELY, Ranks
    from engine.ranks.options import ONE_PROCESS, DDPConfig, FsdpConfig, HardwareConfig, ProcessConfig
    from engine.ranks.precision import WithBf16Weights
    from engine.ranks.rendezvous import (
        await_directory,
        followers,
        follows,
        leave_to_ranks,
        publish_directory,
        release_followers,
    )
    from engine.ranks.replicas import Replicas, checksum, numbers_in
    from engine.ranks.rules import check_options
    from engine.ranks.seed import StepNumbers, draw_nothing, rng_state, seed_everything, set_rng_state
    from engine.ranks.skipping import (
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
    from engine.ranks.stop import AT_STEP, MAX_TIME, Stopped, StopRequest, stop_on_signals
    from engine.ranks.threads import rough_flop, settle_threads, threads_for, threads_of_run
    from engine.ranks.watch import SLOW_TIMEOUTS, USER_TIMEOUTS, Watch
    from engine.ranks.weightless import NeedsValues, build_weightless
else:
    __getattr__ = lazy(__name__, __file__)
