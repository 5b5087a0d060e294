"""The messages of a search before its start and at its end."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from typing import TYPE_CHECKING

from engine.errors import PREEMPTED, RunFailed
from engine.sweeps.drive import counted, report, say
from engine.sweeps.ledger import Ledger
from engine.sweeps.screen import table
from engine.sweeps.search.study import WHY, Search

if TYPE_CHECKING:
    from optuna.trial import FrozenTrial

SHOWN_AT_MOST = 10


def outlook(study: Search, num_left_over: int) -> str:
    """The line before the start: numbers of trials, to run and ended before."""
    ended = study.ended()
    to_run = max(0, study.limit - len(ended))
    parts = [f"{study.limit} trials", f"{to_run} to run" + (f" ({num_left_over} go on)" if num_left_over else "")]
    states = _states(ended)
    parts += [f"{states.count(state)} {state} before" for state in dict.fromkeys(states)]
    return f"search {study.sweep_dir.name}: {', '.join(parts)}"


def _states(trials: Sequence[FrozenTrial]) -> list[str]:
    return [{"FAIL": "failed"}.get(trial.state.name, trial.state.name.lower()) for trial in trials]


def conclude(study: Search, ledger: Ledger, stopped: signal.Signals | None, changed: bool) -> None:
    """Print the table and the best trial, write the report. Raises KeyboardInterrupt (Ctrl-C), SystemExit(75) (stopped
    early) or RunFailed (no trial gave a score; some may fail). changed: whether any trial has run."""
    trials = study.trials()
    states = _states(trials)
    if ledger.jobs:
        say(f"\n{table(ledger, ledger.jobs)}")
    say(f"\nsearch {ledger.name}: {counted(states)}")
    explained = {job.status().get("sweep", {}).get("trial") for job in ledger.jobs if job.state() == "failed"}
    for trial in trials:
        if (why := trial.user_attrs.get(WHY)) and trial.number not in explained:  # by the table
            say(f"  trial {trial.number} failed: {why.splitlines()[0]}")
    for line in best(study):
        say(line)
    if ledger.jobs:
        report(ledger, changed)
    again = f"the same command with sweep={ledger.name} goes on"
    if stopped == signal.SIGINT:
        say(f"stopped by Ctrl-C; {again}")
        raise KeyboardInterrupt
    if len(study.ended()) < study.limit:
        say(f"stopped before its end; {again}")
        raise SystemExit(PREEMPTED)
    if "complete" not in states:
        raise RunFailed(f"none of {len(states)} trials gave a score")


def best(study: Search) -> list[str]:
    """Lines for the best trial with its overrides; with several objectives, for the Pareto front."""
    trials = study.best_trials()
    if not trials:
        return []
    if len(study.objectives) == 1:
        return [f"best: {_shown(study, trials[0])}"]
    lines = ["best, no other is better in every objective:"]
    lines += [f"  {_shown(study, trial)}" for trial in trials[:SHOWN_AT_MOST]]
    return [*lines, f"  and {len(trials) - SHOWN_AT_MOST} more"] if len(trials) > SHOWN_AT_MOST else lines


def _shown(study: Search, trial: FrozenTrial) -> str:
    scores = ", ".join(f"{o.key} {value:.4g}" for o, value in zip(study.objectives, trial.values))
    return f"trial {trial.number}, {scores}:  {' '.join(study.space.drawn(trial.params))}"
