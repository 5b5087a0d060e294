"""What is still to be done after a step, and why there is no further one: state.pending and state.stop_reason, which each
checkpoint holds. A run that was killed or stopped after any of its writes goes on with the rest of it.

    after a step         pending = log, score, save, as they are due           actions_after_step
    after each of them   pending = the rest; checkpoints have it so            lab.loop.run_pending
    a stop               saves at once; the evaluation is still owed
    a resume             pays what the checkpoint pending, then takes steps    restore_pending
"""

from __future__ import annotations

from lab.state import RunContext, TrainState
from samebits.schema import passed


def due(step: int, every: float | None) -> bool:
    return every is not None and passed(step, every) > passed(step - 1, every)


def actions_after_step(state: TrainState, validates: bool, run: RunContext) -> list[str]:
    """What is to be done after the step that was taken, in this order. validates: there are validation sets."""
    step, every, at_end = state.step, run.every, state.step == run.total_steps
    scored = bool(validates and every.eval) and (due(step, every.eval) or at_end)
    saved = due(step, every.save) or at_end or step == run.stop_at_step
    return ["log"] * (due(step, every.log) or at_end) + ["score"] * scored + ["save"] * saved


def is_finished(state: TrainState, run: RunContext) -> bool:
    return state.step >= run.total_steps or bool(state.stop_reason)


def out_of_patience(state: TrainState, run: RunContext) -> bool:
    patience = run.trainer.early_stop_patience
    return patience is not None and state.evals_without_improvement >= patience


def restore_pending(state: TrainState, validates: bool, run: RunContext) -> None:
    """Before the first step of a process: decide anew what is owed, and why training has ended, where a resume has
    changed the config.

    The end by max_steps, max_epochs and by patience is that of today's config. A callback's end stands, unless the run
    is given more steps than it had.
    """
    moved = state.total_steps != run.total_steps
    if state.step and moved and (state.step == run.total_steps or not state.total_steps):
        # this step has become the last one; or an older version wrote the checkpoint, and did not say what it pending
        done = {"log": state.logged_step, "score": state.scored_step}
        state.pending = [what for what in actions_after_step(state, validates, run) if done.get(what) != state.step]
    if not (validates and run.every.eval):
        state.pending = [what for what in state.pending if what != "score"]
    if state.stop_reason == "patience" or 0 < state.total_steps < run.total_steps:
        state.stop_reason = ""
    state.stop_reason = state.stop_reason or "patience" * out_of_patience(state, run)
    state.total_steps = run.total_steps
