"""A search's study: the next trial's parameters and the outcome of each trial.

All state is in the storage. The sampler has no state: each trial builds a new one, with a seed derived from the
search's seed and the trial's number. Therefore a search that was killed and restarted draws the same parameters as an
uninterrupted one, given the same results."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from samebits.credentials import redacted
from samebits.errors import ConfigError
from samebits.sweeps.identity import values_of
from samebits.sweeps.options import SearchConfig
from samebits.sweeps.report import Objective
from samebits.sweeps.search.methods import Methods
from samebits.sweeps.search.space import Space
from samebits.sweeps.search.storage import attached, open_study, url_of

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

SPACE, WHY, RETRY_OF = "space", "why", "retry_of"  # user attributes of the study and of trials
REPORTED_AT_MOST = 100  # number of evaluations that are reported when a trial ends; each is a database write


class Search:
    """The study of a search. name: its name in the storage. sweep_dir: directory of the search's runs."""

    def __init__(
        self,
        config: SearchConfig,
        space: Space,
        methods: Methods,
        objectives: Sequence[Objective],
        name: str,
        sweep_dir: Path,
    ) -> None:
        self.config, self.space, self.methods, self.objectives = config, space, methods, list(objectives)
        self.sweep_dir = sweep_dir
        modes = [o.mode for o in objectives]
        self._study = open_study(config.storage, config.study or name, sweep_dir, modes, renamed=config.study is None)
        self.name = self._study.study_name
        self._check_same_search()
        self._study.pruner = methods.pruner()

    def _check_same_search(self) -> None:
        """Raise ConfigError if space, fixed values or objectives differ from earlier commands. Sampler, pruner,
        n_trials and hardware may change."""
        from optuna.distributions import distribution_to_json

        now: dict[str, Any] = {
            "space": {key: json.loads(distribution_to_json(d)) for key, d in sorted(self.space.swept.items())},
            "values": values_of(self.methods.project, list(self.space.fixed.values())),
            "objectives": {o.key: o.mode for o in self.objectives},
            "conditions": {key: given for key, given in self.space.conditions.items() if key in self.space.swept},
        }
        known = self._study.user_attrs.get(SPACE)
        if known is None and not self.trials():
            self._study.set_user_attr(SPACE, {**now, "typed": self.space.typed})
        elif known is None or any(_text(known.get(part, {})) != _text(now[part]) for part in now):
            was = "another program's trials" if known is None else _shortly(known)
            url = redacted(url_of(self.config.storage, self.sweep_dir))
            raise ConfigError(
                f"sweep={self.sweep_dir.name}: its storage {url} contains another search ({was}) - "
                "give this one another name, sweep=..."
            )

    # ---- trials
    def trials(self, *states: str) -> list[FrozenTrial]:
        """Return the trials in one of these states; all trials if no state is given."""
        return [t for t in self._study.get_trials(deepcopy=False) if not states or t.state.name in states]

    def ended(self) -> list[FrozenTrial]:
        """Return complete, pruned and failed trials, without failed ones that are retried."""
        retried = self._retried()
        return [t for t in self.trials("COMPLETE", "PRUNED", "FAIL") if t.number not in retried]

    def _retried(self) -> set[int]:
        return {t.user_attrs[RETRY_OF] for t in self.trials() if RETRY_OF in t.user_attrs}

    def has_room(self) -> bool:
        """Return True if another trial may be drawn. Interrupted trials count, because the next command resumes
        them."""
        return len(self.ended()) + len(self.trials("RUNNING")) < self.methods.limit

    def expected(self) -> int:
        """Return the final number of trials, including failed ones that are retried."""
        return self.methods.limit + len(self._retried())

    def best_trials(self) -> list[FrozenTrial]:
        """Return the best trial, or the Pareto front if there are several objectives."""
        return self._study.best_trials

    def retry_failed(self) -> None:
        """Enqueue a new trial with the same parameters for each failed one: Optuna never changes an ended trial."""
        for trial in self.ended():
            if trial.state.name == "FAIL" and trial.params:
                self._study.enqueue_trial(dict(trial.params), user_attrs={RETRY_OF: trial.number})

    def running(self) -> list[Trial]:
        """Return the trials that an earlier command started and did not end. Draw parameters that are missing because
        that command was killed while drawing."""
        return [self._drawn(trial.number) for trial in self.trials("RUNNING")]

    def ask(self) -> Trial:
        """Return the next trial; queued ones first."""
        return self._drawn(self._study.ask().number)

    def _drawn(self, number: int) -> Trial:
        self._study.sampler = self.methods.sampler(number)
        trial = attached(self._study, number)
        self.space.draw(partial(_suggest, trial))
        return trial

    def report(self, number: int, values: Sequence[float | None]) -> None:
        """Report the evaluations that the run has not reported itself (with a pruner it reports all except the last).
        values: (evaluations,), None for values that are not finite."""
        trial, known = attached(self._study, number), self.trials()[number]
        for step in range(max(0, len(values) - REPORTED_AT_MOST), len(values)):
            value = values[step]
            if value is not None and step not in known.intermediate_values and not known.state.is_finished():
                trial.report(value, step)

    def tell(self, number: int, state: str, values: Sequence[float] = (), why: str = "") -> None:
        """End a trial in the study. state: complete, pruned or fail; why: the reason of a failure."""
        from optuna.trial import TrialState

        if why:
            attached(self._study, number).set_user_attr(WHY, why[:2000])
        try:
            self._study.tell(number, list(values) or None, TrialState[state.upper()])
        except RuntimeError:  # an exhaustive sampler stops the study after the last combination
            if not self.trials()[number].state.is_finished():
                raise

    def facts(self, trial: Trial) -> dict[str, Any]:
        """Return the content of trial.json in the run directory, see samebits.sweeps.search.pruning."""
        return {
            "study": self.name,
            "storage": redacted(self.config.storage),
            "trial": trial.number,
            "params": trial.params,
            "objective": self.objectives[0].key,
            "pruner": self.config.pruner if self.methods.prunes else None,
        }


def _suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    """Return the value of a parameter: the one drawn before, otherwise draw it."""
    from optuna.distributions import CategoricalDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    suggest: Any = trial.suggest_int if isinstance(distribution, IntDistribution) else trial.suggest_float
    d: Any = distribution
    return suggest(key, d.low, d.high, step=d.step, log=d.log)


def _text(part: Any) -> str:
    """Return the value as text for a comparison, because True, 1 and 1.0 are equal in Python."""
    return json.dumps(part, sort_keys=True)


def _shortly(known: Mapping[str, Any]) -> str:
    objectives = ", ".join(f"{key} {mode}" for key, mode in known["objectives"].items())
    typed = " ".join(text for key, text in known["typed"].items() if key in known["space"] or key in known["values"])
    return f"{typed}; {objectives}"
