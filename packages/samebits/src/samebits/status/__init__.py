"""The files of a run directory that record its status, logged values, scores, checkpoints and first failure.

Input: the run directory. Output: the contents of status.json, failure.json, metrics.jsonl and classes.json; names of
checkpoints. Does not import torch.

Guarantees: if a run fails several times, the first failure is kept. A killed process leaves no incomplete file under a
final name. A full disk never hides the error that ended a run.

Errors: a damaged status.json is a warning, because no run depends on it. CorruptFileError for a damaged classes.json.

    files       names of the files, status, metrics, classes, checkpoints
    failures    failure.json, and the hint after the message of a failure
"""

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
        new_wandb_id,
        newest_checkpoint,
        read_metrics,
        read_status,
        shown,
        step_of,
        write_class_names,
        write_status,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
