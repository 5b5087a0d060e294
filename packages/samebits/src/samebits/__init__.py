"""What makes runs fast, exact and restartable. A fork does not edit this folder; an update replaces it.

The engine imports nothing of the project (`lab`), which is handed to it as an object (samebits.project).

    host         one machine: cores, GPUs, memory            children     child processes: ends, hangs
    targets      classes that a config names, built          saved        configs of runs, as data
    config       from the command line to a config           code         which code a run is computed by
    status       what a run's directory says of the run      runs         a run directory, filled and resumed
    loggers      metrics.jsonl, W&B, TensorBoard, MLflow     world        ranks: how they start, meet and stop
    shards       weights cut over ranks                      parallel     DDP, FSDP, stragglers
    steps        random numbers and skipping, by the step    device       precision, batch sizes, threads
    compiling    torch.compile, CUDA graphs                  checkpoints  saved state, whole or sharded
    data         which sample when, and how batches are made
    profiling    where the time goes                         process      the process that starts a run, and its ranks
    sweeps       many runs: sweeps, reports, verification
    testing      helpers for a project's tests

Each imports only those before it, and single files: errors, files, locks, signals, programs, credentials, ...
Each folder's page (`__init__.py`) lists what others may use. CHANGELOG.md says what changed there.
"""

__version__ = "0.3.0"
