"""What a run's directory says of the run: its status, logged values, scores, checkpoints and first failure.

Given: the directory. Returned: the contents of status.json, failure.json, metrics.jsonl and classes.json; names of
checkpoints. Imports no torch.

Promised: of several failures the first is kept. A process that is killed leaves no half-written file under a final
name. A full disk never hides the error that ended a run. A damaged status.json is a warning, as no run depends on it.

    files       names of the files, status, metrics, classes, checkpoints
    failures    failure.json, and what follows the line of a failure
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.status.failures import (
        FAILURE,
        FAILURES,
        explained_error,
        forget_failure,
        keep_failure,
        read_failure,
        record_failure,
        resume_hint,
    )
    from samebits.status.files import (
        CHECKPOINT,
        CHECKPOINTS,
        METRICS,
        RESULT,
        SHARED_WEIGHTS,
        STATUS,
        checkpoint_files,
        class_names,
        end_status,
        keep_class_names,
        new_wandb_id,
        newest_checkpoint,
        read_metrics,
        read_status,
        shown,
        step_of,
        write_status,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
