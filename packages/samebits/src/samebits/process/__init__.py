"""Processes of one run: the parent process, which starts the run, and its ranks.

Input: a `Program`, a checked config (`Options`: the groups that are read here) and the run directory. Output: in each
rank the program's training is called with a `RankProcess`: world, hardware, logger, checkpoints and the payload to
resume from.

Guarantees: if a new run fails with a ConfigError before its first step, its files are deleted; if a resume fails before
its first step, the previous files are restored. All ranks load the same checkpoint. The outcome is in status.json and
result.json before the command ends, and the first failure is printed in one line.

Errors: ConfigError, RunFailed, KeyboardInterrupt (interrupted) or SystemExit (preempted), depending on how the run
ended.

    parent      the run directory, start and restarts of ranks, the first failure
    rank        one rank: opens the process group, logger and checkpoints, calls the training, records its end
    header      the first lines of a run's log
    trials      measurements for `tuning`: micro-batch, loader, threads, learning rate
    tuning      the command that prints the measured values; hardware.micro_batch_size=auto
    models      builds, shards, wraps and compiles a model in a rank
    options     config groups of this library
    predicting  ranks that write predictions
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.process.header import (
        log_header as log_header,
        node_text as node_text,
        options_without_effect as options_without_effect,
    )
    from samebits.process.models import model_of_rank as model_of_rank, ready_net as ready_net, to_devices as to_devices
    from samebits.process.options import EngineGroups as EngineGroups
    from samebits.process.parent import join as join, start as start
    from samebits.process.predicting import write_predictions as write_predictions
    from samebits.process.rank import RankProcess as RankProcess
    from samebits.process.trials import range_test as range_test, run_trial as run_trial
    from samebits.process.tuning import tune as tune
else:
    __getattr__ = lazy_getattr(__name__, __file__)
