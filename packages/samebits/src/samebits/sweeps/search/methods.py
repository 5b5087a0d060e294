"""The samplers and pruners that a config may name, and how they are built."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

from samebits.config import one_line
from samebits.errors import ConfigError
from samebits.extras import check_installed
from samebits.project import Project
from samebits.sweeps.options import SearchConfig
from samebits.sweeps.report import Objective
from samebits.sweeps.search.pruning import PRUNERS_ALLOWED
from samebits.sweeps.search.space import Space
from samebits.targets import build_target, check_targets, locate

ALLOWED = ("optuna.samplers.*", *PRUNERS_ALLOWED)
EXHAUSTIVE = ("BruteForceSampler", "GridSampler")
# the seed determines a quasi-random sequence, the storage the position in it: use one seed for all trials
ONE_SEED = ("QMCSampler",)
# packages that a sampler imports only when it draws
NEEDS = {"CmaEsSampler": "cmaes", "QMCSampler": "scipy", "GPSampler": "scipy"}
SAMPLER, PRUNER = "hydra.sweeper.sampler", "hydra.sweeper.pruner"


class Methods:
    """The sampler and pruner of a search. Raise ConfigError for a mistake in their config; do not open the storage.

    limit: number of trials after which the search ends.
    """

    def __init__(self, project: Project, config: SearchConfig, space: Space) -> None:
        self.project, self._config = project, config
        if not space.swept:
            raise ConfigError(
                "hydra/sweeper=optuna: nothing to search - give a key an interval, a range or a choice, "
                "'KEY=tag(log,interval(1e-4,1e-1))'"
            )
        self._kind = str(config.sampler.get("_target_")).rpartition(".")[2]
        sampler = locate(project, config.sampler.get("_target_"), SAMPLER, ALLOWED)
        self._seeded = "seed" in inspect.signature(sampler).parameters
        nodes = {"hydra": {"sweeper": {"sampler": config.sampler, "pruner": config.pruner}}}
        given = {SAMPLER: ("seed",)} if self._seeded else {}
        check_targets(project, nodes, (SAMPLER, PRUNER), (), {}, given, allowed=ALLOWED)
        if package := NEEDS.get(self._kind):
            check_installed(package, f"hydra/sweeper/sampler: {self._kind}", "optuna")
        for key, node, make in (
            (SAMPLER, config.sampler, lambda: self.sampler(0)),
            (PRUNER, config.pruner, self.pruner),
        ):
            try:
                make()
            except (ImportError, ValueError, TypeError) as error:
                raise ConfigError(f"{key}: {node['_target_']} does not accept this: {one_line(error)}") from None
        self.prunes = not config.pruner["_target_"].endswith(".NopPruner")
        self.limit = config.n_trials
        if self._kind in EXHAUSTIVE:
            self.limit = sum(1 for _ in islice(space.combinations(), config.n_trials))

    def check_pruning(self, objectives: Sequence[Objective], cfg: Mapping[str, Any]) -> None:
        """Raise ConfigError if this search cannot prune. cfg: a trial's config, as plain dicts."""
        if not self.prunes:
            return
        if len(objectives) > 1:
            raise ConfigError("hydra/sweeper/pruner: a search with several objectives cannot prune - use none")
        if not objectives[0].key.startswith("val"):  # only splits whose names begin with val are scored during training
            raise ConfigError(
                f"hydra/sweeper/pruner: {objectives[0].key} is only known after training - use none, or a val/ score "
                "as the objective"
            )
        if cfg["trainer"]["eval_every"] is None:
            raise ConfigError(
                "hydra/sweeper/pruner: pruning needs evaluations, but trainer.eval_every is null - set it "
                "(trainer.eval_every=20), or use none"
            )

    def pruner(self) -> Any:
        """Return the pruner."""
        return build_target(self.project, self._config.pruner, PRUNER, ALLOWED)

    def sampler(self, number: int) -> Any:
        """Return the sampler that draws trial `number`."""
        import numpy as np

        if self._kind == "GPSampler":
            import torch

            torch.set_num_threads(1)  # jobs are forked from this process; a forked pool of OpenMP threads hangs
        if not self._seeded:
            return build_target(self.project, self._config.sampler, SAMPLER, ALLOWED)
        seed = self._config.seed
        if self._kind not in ONE_SEED:
            seed = int(np.random.SeedSequence([seed, number]).generate_state(1)[0])
        return build_target(self.project, self._config.sampler, SAMPLER, ALLOWED, seed=seed)
