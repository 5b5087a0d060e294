"""A model on a device: precision, compiling, threads, seeds, settings that follow from the machine. (Importing it
imports no torch.)

Given: the group `hardware` and what `trainer` says of the strategy, a `World`, a model. Returned: `Hardware`, with
every `auto` resolved, and the model's passes as the precision wants them.

Promised: nothing in a step asks the device, not even whether a step is left out; ranks draw what one process would
draw. With one rank, nothing of another is touched.

Raised: ConfigError for options that do not go together or do not fit the machine.

    hardware, threads, precision    device, batch sizes, settings that follow from the machine
    auto                    what of them the model decides, and the run keeps
    dynamo                  compiling
    captured                a step as one CUDA graph
    memory, page_locked     what a device has left; memory for copies that nothing waits for
    seed                    random numbers by the number of the step
    skipping                steps that are left out without asking the device
    options, rules          values of the group; which go together
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.pages import lazy

if TYPE_CHECKING:
    from samebits.device.auto import (
        LAUNCHES_BOUND_FLOP,
        as_run_began,
        began_precision,
        resolve_auto,
        resolve_auto_of_run,
    )
    from samebits.device.captured import Captured, check_optimizer_of_graph
    from samebits.device.dynamo import CompiledChain, compile_blocks, compile_report, compiled, for_evaluation
    from samebits.device.hardware import (
        Hardware,
        choose_device,
        count_processes,
        in_channels_last,
        order_as_weights,
        resolve_hardware,
        update_scale,
    )
    from samebits.device.memory import free_memory
    from samebits.device.options import HardwareConfig
    from samebits.device.page_locked import lock_pages, unlock_pages
    from samebits.device.precision import WithBf16Weights
    from samebits.device.rules import check_options
    from samebits.device.seed import (
        StepNumbers,
        draw_nothing,
        rng_row,
        says_no_draws,
        seed_everything,
        set_rng_row,
        set_rng_state,
    )
    from samebits.device.skipping import (
        FUSED,
        all_of,
        any_of,
        begin_momentum,
        copy_buffers,
        put_back_buffers,
        takes_found_inf,
        unless,
        update_average,
    )
    from samebits.device.threads import rough_flop
else:
    __getattr__ = lazy(__name__, __file__)
