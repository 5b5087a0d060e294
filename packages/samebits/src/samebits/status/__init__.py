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
        FAILURE as FAILURE,
        FAILURES as FAILURES,
        explained_error as explained_error,
        forget_failure as forget_failure,
        keep_failure as keep_failure,
        read_failure as read_failure,
        record_failure as record_failure,
        resume_hint as resume_hint,
    )
    from samebits.status.files import (
        CHECKPOINT as CHECKPOINT,
        CHECKPOINTS as CHECKPOINTS,
        METRICS as METRICS,
        RESULT as RESULT,
        SHARED_WEIGHTS as SHARED_WEIGHTS,
        STATUS as STATUS,
        checkpoint_files as checkpoint_files,
        class_names as class_names,
        end_status as end_status,
        new_wandb_id as new_wandb_id,
        newest_checkpoint as newest_checkpoint,
        read_metrics as read_metrics,
        read_status as read_status,
        shown as shown,
        step_of as step_of,
        write_class_names as write_class_names,
        write_status as write_status,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
