"""What makes runs fast, exact and restartable. A fork does not edit this folder; an update replaces it.

The engine imports nothing of the project (`lab`), which is handed to it as an object (engine.project).

    host         one process and its machine                 data        which sample when, and how batches are made
    config       from the command line to a checked config   profiling   where the time goes
    runs         a run directory and its logs                sweeps      many runs: ledger, pool, search, reports
    ranks        processes, devices, signals                 verify      a run again, and compared
    checkpoints  saved state, whole or sharded

Each folder's page (`__init__.py`) lists what others may use. CHANGELOG.md says what changed there.
"""

__version__ = "0.2.0"
