"""What makes runs fast, exact and restartable. A fork does not edit this folder; an update replaces it.

The engine imports nothing of the project (`lab`), which is handed to it as an object (samebits.project).

    config       from the command line to a checked config   data         which sample when, and how batches are made
    host         one process and its machine                 device       precision, batch sizes, compiling
    world        ranks: how they start, meet and stop        parallel     DDP, FSDP, and what ranks compare
    runs         a run directory                             checkpoints  saved state, whole or sharded
    loggers      metrics.jsonl, W&B, TensorBoard, MLflow     profiling    where the time goes
    code         which code a run is computed by
    process      the process that starts a run, and its ranks
    sweeps       many runs: sweeps, reports, verification; nothing else of samebits imports it

Each folder's page (`__init__.py`) lists what others may use. CHANGELOG.md says what changed there.
"""

__version__ = "0.2.0"
