"""Random numbers of a step, and leaving a step out, without asking the device. (Importing it imports no torch.)

Given: the number of the step, a device, optimizers, flags as tensors on the device. Returned: tensors on the device;
the generators' states as bytes on the host.

Promised: nothing here waits for the device, not even whether a step is left out. Random numbers of a step follow from
the seed and its number; where weights are moved ranks draw what one process would draw.

Raised: RunFailed for a buffer that cannot be put back.

    seed        random numbers by the number of the step; the generators' states
    skipping    steps that are left out; the loss scale
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.steps.seed import (
        StepRNG,
        declares_no_rng,
        rng_row,
        seed_everything,
        set_rng_row,
        set_rng_state,
        uses_no_rng,
    )
    from samebits.steps.skipping import (
        FUSED,
        all_of,
        any_of,
        begin_momentum,
        copy_buffers,
        restore_buffers_if,
        restore_if,
        takes_found_inf,
        update_average,
        update_scale,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
