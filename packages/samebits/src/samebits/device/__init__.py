"""A model on a device: precision, threads, batch sizes, settings that follow from the machine. (Importing it imports no
torch.)

Given: the group `hardware` and what `trainer` says of the strategy, a `World`, a model. Returned: `Hardware`, with
every `auto` resolved, and the model's passes as the precision wants them.

Promised: what `auto` means follows from shapes and the machine, from nothing that is measured, and a run keeps it. With
one rank, nothing of another is touched.

Raised: ConfigError for options that do not go together or do not fit the machine.

    hardware, threads, precision    device, batch sizes, settings that follow from the machine
    auto                    what of them the model decides, and the run keeps
    memory, page_locked     what a device has left; memory for copies that nothing waits for
    options, rules          values of the group; which go together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.device.auto import (
        LAUNCHES_BOUND_FLOP,
        recorded_precision,
        resolve_auto,
        resolve_auto_as_recorded,
        resolve_auto_of_run,
    )
    from samebits.device.hardware import (
        Hardware,
        choose_device,
        count_processes,
        in_channels_last,
        match_memory_format,
        resolve_hardware,
    )
    from samebits.device.memory import free_memory
    from samebits.device.options import BLOCKS, CUDA_GRAPHS, HardwareConfig
    from samebits.device.page_locked import lock_pages, unlock_pages
    from samebits.device.precision import WithBf16Weights
    from samebits.device.rules import check_options
    from samebits.device.threads import rough_flop
else:
    __getattr__ = lazy_getattr(__name__, __file__)
