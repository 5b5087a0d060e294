"""Run directories: each is locked by one process and contains the config, status, logs and failures of one run.

Input: a checked config and the command's overrides. Output: files that any later version can read (samebits.status
reads the state of a run from them). Only rank 0 or a parent process writes. This package does not import torch.

Guarantees: config.yaml is written last, so a directory that contains it is complete. A process that is killed at any
moment leaves no partly written file under a final name. A resume that fails before its first step restores the previous
files (`undo_resume`); after that step, `commit_resume` deletes them.

Errors: DirectoryLockedError if another process uses the directory, ConfigError for overrides that cannot be applied,
CorruptFileError for a damaged file, RunFailed if the directory was removed.

    directory     files, lock and status of a run directory
    resume        start a new run, or resume a run with changed values
    data_files    fingerprints of data files, which identify them at another path
    elapsed       seconds over all processes of a run
    live          whether a run is still running or a sweep being run, also on another host
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.runs.data_files import (
        files_of as files_of,
        is_same as is_same,
        keep_files as keep_files,
        other_data as other_data,
        warn_of_changed_files as warn_of_changed_files,
    )
    from samebits.runs.directory import (
        BEFORE as BEFORE,
        NOT_COMPUTED as NOT_COMPUTED,
        changed_values as changed_values,
        claimed as claimed,
        commit_resume as commit_resume,
        empty_directory as empty_directory,
        fill_directory as fill_directory,
        has_trained as has_trained,
        holds_run as holds_run,
        is_claimed as is_claimed,
        keep_versions as keep_versions,
        reopen_directory as reopen_directory,
        undo_resume as undo_resume,
        write_config as write_config,
    )
    from samebits.runs.elapsed import (
        record_start as record_start,
        seconds_until_last_record as seconds_until_last_record,
    )
    from samebits.runs.live import (
        SILENT_S as SILENT_S,
        UNDER_WAY as UNDER_WAY,
        current_status as current_status,
        is_launching as is_launching,
        is_running as is_running,
        launching as launching,
    )
    from samebits.runs.resume import (
        change_value as change_value,
        check_changes as check_changes,
        choose_run as choose_run,
        has_key as has_key,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
