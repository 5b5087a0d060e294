"""Log the means of training values since the last log, and check that they are finite."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch

from lab.state import RunContext, TrainState, may_skip
from samebits.compiling import compile_report
from samebits.data import SpeedMeter
from samebits.errors import RunFailed
from samebits.shards import local_parts
from samebits.world import to_host

WHY_SKIPPED = "their gradients, or the norm of these, were not finite in float32"
SMALLEST_SCALE = 1e-3  # fp16's loss scale begins at 65,536; each step with inf or NaN gradients halves it


def check_finite(state: TrainState, run: RunContext) -> dict[str, int]:
    """Raise RunFailed on all ranks if a gradient was inf or NaN, unless fp16 or trainer.non_finite skips such steps.

    Return {objective, or value that a task's train_step returns: number of steps skipped since the last log}, which is
    in the same copy to the host. The sum of the norms suffices: it is not finite if one of them is not."""
    # without may_skip there may still be counts, of steps before a resume that changed trainer.non_finite
    counts = [name for name in state.running_sums if name.rpartition("/")[2] == "non_finite"]
    norms = [name for name in state.running_sums if name.rpartition("/")[2] == "grad_norm"]
    names = counts if may_skip(run.trainer, state.scaler) else [*counts, *norms]
    sums = to_host(torch.stack([state.running_sums[name] for name in names])) if names else []
    if not all(map(math.isfinite, sums[len(counts) :])):
        raise _gradients_not_finite(state, run, dict(zip(names, sums)))
    if state.scaler and state.scaler.get_scale() < SMALLEST_SCALE:
        raise RunFailed(
            f"fp16: the loss scale has fallen below {SMALLEST_SCALE:g} by step {state.step}, because no step had "
            "finite gradients; use hardware.precision=bf16, which has the range of fp32, or a lower optim.lr"
        )
    return {name.rpartition("/")[0]: int(count) for name, count in zip(counts, sums)}


def _gradients_not_finite(state: TrainState, run: RunContext, sums: Mapping[str, float]) -> RunFailed:
    """Return the error with the cause as far as it can be found: the data, an overflow of the norm, or a gradient.

    sums: {name: sum since the last log} of the gradient norms and of the flags of skipped steps."""
    others = [(name, value) for name, value in state.running_sums.items() if name not in sums]
    means = ", ".join(f"{name} {float(value) / state.counts[name]:.3g}" for name, value in others)
    window = f"{state.logged_step + 1} to {state.step} (means on rank {run.world.rank}: {means})"
    steps = f"gradients were not finite within the steps {window}"
    if found := getattr(run.train_set, "find_non_finite", lambda: None)():
        return RunFailed(f"{steps}; the data are not finite either: {found}")
    largest = [to_host(part.abs().max()) for part in local_parts(state.model.parameters()) if part.numel()]
    if not any(map(math.isnan, sums.values())) and all(map(math.isfinite, largest)):
        return RunFailed(
            f"the norm of the gradients overflowed float32 within the steps {window}; the largest weight is "
            f"{max(largest, default=0.0):.3g}: if it is large, lower optim.lr, otherwise scale the loss or the "
            "targets down; if a gradient itself is infinite, debug=nan names the module"
        )
    return RunFailed(
        f"{steps}; debug=nan names the module, trainer.non_finite=skip skips such steps, "
        "a lower optim.lr or trainer.clip_norm may prevent them: see docs/troubleshooting.md#gradients-not-finite"
    )


def all_skipped(state: TrainState, skipped: Mapping[str, int]) -> bool:
    """Return whether all steps since the last log were skipped. skipped: as returned by `check_finite`."""
    updates = {name: state.counts[f"{name}/non_finite" if name else "non_finite"] for name in skipped}
    return bool(skipped) and skipped == updates


def check_has_trained(state: TrainState, run: RunContext) -> None:
    """Raise RunFailed if all steps of the run were skipped, so that the weights are still the initial ones."""
    since = (state.step - state.logged_step) * all_skipped(state, check_finite(state, run))
    if state.step and state.steps_without_update + since == state.step:
        raise RunFailed(
            f"all {state.step:,} steps were skipped, so nothing was trained: {WHY_SKIPPED} - trainer.non_finite=stop "
            "ends at the first one, debug=nan names the module"
        )


def log_train(state: TrainState, run: RunContext, clock: SpeedMeter) -> None:
    """Log the means since the last log, over all ranks: one all-reduce and one copy to the host for all values."""
    skipped = check_finite(state, run)
    names = sorted(name for name in state.running_sums if name.rpartition("/")[2] != "non_finite")  # alike on all ranks
    means = torch.stack([state.running_sums[name].float() for name in names])
    sent = means if run.rank_timing is None else torch.cat([means, run.rank_timing.table()])
    sums = to_host(run.world.all_reduce_sum(sent))
    counted = [run.world.size * (state.counts[name] - _skipped_of(name, skipped)) for name in names]
    means_of = {name: value / count for name, value, count in zip(names, sums, counted) if count}
    logged = {f"train/{name}": means_of[name] for name in state.running_sums if name in means_of}
    logged |= {f"train/{name}": rate for name, rate in state.schedule.logged_rates().items()}
    if state.source is None:
        logged["train/epoch"] = state.samples / run.samples_per_epoch
    if count := sum(skipped.get(name, 0) for name in state.optimizer):
        logged["train/skipped_steps"] = float(count)
    if all_skipped(state, skipped):
        if state.scaler is None:  # with fp16 this is normal: skipped steps lower the loss scale until it fits
            run.logger.warn(
                f"all steps from {state.logged_step + 1} to {state.step} were skipped (trainer.non_finite=skip): "
                f"{WHY_SKIPPED}"
            )
        state.steps_without_update += state.step - state.logged_step
    if compile_s := compile_report(run.logger.say):
        clock.pause_s += compile_s
        logged["perf/compile_s"] = compile_s
    state.running_sums, state.counts, state.logged_step = {}, {}, state.step
    if run.rank_timing is not None:
        logged |= run.rank_timing.read(sums[len(names) :], state.step)
    run.notify("on_log", state, logged)
    run.logger.log(state.step, logged | clock.read(state.samples))


def _skipped_of(name: str, skipped: Mapping[str, int]) -> int:
    """Return how many steps of a logged value were skipped: its own entry in `skipped`, otherwise the entry of its
    objective, whose name is the prefix of <objective>/<value> ("" if the objective has no name)."""
    return next((skipped[key] for key in (name, name.partition("/")[0], "") if key in skipped), 0)
