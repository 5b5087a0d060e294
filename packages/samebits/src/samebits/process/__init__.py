"""The processes of one run: the one that starts it, and its ranks.

Given: a `Program`, a checked config (`Options`: the groups that are read here), the run's directory. In each rank the
program's training is called with a `Rank`: world, machine, logger, checkpoints, and the payload to go on from.

Promised: a directory that the start has filled holds a whole run; of one that failed before its first step nothing
stays, or, in a resume, the state before. All ranks load the same checkpoint. The outcome is in status.json and
result.json before a command ends, and its first failure is printed in one line.

Raised: ConfigError, RunFailed, KeyboardInterrupt (interrupted) or SystemExit (preempted), as the run ended.

    parent      the directory, the ranks, restarts, the first failure    rank    what surrounds the training in a rank
    header      the first lines of a run's log
    trials      values found by trying, which `tuning` prints or uses
    models      a model in a rank: built, sharded, wrapped
    options     the engine's groups of a config
    predicting  ranks that write predictions
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.process.header import log_header, options_without_effect
    from samebits.process.models import model_of_rank, ready_net, to_devices
    from samebits.process.options import EngineGroups
    from samebits.process.parent import join, start
    from samebits.process.predicting import write_predictions
    from samebits.process.rank import Rank
    from samebits.process.trials import range_test, run_trial, step_s
    from samebits.process.tuning import tune
else:
    __getattr__ = lazy_getattr(__name__, __file__)
