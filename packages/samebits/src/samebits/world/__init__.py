"""Processes: how ranks start, find each other, stay in step, and end. (Importing it imports no torch.)

Given: a function to run in each rank, the run's directory, environment variables of whoever starts ranks. Returned: a
`World` (rank, size, device) in each.

Promised: what ranks tell each other is JSON and tensors; nothing is unpickled. A failure is reported in one line with
its cause, by the rank that failed first; a hang names the stuck rank with its stack (watchdog.py has a table of who ends
whom); no process stays. With one rank, each collective returns its argument.

Raised: ConfigError for what does not fit the machine, RankLost and RunFailed for ranks that failed or died, Stopped
where an evaluation was cut short on all ranks.

    collectives             World: what ranks do together
    environment, cluster    which rank or host this process is, by environment variables
    store, group            how ranks find each other
    rendezvous              agreeing on the run directory
    launch, stop, watch, failures   starting ranks; stopping together, hang watchdog, the first failure on record
    board, timer            what ranks tell each other in the store; the end of a process that cannot tell
    options                 the run's own: how long, how often again      terminal    breakpoints in ranks
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.world.cluster import ClusterRole, become_rank, cluster_role
    from samebits.world.collectives import World, gather_rows, on_host, to_host
    from samebits.world.environment import dist_env
    from samebits.world.failures import recording_failures
    from samebits.world.group import group_of_one, process_group, world_of_one
    from samebits.world.launch import RankLauncher
    from samebits.world.options import ProcessConfig
    from samebits.world.rendezvous import run_rendezvous
    from samebits.world.stop import AT_STEP, MAX_TIME, Stopped, StopRequest, stop_on_signals
    from samebits.world.watchdog import HangWatchdog
else:
    __getattr__ = lazy_getattr(__name__, __file__)
