"""Ranks: how they start, find each other, communicate and end. Importing this package does not import torch.

Input: a function to run in each rank, the run directory, the environment variables of the launcher. Output: a `World`
(rank, size, device) in each rank.

Guarantees: ranks exchange only JSON and tensors; nothing is unpickled. A failure is reported in one line with its
cause, by the rank that failed first. If a run hangs, the stuck rank and its stack trace are reported (the table in
watchdog.py lists which process ends which). No process is left behind. With one rank, collectives return their
argument.

Errors: ConfigError if the settings do not fit the machine, RankLost and RunFailed if ranks failed or died, Stopped if
an evaluation was cut short on all ranks.

    collectives             World: collectives of all ranks
    environment, cluster    rank or host of this process, from environment variables
    store, group            how ranks find each other; the process group
    rendezvous              agreement on the run directory
    launch                  starts ranks and waits for their ends; breakpoints with several ranks
    stop                    an early stop of all ranks after the same step
    watchdog, timer         end a run that hangs; end a process whose native code holds the GIL
    board                   messages between ranks through the store, a key-value server: a rank failed, a rank hangs
    failures                records the first failure
    options                 the config group `process`
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.world.cluster import (
        ClusterRole as ClusterRole,
        become_rank as become_rank,
        cluster_role as cluster_role,
    )
    from samebits.world.collectives import (
        World as World,
        gather_in_order as gather_in_order,
        gather_rows as gather_rows,
        to_cpu as to_cpu,
        to_host as to_host,
    )
    from samebits.world.environment import check_no_rank as check_no_rank, dist_env as dist_env
    from samebits.world.failures import quitting_debugger as quitting_debugger, recording_failures as recording_failures
    from samebits.world.group import (
        backend as backend,
        group_of_one as group_of_one,
        process_group as process_group,
        world_of_one as world_of_one,
    )
    from samebits.world.launch import RankLauncher as RankLauncher
    from samebits.world.options import ProcessConfig as ProcessConfig
    from samebits.world.rendezvous import run_rendezvous as run_rendezvous
    from samebits.world.stop import (
        AT_STEP as AT_STEP,
        MAX_TIME as MAX_TIME,
        NO_RESUME as NO_RESUME,
        Stopped as Stopped,
        StopRequest as StopRequest,
        stop_on_signals as stop_on_signals,
    )
    from samebits.world.watchdog import HangWatchdog as HangWatchdog
else:
    __getattr__ = lazy_getattr(__name__, __file__)
