"""A run is a directory: claimed by one process, filled before the start, with its status, logs and failures.

Given: a checked config and the command's overrides. Returned: files that any later version reads; what they say of
the run is samebits.status. Knows nothing of ranks: rank 0, or a parent, writes. Imports no torch.

Promised: a directory with a config is complete. A process that is killed at any moment leaves no half-written file
under a final name. A resume that fails before its first step leaves the directory as it was (`undo_resume`, until
`commit_resume`).

Raised: DirectoryLockedError where another process holds the directory, ConfigError for what the user asked in vain, CorruptFileError for a
file that does not read, RunFailed for a directory that went away.

    directory     files, lock, status           resume    a new run, or an old one with changed values
    data_files    data known again elsewhere    spent     seconds over all processes of a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.runs.data_files import files_of, is_same, keep_files, other_data
    from samebits.runs.directory import (
        BEFORE,
        NOT_COMPUTED,
        claimed,
        commit_resume,
        empty_directory,
        fill_directory,
        has_trained,
        holds_run,
        is_claimed,
        keep_versions,
        reopen_directory,
        undo_resume,
        write_config,
    )
    from samebits.runs.elapsed import record_start
    from samebits.runs.resume import change_value, choose_run, has_key
else:
    __getattr__ = lazy_getattr(__name__, __file__)
