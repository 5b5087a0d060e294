"""A library for fast, reproducible and restartable training runs. A fork does not edit it; an update replaces it.

This library imports nothing from the project (`lab`), which is passed to it as an object (samebits.project).

A package imports only packages above it in this list. The single modules after `testing` may be imported by all. The
public names of a package are in its `__init__.py`. CHANGELOG.md lists changes.

    host                    cores, GPUs and memory of one host
    children                child processes: their ends, hangs
    targets                 build the classes that a config names
    saved                   read and compare saved configs of runs
    config                  compose a config from the command line
    code                    record which code computes a run
    status                  state of a run, read from its directory
    runs                    create and resume run directories
    loggers                 metrics.jsonl, W&B, TensorBoard, MLflow
    world                   start, communication and stop of ranks
    shards                  weights that are sharded over ranks
    parallel                DDP, FSDP, stragglers
    steps                   random numbers and skipping per step
    device                  precision, batch sizes, threads
    compiling               torch.compile, CUDA graphs
    checkpoints             save and load state, whole or sharded
    data                    sample order, loaders, batches
    profiling               measure time and memory of steps
    process                 the processes of a run: parent and ranks
    sweeps                  sweeps of many runs, reports, verification
    testing                 helpers for a project's tests
    errors                  errors printed without a traceback
    files                   atomic writes, reads of untrusted files
    locks                   locks and write-once files
    schema                  dataclasses as schemas of config nodes
    project                 the interface to a project
    programs                calls of other programs and git
    signals, early_signals  signals that request a stop
    credentials             keep passwords out of saved files
    extras                  optional dependencies
    lazy_imports            lazy public names of packages
    clocks                  timestamps on the host and on a GPU
    torch_private           private functions of torch
    per_sample              shapes of losses and metrics per sample
    predictions             write predictions of several ranks
"""

__version__ = "0.3.0"
