"""Saved state: one file, or for a sharded model a directory, resumable from the newest that is whole.

Given: a payload (a dict of tensors, numbers, text and containers of such) and the `World` that writes it; all ranks
call `save_last` together. Returned: the payload, on the CPU; of a sharded one what each rank needs, for any
number of ranks, whatever their number when it was saved.

Checkpoints(..., beside=True): `save_last` returns once the payload is copied; `check` raises what a write failed with,
`wait` returns when the last one is on the disk. Tensors of a loaded file are mapped: pages that are read when used.

Promised: a process that is killed at any moment leaves the old file or the new one. Each file's sums are checked
before it is loaded, by all ranks together, each its part; a damaged one is put aside and the one before is taken.
Files load with weights_only=True and hold neither `module.` nor `_orig_mod.`. What older versions saved still loads.

Raised: CorruptFileError for a file that is not whole, ConfigError for weights that do not fit the model (with keys and shapes),
RunFailed for a full disk.

    checkpoint    the files of a run, loading weights      shards    sharded ones      intact    sums and reading
    background    writing beside the loop      buffers    what a save would miss      optimizers    several as one
    trained           a run's config and checkpoint, to apply or export it
    shared_weights    what no step changes, written once for all checkpoints of a run
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.checkpoints.buffers import BufferChecks, unregistered
    from samebits.checkpoints.checkpoint import (
        Checkpoints,
        copy_from_mmap,
        eval_state_dict,
        find_checkpoint,
        find_weights,
        format_keys,
        load_checkpoint,
        load_fitting,
        load_weights,
        save_checkpoint,
    )
    from samebits.checkpoints.integrity import error_line, load_verified
    from samebits.checkpoints.optimizers import Optimizers
    from samebits.checkpoints.shards import reshard_like
    from samebits.checkpoints.trained import export, read_run
else:
    __getattr__ = lazy_getattr(__name__, __file__)
