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

from samebits.pages import lazy

if TYPE_CHECKING:
    from samebits.steps.seed import (
        StepNumbers,
        draw_nothing,
        rng_row,
        says_no_draws,
        seed_everything,
        set_rng_row,
        set_rng_state,
    )
    from samebits.steps.skipping import (
        FUSED,
        all_of,
        any_of,
        begin_momentum,
        copy_buffers,
        put_back_buffers,
        takes_found_inf,
        unless,
        update_average,
        update_scale,
    )
else:
    __getattr__ = lazy(__name__, __file__)
