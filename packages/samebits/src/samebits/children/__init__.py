"""Child processes that end with their parent, and detection of hung children. Independent of ranks, runs and configs.

Input: processes of multiprocessing. Does not import torch.

Guarantees: a child that calls `die_with(parent)` ends with its parent, even if the parent is killed. With `Heartbeats`
in shared memory the parent detects a child that is stopped by a signal, or whose native code holds the GIL, and kills
it (`abort_hung`). `run_in_subprocess` runs one function in a separate process. A forked child gets separate positions
in inherited files (`own_offsets`).

Errors: `run_in_subprocess` raises the ConfigError or RunFailed of the function; OSError for failed system calls.

    parent       processes that end with their parent
    child        run a function in a separate process
    heartbeat    detect hung children
    offsets      positions in open files
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.children.child import run_in_subprocess as run_in_subprocess
    from samebits.children.heartbeat import (
        Heartbeats as Heartbeats,
        abort_hung as abort_hung,
        beat as beat,
        first_signal as first_signal,
        has_starter as has_starter,
        mark_finished as mark_finished,
        note_progress as note_progress,
        note_step as note_step,
        progress_at as progress_at,
        readable_stack as readable_stack,
        register_heartbeat as register_heartbeat,
    )
    from samebits.children.offsets import Offsets as Offsets, file_offsets as file_offsets, own_offsets as own_offsets
    from samebits.children.parent import (
        die_with as die_with,
        die_with_starter as die_with_starter,
        end_children_at_exit as end_children_at_exit,
        exited as exited,
        process_state as process_state,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
