"""A run is a directory: claimed by one process, filled before the start, with its status, logs and failures.

Given: a checked config and the command's overrides. Returned: files that any later version reads
(CONFIG, STATUS, RESULT, METRICS, ...). Knows nothing of ranks: rank 0, or a parent, writes. Imports no torch.

Promised: a directory with a config is complete. A process that is killed at any moment leaves no half-written file
under a final name. A resume that fails before its first step leaves the directory as it was (`undo_resume`, until
`commit_resume`). Of several failures the first is kept. A full disk never hides the error that ended a run.

Raised: Claimed where another process holds the directory, ConfigError for what the user asked in vain, Damaged for a
file that does not read, RunFailed for a directory that went away.

    directory     files, lock, status           resume    a new run, or an old one with changed values
    data_files    data known again elsewhere    spent     seconds over all processes of a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.pages import lazy

if TYPE_CHECKING:
    from samebits.runs.data_files import files_of, is_same, keep_files, other_data
    from samebits.runs.directory import (
        BEFORE,
        CHECKPOINT,
        CHECKPOINTS,
        FAILURE,
        FAILURES,
        METRICS,
        NOT_COMPUTED,
        RESULT,
        SHARED_WEIGHTS,
        STATUS,
        checkpoint_files,
        claimed,
        class_names,
        commit_resume,
        empty_directory,
        end_status,
        explained_error,
        fill_directory,
        forget_failure,
        has_trained,
        holds_run,
        is_claimed,
        keep_class_names,
        keep_failure,
        keep_versions,
        newest_checkpoint,
        onward,
        read_failure,
        read_metrics,
        read_status,
        record_failure,
        reopen_directory,
        shown,
        step_of,
        undo_resume,
        write_config,
        write_status,
    )
    from samebits.runs.resume import change_value, choose_run, has_key
    from samebits.runs.spent import record_start
else:
    __getattr__ = lazy(__name__, __file__)
