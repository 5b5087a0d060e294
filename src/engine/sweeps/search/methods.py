"""The sampler and the pruner of a search: which ones a config may name, and how they are built."""

from __future__ import annotations

import inspect
import math
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from typing import Any

from engine.config.explain import one_line
from engine.config.targets import build, check_targets, locate
from engine.errors import ConfigError
from engine.sweeps.options import SearchConfig
from engine.sweeps.search.objectives import Objective
from engine.sweeps.search.pruning import PRUNERS_ALLOWED
from engine.sweeps.search.space import Space, count_values

ALLOWED = ("optuna.samplers.*", *PRUNERS_ALLOWED)
NO_PRUNING = "optuna.pruners.NopPruner"
EXHAUSTIVE = ("BruteForceSampler", "GridSampler")
# a quasi-random sequence is fixed by the seed, the position in it by the storage: one seed for all trials
ONE_SEED = ("QMCSampler",)
NEEDS = {"CmaEsSampler": "cmaes", "QMCSampler": "scipy", "GPSampler": "scipy"}  # imported only when they draw
SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


class Methods:
    """Checks the config of sampler and pruner (ConfigError for the first mistake). Opens no storage, writes nothing."""

    def __init__(self, config: SearchConfig, space: Space) -> None:
        self._config, self._space = config, space
        if not space.swept:
            raise ConfigError(
                "hydra/sweeper=optuna: there is nothing to search - give a key an interval, a range or a choice, "
                "'optim.lr=tag(log,interval(1e-4,1e-1))'"
            )
        nodes = {"hydra": {"sweeper": {"sampler": config.sampler, "pruner": config.pruner}}}
        check_targets(nodes, (SAMPLER, PRUNER), (), {}, {SAMPLER: ("seed",)} if self._seeded else {}, allowed=ALLOWED)
        if (package := NEEDS.get(self._kind)) and find_spec(package) is None:
            raise ConfigError(f"hydra/sweeper/sampler: {self._kind} needs {package} - pip install {package}")
        for key, make in ((SAMPLER, lambda: self.sampler(0)), (PRUNER, self.pruner)):
            try:
                make()
            except (ImportError, ValueError, TypeError) as error:
                raise ConfigError(f"{key}: {self._kind_of(key)} does not accept this: {one_line(error)}") from None
        endless = [key for key, distribution in space.swept.items() if not count_values(distribution)]
        if self._kind in EXHAUSTIVE and endless:
            raise ConfigError(
                f"{space.typed[endless[0]]}: {self._kind} takes every combination, and an interval has no end of "
                "values - choose another hydra/sweeper/sampler, or a range, a choice or int(interval(...))"
            )

    def check_pruning(self, objectives: Sequence[Objective], cfg: Mapping[str, Any]) -> None:
        """ConfigError if this search cannot prune. cfg: a trial's whole config, as plain dicts."""
        if not self.prunes:
            return
        if len(objectives) > 1:
            raise ConfigError("hydra/sweeper/pruner: a search with several objectives cannot prune - use none")
        if not objectives[0].key.startswith("val"):  # val, val_hard, ...: the splits scored during training
            raise ConfigError(
                f"hydra/sweeper/pruner: {objectives[0].key} is known at a run's end only - use none, or a val/ score "
                "as the objective"
            )
        if cfg["trainer"]["eval_every"] is None:
            raise ConfigError("hydra/sweeper/pruner: prunes after evaluations, but trainer.eval_every is null")

    @property
    def prunes(self) -> bool:
        return self._config.pruner["_target_"] != NO_PRUNING

    @property
    def limit(self) -> int:
        """Number of trials at which the search ends."""
        if self._kind not in EXHAUSTIVE:
            return self._config.n_trials
        return min(self._config.n_trials, math.prod(map(count_values, self._space.swept.values())))

    def pruner(self) -> Any:
        return build(self._config.pruner, PRUNER, ALLOWED)

    def sampler(self, number: int) -> Any:
        """The sampler that draws trial `number`."""
        import numpy as np

        if self._kind == "GPSampler":
            import torch

            torch.set_num_threads(1)  # jobs are forked from this process; a forked pool of OpenMP threads hangs
        if not self._seeded:
            return build(self._config.sampler, SAMPLER, ALLOWED)
        seed = self._config.seed
        if self._kind not in ONE_SEED:
            seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return build(self._config.sampler, SAMPLER, ALLOWED, seed=seed)

    @property
    def _seeded(self) -> bool:
        target = locate(self._config.sampler.get("_target_"), SAMPLER, ALLOWED)
        return "seed" in inspect.signature(target).parameters

    @property
    def _kind(self) -> str:
        return self._kind_of(SAMPLER)

    def _kind_of(self, key: str) -> str:
        node = self._config.sampler if key == SAMPLER else self._config.pruner
        return str(node["_target_"]).rpartition(".")[2]
