"""Checkpoints: save the state of a run, and resume from the newest checkpoint that is not damaged.

Input: a payload (a dict of tensors, numbers, strings and containers of them) and the `World` whose ranks save it; all
ranks call `save_last` together. Output: one file, or a directory if the model is sharded. Loading returns the payload
on the CPU. Each rank of a sharded model loads its shards; the number of ranks may differ from that of the save.

With Checkpoints(..., save_async=True), `save_last` returns once the payload is copied, and a thread writes the copy.
`check` raises the error of a failed write; `wait` returns when the last write is on the disk. Loaded tensors are
memory-mapped: they are read from the file when they are used.

Guarantees: if the process is killed at any moment, the old file or the complete new file is there. The checksums of a
file are verified before it is loaded; the ranks divide this work. A damaged checkpoint is renamed, and the previous one
is loaded. Files load with weights_only=True, and their keys have no prefix `module.` or `_orig_mod.`. Checkpoints of
older versions load.

Errors: CorruptFileError for a damaged file, ConfigError for weights that do not fit the model (with keys and shapes),
RunFailed for a full disk.

    checkpoint        the checkpoint files of a run; load weights into a model
    sharded           checkpoints of sharded models
    shard_plan        which shards each rank writes, and the index of all shards
    archives          write small tensors as torch.save does, faster
    integrity         checksums, and reading of files that may be damaged
    background        write a copy in a thread while training continues
    buffers           find tensors that a checkpoint would not contain, and buffers that are not finite
    optimizers        combine several optimizers into one
    trained           the config and checkpoint of a run, to predict with it or to export it
    shared_weights    weights that no step changes, written once for all checkpoints of a run
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.checkpoints.buffers import (
        BufferChecks as BufferChecks,
        no_new_parameters as no_new_parameters,
        unregistered as unregistered,
    )
    from samebits.checkpoints.checkpoint import (
        Checkpoints as Checkpoints,
        copy_from_mmap as copy_from_mmap,
        eval_state_dict as eval_state_dict,
        find_checkpoint as find_checkpoint,
        find_weights as find_weights,
        format_keys as format_keys,
        load_checkpoint as load_checkpoint,
        load_fitting as load_fitting,
        load_weights as load_weights,
        save_checkpoint as save_checkpoint,
    )
    from samebits.checkpoints.integrity import error_line as error_line, load_verified as load_verified
    from samebits.checkpoints.optimizers import Optimizers as Optimizers
    from samebits.checkpoints.sharded import reshard_like as reshard_like
    from samebits.checkpoints.trained import (
        check_target as check_target,
        export as export,
        read_run as read_run,
        run_directory as run_directory,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
