"""A search's study: what may be built, what comes next, what has become of each trial.

The storage holds everything. The sampler holds nothing between two trials: it is built anew for each, with a seed that
follows from the search's seed and the trial's number. So a search that was killed and started again draws what an
undisturbed one would have drawn from the same results.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lab.config import SearchConfig
from lab.errors import ConfigError
from lab.explain import one_line
from lab.resume import SURROUNDINGS
from lab.search.objectives import Objective
from lab.search.pruning import PRUNERS_ALLOWED
from lab.search.space import Space
from lab.search.storage import create_study, quiet, shown
from lab.targets import build, check_targets

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import FrozenTrial, Trial

ALLOWED = ("optuna.samplers.*", *PRUNERS_ALLOWED)
NO_PRUNING = "optuna.pruners.NopPruner"
EXHAUSTIVE = ("BruteForceSampler", "GridSampler")
# the seed says which sequence, the storage where in it: another seed for each trial would mix sequences
ONE_SEED = ("QMCSampler",)
NEEDS = {"CmaEsSampler": "cmaes", "QMCSampler": "scipy", "GPSampler": "scipy"}  # imported when they draw
SPACE, WHY, RETRY_OF = "space", "why", "retry_of"


@dataclass(frozen=True)
class Asked:
    """A trial that is to run: its number and the parameters drawn for it."""

    number: int
    params: dict[str, Any]


class Search:
    """name: of the study in its storage. sweep_dir: where the search's runs lie."""

    def __init__(
        self, config: SearchConfig, space: Space, objectives: Sequence[Objective], name: str, sweep_dir: Path
    ) -> None:
        quiet()
        self.config, self.space, self.objectives, self.sweep_dir = config, space, list(objectives), sweep_dir
        self.name = config.study or name
        self._check()
        self._study = create_study(config.storage, self.name, sweep_dir, [o.mode for o in objectives])
        self._check_same_search()
        self._study.pruner = build(config.pruner, allowed=ALLOWED)

    # ---- before the first trial
    def _check(self) -> None:
        if not self.space.swept:
            raise ConfigError(
                "hydra/sweeper=optuna: there is nothing to search - give a key an interval, a range or a choice, "
                "'optim.lr=tag(log,interval(1e-4,1e-1))'"
            )
        nodes = {"hydra": {"sweeper": {"sampler": self.config.sampler, "pruner": self.config.pruner}}}
        keys = ("hydra.sweeper.sampler", "hydra.sweeper.pruner")
        check_targets(nodes, keys, (), {}, {keys[0]: ("seed",)} if self._takes_seed() else {}, allowed=ALLOWED)
        for key, node in zip(keys, (self.config.sampler, self.config.pruner)):
            try:
                self.sampler(0) if key == keys[0] else build(node, allowed=ALLOWED)
            except ImportError as error:
                raise ConfigError(f"{key}: {node['_target_']}: {one_line(error)}") from None
            except (ValueError, TypeError) as error:
                raise ConfigError(f"{key}: {node['_target_']} does not accept this: {one_line(error)}") from None
        if (package := NEEDS.get(self._kind)) and find_spec(package) is None:
            raise ConfigError(f"hydra/sweeper/sampler: {self._kind} needs {package} - pip install {package}")
        if self._kind in EXHAUSTIVE:
            for key in self.space.swept:
                if not self._values_of(key):
                    raise ConfigError(
                        f"{self.space.typed[key]}: {self._kind} takes every combination, and an interval has no end of "
                        "values - choose another hydra/sweeper/sampler, or a range, a choice or int(interval(...))"
                    )
        if self.prunes:
            if len(self.objectives) > 1:
                raise ConfigError("hydra/sweeper/pruner: a search with several objectives cannot prune - use none")
            if not self.objectives[0].key.startswith("val/"):
                raise ConfigError(
                    f"hydra/sweeper/pruner: {self.objectives[0].key} is known at a run's end only - use a val/ score "
                    "as the objective, or pruner=none"
                )

    def _takes_seed(self) -> bool:
        import inspect

        from lab.targets import locate

        target = locate(self.config.sampler.get("_target_"), "hydra.sweeper.sampler", ALLOWED)
        return "seed" in inspect.signature(target).parameters

    def _check_same_search(self) -> None:
        """What is searched stays for good; how (sampler, pruner, n_trials, hardware) may change between two starts."""
        from optuna.distributions import distribution_to_json

        now: dict[str, Any] = {
            "space": {key: json.loads(distribution_to_json(d)) for key, d in sorted(self.space.swept.items())},
            "values": {key: text for key, text in sorted(self.space.fixed.items()) if _counts(key)},
            "objectives": {o.key: o.mode for o in self.objectives},
        }
        known = self._study.user_attrs.get(SPACE)
        if known is None and not self._study.get_trials(deepcopy=False):
            self._study.set_user_attr(SPACE, {**now, "typed": self.space.typed})
            return
        if known is None or any(known[part] != now[part] for part in now):
            was = "another program's trials" if known is None else _shortly(known)
            raise ConfigError(
                f"sweep={self.sweep_dir.name}: its storage {shown(self._study_url)} holds another search ({was}) - "
                "give this one another name, sweep=..."
            )

    @property
    def _study_url(self) -> str:
        return self.config.storage or f"sqlite:///{self.sweep_dir}/study.db"

    @property
    def prunes(self) -> bool:
        return self.config.pruner["_target_"] != NO_PRUNING

    @property
    def _kind(self) -> str:
        return str(self.config.sampler["_target_"]).rpartition(".")[2]

    def sampler(self, number: int) -> Any:
        """The sampler that draws trial `number`."""
        import numpy as np

        if not self._takes_seed():
            return build(self.config.sampler, allowed=ALLOWED)
        seed = self.config.seed
        if self._kind not in ONE_SEED:
            seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return build(self.config.sampler, allowed=ALLOWED, seed=seed)

    # ---- trials
    @property
    def limit(self) -> int:
        """How many trials the search ends with."""
        if self._kind not in EXHAUSTIVE:
            return self.config.n_trials
        return min(self.config.n_trials, math.prod(self._values_of(key) for key in self.space.swept))

    def trials(self) -> list[FrozenTrial]:
        return self._study.get_trials(deepcopy=False)

    def ended(self) -> list[FrozenTrial]:
        """Trials that are done with: complete, pruned or failed, but for the failed ones that are tried again."""
        trials = self.trials()
        again = {t.user_attrs.get(RETRY_OF) for t in trials}
        return [t for t in trials if t.state.is_finished() and t.number not in again]

    def retry_failed(self) -> None:
        """Another trial with the same parameters for each that has failed: what has ended never changes."""
        from optuna.trial import TrialState

        for trial in self.ended():
            if trial.state == TrialState.FAIL and trial.params:
                self._study.enqueue_trial(dict(trial.params), user_attrs={RETRY_OF: trial.number})

    def running(self) -> list[Asked]:
        """Trials that an earlier start has begun and not ended, whole: one that was killed while it drew a trial's
        parameters has left some of them out."""
        from optuna.trial import TrialState

        unfinished = self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,))
        return [self._drawn(trial.number) for trial in unfinished]

    def count_running(self) -> int:
        from optuna.trial import TrialState

        return len(self._study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)))

    def ask(self) -> Asked:
        """The next trial; queued ones first."""
        number = len(self.trials())
        self._study.sampler = self.sampler(number)
        return self._drawn(self._study.ask().number)

    def _drawn(self, number: int) -> Asked:
        trial = self._trial(number)
        return Asked(number, {key: _suggest(trial, key, d) for key, d in self.space.swept.items()})

    def _trial(self, number: int) -> Trial:
        from optuna.trial import Trial

        self._study.sampler = self.sampler(number)
        return Trial(self._study, self.trials()[number]._trial_id)

    def tell(self, number: int, state: str, values: Sequence[float] = (), why: str = "") -> None:
        """state: complete, pruned or fail; why: the reason, where it is no number."""
        from optuna.trial import TrialState

        if why:
            self._trial(number).set_user_attr(WHY, why[:2000])
        try:
            self._study.tell(number, list(values) or None, TrialState[state.upper()])
        except RuntimeError:  # how an exhaustive sampler says that this was the last combination
            if not self.trials()[number].state.is_finished():
                raise

    def facts(self, asked: Asked) -> dict[str, Any]:
        """For trial.json in the run's directory, see lab.search.pruning."""
        return {
            "study": self.name,
            "storage": self.config.storage,
            "trial": asked.number,
            "params": asked.params,
            "objective": self.objectives[0].key,
            "pruner": self.config.pruner if self.prunes else None,
        }

    def _values_of(self, key: str) -> int:
        """How many values a key can take; 0: no end of them."""
        distribution: Any = self.space.swept[key]
        if hasattr(distribution, "choices"):
            return len(distribution.choices)
        step = getattr(distribution, "step", None)
        return round((distribution.high - distribution.low) / step) + 1 if step else 0


def _suggest(trial: Trial, key: str, distribution: BaseDistribution) -> Any:
    """The value of a parameter: drawn now, or as it was drawn."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(distribution, CategoricalDistribution):
        return trial.suggest_categorical(key, distribution.choices)
    if isinstance(distribution, IntDistribution):
        d = distribution
        return trial.suggest_int(key, d.low, d.high, step=d.step, log=d.log)
    assert isinstance(distribution, FloatDistribution)
    return trial.suggest_float(key, distribution.low, distribution.high, step=distribution.step, log=distribution.log)


def _counts(key: str) -> bool:
    """Whether a value that all trials share is part of what they compute."""
    top = key.lstrip("~+").partition(".")[0].partition("/")[0]
    return top not in (*SURROUNDINGS, "hydra", "sweep")


def _shortly(known: Mapping[str, Any]) -> str:
    objectives = ", ".join(f"{key} {mode}" for key, mode in known["objectives"].items())
    typed = " ".join(text for key, text in known["typed"].items() if key in known["space"] or key in known["values"])
    return f"{typed}; {objectives}"
