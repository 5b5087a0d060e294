"""The actions due after a step (state.pending) and the reason why training ended (state.stop_reason). Each checkpoint
contains both, so a run that was killed or stopped between two actions resumes with the remaining ones.

    after a step      pending = the due ones of log, score, save                   actions_after_step
    after an action   pending = the remaining ones                                 lab.loop.run_pending
    at a stop         save at once; the evaluation stays pending
    at a resume       first run the pending actions, then continue with steps      restore_pending
"""

from __future__ import annotations

from lab.state import RunContext, TrainState
from samebits.schema import passed


def due(step: int, every: float | None) -> bool:
    """Return whether this step is the first at or after a multiple of `every` steps, which may be a fraction."""
    return every is not None and passed(step, every) > passed(step - 1, every)


def actions_after_step(state: TrainState, validates: bool, run: RunContext) -> list[str]:
    """Return the actions due after `state.step`, in their order. validates: whether there are validation sets."""
    step, at_end = state.step, state.step == run.total_steps
    scored = bool(validates and run.eval_every) and (due(step, run.eval_every) or at_end)
    saved = due(step, run.save_every) or at_end or step == run.stop_at_step
    return ["log"] * (due(step, run.log_every) or at_end) + ["score"] * scored + ["save"] * saved


def is_finished(state: TrainState, run: RunContext) -> bool:
    """Return whether training has ended: all steps are done, or there is a stop_reason."""
    return state.step >= run.total_steps or bool(state.stop_reason)


def out_of_patience(state: TrainState, run: RunContext) -> bool:
    """Return whether trainer.early_stop_patience evaluations in a row have not improved the score."""
    patience = run.trainer.early_stop_patience
    return patience is not None and state.evals_without_improvement >= patience


def restore_pending(state: TrainState, validates: bool, run: RunContext) -> None:
    """Update state.pending and state.stop_reason before the first step, because a resume may have changed the config.

    The present config decides about max_steps, max_epochs and early_stop_patience. A run that a callback or a search
    has ended takes no more steps, unless the config now has more steps than before. validates: whether there are
    validation sets."""
    length_changed = state.total_steps != run.total_steps
    if state.step and length_changed and (state.step == run.total_steps or not state.total_steps):
        # this step is the last one now, or an old checkpoint has no state.pending
        done = {"log": state.logged_step, "score": state.scored_step}
        state.pending = [name for name in actions_after_step(state, validates, run) if done.get(name) != state.step]
    if not (validates and run.eval_every):
        state.pending = [name for name in state.pending if name != "score"]
    if state.stop_reason == "patience" or 0 < state.total_steps < run.total_steps:
        state.stop_reason = ""
    state.stop_reason = state.stop_reason or "patience" * out_of_patience(state, run)
    state.total_steps = run.total_steps
