"""Prepare a model for a device: precision, threads, batch sizes and settings that depend on the machine. Importing it
does not import torch.

Input: the config group `hardware`, the strategy of `trainer`, a `World`, a model. Output: `Hardware`, with every `auto`
resolved, and functions that apply it.

Guarantees: `auto` is resolved from shapes and the machine, not from measurements, and a run keeps the result. (Only
hardware.micro_batch_size=auto is measured, by samebits.process.)

Errors: ConfigError for options that conflict or are not available on the machine.

    hardware               device, batch sizes, settings that depend on the machine
    threads, precision     the number of CPU threads; bf16 copies of weights
    auto                   options that are resolved by the model, and that a run keeps
    memory                 the free memory of a device; page-locked memory for asynchronous copies
    options, rules         the schema of the group; conflicts between options
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.device.auto import (
        LAUNCHES_BOUND_FLOP as LAUNCHES_BOUND_FLOP,
        recorded_precision as recorded_precision,
        resolve_auto as resolve_auto,
        resolve_auto_as_recorded as resolve_auto_as_recorded,
        resolve_auto_of_run as resolve_auto_of_run,
    )
    from samebits.device.hardware import (
        Hardware as Hardware,
        choose_device as choose_device,
        count_processes as count_processes,
        in_channels_last as in_channels_last,
        match_memory_format as match_memory_format,
        resolve_hardware as resolve_hardware,
    )
    from samebits.device.memory import (
        free_memory as free_memory,
        lock_pages as lock_pages,
        unlock_pages as unlock_pages,
    )
    from samebits.device.options import BLOCKS as BLOCKS, CUDA_GRAPHS as CUDA_GRAPHS, HardwareConfig as HardwareConfig
    from samebits.device.precision import WithBf16Weights as WithBf16Weights
    from samebits.device.rules import check_options as check_options
    from samebits.device.threads import rough_flop as rough_flop
else:
    __getattr__ = lazy_getattr(__name__, __file__)
