"""Child processes: they end with their parent, and one that hangs is found. Knows nothing of ranks, runs and configs.

Given: processes of multiprocessing. Imports no torch.

Promised: a child that calls `die_with(parent)` ends with its parent, even if that was killed. `Heartbeats` are heartbeats
in shared memory: the parent finds a child that is stopped, or whose native code holds the GIL, and ends it
(`abort_hung`). `run_in_subprocess` runs one function in a process of its own. A forked child has positions of its own in the
files that it inherits (`own_offsets`).

Raised: ConfigError and RunFailed by `run_in_subprocess`, as the function in the child did; OSError where the system refuses.

    parent, child      processes that end with their parent       heartbeat    finding those that hang
    offsets            positions in open files
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.children.child import run_in_subprocess
    from samebits.children.heartbeat import (
        Heartbeats,
        abort_hung,
        beat,
        has_starter,
        mark_finished,
        note_progress,
        note_step,
        progress_at,
        readable_stack,
        register_heartbeat,
    )
    from samebits.children.offsets import Offsets, file_offsets, own_offsets
    from samebits.children.parent import die_with, die_with_starter, end_children_at_exit, process_state
else:
    __getattr__ = lazy_getattr(__name__, __file__)
