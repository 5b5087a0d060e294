"""A search's study: the next trial's parameters and the outcome of each trial.

All state is in the storage. The sampler is stateless: it is built anew for each trial, with a seed derived from the
search's seed and the trial's number. So a search that was killed and restarted draws the same parameters as an
uninterrupted one, given the same results.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from engine.errors import ConfigError
from engine.sweeps.identity import values_of
from engine.sweeps.options import SearchConfig
from engine.sweeps.search.methods import Methods
from engine.sweeps.search.objectives import Objective
from engine.sweeps.search.space import Space
from engine.sweeps.search.storage import STUDY_FILE, create_study, shown

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

SPACE, WHY, RETRY_OF, DIRECTORY = "space", "why", "retry_of", "directory"
REPORTED_AT_MOST = 100  # only a trial's last evaluations are reported at its end, as each is a database write


@dataclass(frozen=True)
class Asked:
    """A trial that is to run: its number and the parameters drawn for it."""

    number: int
    params: dict[str, Any]


class Search:
    """name: of the study in the storage. sweep_dir: directory of the search's runs."""

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
        self.name, self.sweep_dir = config.study or name, sweep_dir
        self._study = create_study(config.storage, self.name, sweep_dir, [o.mode for o in objectives])
        self._check_same_search()
        self._study.pruner = methods.pruner()

    def _check_same_search(self) -> None:
        """ConfigError if space, fixed values or objectives differ from earlier starts; sampler, pruner, n_trials and
        hardware may change."""
        from optuna.distributions import distribution_to_json

        now: dict[str, Any] = {
            "space": {key: json.loads(distribution_to_json(d)) for key, d in sorted(self.space.swept.items())},
            "values": values_of(list(self.space.fixed.values())),
            "objectives": {o.key: o.mode for o in self.objectives},
        }
        known = self._study.user_attrs.get(SPACE)
        if known is None and not self._study.get_trials(deepcopy=False):
            self._study.set_user_attr(SPACE, {**now, "typed": self.space.typed})
            return
        if known is None or any(known[part] != now[part] for part in now):
            was = "another program's trials" if known is None else _shortly(known)
            url = shown(self.config.storage or f"sqlite:///{self.sweep_dir / STUDY_FILE}")
            raise ConfigError(
                f"sweep={self.sweep_dir.name}: its storage {url} holds another search ({was}) - "
                "give this one another name, sweep=..."
            )

    # ---- trials
    @property
    def limit(self) -> int:
        """Number of trials at which the search ends."""
        return self.methods.limit

    def has_room(self) -> bool:
        """Whether another trial may be drawn. Interrupted trials count, as the next start resumes them."""
        return len(self.ended()) + len(self._in_state("RUNNING")) < self.limit

    def expected(self) -> int:
        """Number of trials at the end, including failed ones that are tried again."""
        return max(self.limit + len(self.trials()) - len(self.ended()) - len(self._in_state("RUNNING", "WAITING")), 0)

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ended(self) -> list[FrozenTrial]:
        """Trials that are complete, pruned or failed, without failed ones that are tried again."""
        trials = self.trials()
        again = {t.user_attrs.get(RETRY_OF) for t in trials}
        return [t for t in trials if t.state.is_finished() and t.number not in again]

    def best_trials(self) -> list[FrozenTrial]:
        """The best trial; with several objectives, the Pareto front."""
        complete = self._in_state("COMPLETE")
        if not complete:
            return []
        return [self._study.best_trial] if len(self.objectives) == 1 else self._study.best_trials

    def retry_failed(self) -> None:
        """Enqueue a new trial with the same parameters for each failed one: Optuna never changes an ended trial."""
        failed = {trial.number for trial in self._in_state("FAIL")}
        for trial in self.ended():
            if trial.number in failed and trial.params:
                self._study.enqueue_trial(dict(trial.params), user_attrs={RETRY_OF: trial.number})

    def running(self) -> list[Asked]:
        """Trials that an earlier start began but did not end. Parameters missing because that start was killed while
        drawing are drawn now."""
        return [self._drawn(trial.number) for trial in self._in_state("RUNNING")]

    def _in_state(self, *names: str) -> list[FrozenTrial]:
        return [trial for trial in self.trials() if trial.state.name in names]

    def ask(self) -> Asked:
        """The next trial; queued ones first."""
        number = len(self.trials())
        self._study.sampler = self.methods.sampler(number)
        return self._drawn(self._study.ask().number)

    def _drawn(self, number: int) -> Asked:
        trial = self._trial(number)
        return Asked(number, {key: _suggest(trial, key, d) for key, d in self.space.swept.items()})

    def _trial(self, number: int) -> Trial:
        """The trial as a running one, which can draw parameters."""
        from optuna.trial import Trial

        self._study.sampler = self.methods.sampler(number)
        return Trial(self._study, self.trials()[number]._trial_id)

    def note_directory(self, number: int, directory: Path) -> None:
        """Store the run directory as a user attribute of the trial, for dashboards."""
        trial = self.trials()[number]
        if trial.user_attrs.get(DIRECTORY) != str(directory):
            self._study._storage.set_trial_user_attr(trial._trial_id, DIRECTORY, str(directory))

    def report(self, number: int, values: Sequence[float | None]) -> None:
        """Report the value of each evaluation that the run has not reported (with a pruner, it reports all but the
        last). values: (evaluations,), None: not finite."""
        trial = self.trials()[number]
        if trial.state.is_finished():
            return
        for step in range(max(0, len(values) - REPORTED_AT_MOST), len(values)):
            value = values[step]
            if value is not None and step not in trial.intermediate_values:
                self._study._storage.set_trial_intermediate_value(trial._trial_id, step, value)

    def tell(self, number: int, state: str, values: Sequence[float] = (), why: str = "") -> None:
        """End a trial in the study. state: complete, pruned or fail; why: the reason of a failure."""
        from optuna.trial import TrialState

        if why:
            self._trial(number).set_user_attr(WHY, why[:2000])
        try:
            self._study.tell(number, list(values) or None, TrialState[state.upper()])
        except RuntimeError:  # an exhaustive sampler stops the study after the last combination
            if not self.trials()[number].state.is_finished():
                raise

    def facts(self, asked: Asked) -> dict[str, Any]:
        """Content of trial.json in the run's directory, see engine.sweeps.search.pruning."""
        return {
            "study": self.name,
            "storage": self.config.storage,
            "trial": asked.number,
            "params": asked.params,
            "objective": self.objectives[0].key,
            "pruner": self.config.pruner if self.methods.prunes else None,
        }


def _suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    """The value of a parameter: drawn now, or the one drawn before."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    if isinstance(distribution, IntDistribution):
        d = distribution
        return trial.suggest_int(key, d.low, d.high, step=d.step, log=d.log)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _shortly(known: Mapping[str, Any]) -> str:
    objectives = ", ".join(f"{key} {mode}" for key, mode in known["objectives"].items())
    typed = " ".join(text for key, text in known["typed"].items() if key in known["space"] or key in known["values"])
    return f"{typed}; {objectives}"
