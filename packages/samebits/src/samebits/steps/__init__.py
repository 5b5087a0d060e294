"""Random numbers of a step, and skipped steps, without synchronizing with the device. Importing it does not import
torch.

Input: the number of the step, a device, optimizers, flags as tensors on the device. Output: tensors on the device; the
states of the random number generators as bytes on the host.

Guarantees: nothing here waits for the device, not even to find out whether a step is skipped. Random numbers of a step
depend only on the seed and the step. Code that changes weights draws the same numbers on all ranks.

Errors: RunFailed for a buffer that cannot be restored because its shape has changed.

    seed        random numbers per step; states of the generators
    skipping    skipped steps; the loss scale
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.steps.seed import (
        IN_EVALUATIONS as IN_EVALUATIONS,
        StepRNG as StepRNG,
        declares_no_rng as declares_no_rng,
        restored_rng as restored_rng,
        rng_bytes as rng_bytes,
        seed_everything as seed_everything,
        seeded as seeded,
        set_rng_bytes as set_rng_bytes,
        set_rng_state as set_rng_state,
        uses_no_rng as uses_no_rng,
        warn_of_new_seed as warn_of_new_seed,
        with_seed_check as with_seed_check,
    )
    from samebits.steps.skipping import (
        FUSED as FUSED,
        all_of as all_of,
        any_of as any_of,
        begin_momentum as begin_momentum,
        copy_buffers as copy_buffers,
        restore_buffers_if as restore_buffers_if,
        restore_if as restore_if,
        takes_found_inf as takes_found_inf,
        update_average as update_average,
        update_scale as update_scale,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
