"""Hydra plugin: the default sweeper and the local launcher. Imports no torch; the work is in samebits.sweeps."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from hydra.core.plugins import Plugins
from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class LedgerSweeper(Sweeper):
    """hydra/sweeper=ledger, see conf/hydra/sweeper/ledger.yaml."""

    def __init__(self, params: dict[str, Any] | None, **others: Any) -> None:
        from samebits.errors import ConfigError

        if others:  # options of another sweeper, set by an experiment
            key = next(iter(others))
            raise ConfigError(f"hydra.sweeper.{key}: hydra/sweeper=ledger has params alone - leave it out")
        if params is not None and not isinstance(params, Mapping):
            raise ConfigError(f'hydra.sweeper.params: expected a mapping, such as {{seed: "0,1,2"}}, got {params}')
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        self.project = task_function.project  # type: ignore[attr-defined] # samebits.config.run_hydra
        self.master, self.loader = config, hydra_context.config_loader
        self.chosen = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        from samebits.config import as_started
        from samebits.sweeps import sweep

        given = [f"{key}={value}" for key, value in self.params.items()]
        with as_started():
            sweep(self.project, self.master, self.loader, self.chosen, [*given, *arguments])


class EngineLauncher(Launcher):
    """Runs the jobs of this project's sweepers, `run_jobs`; Hydra's `launch` is refused."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    @abstractmethod
    def run_jobs(self, work: Any) -> Any:
        """work: samebits.sweeps.drive.Work. Returns the signal that stopped them early; None: none did."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from samebits.errors import ConfigError

        raise ConfigError(
            "hydra/launcher: this one runs the jobs of hydra/sweeper=ledger or optuna - choose one of these"
        )


class PoolLauncher(EngineLauncher):
    """hydra/launcher=pool, see conf/hydra/launcher/pool.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from samebits.schema import typed
        from samebits.sweeps import PoolConfig

        self.config = typed(PoolConfig, self.options, "hydra.launcher")

    def at_once(self, num_jobs: int) -> int:
        from samebits.sweeps import Leases

        return Leases(self.config.jobs_at_once, self.config.gpus_per_job, num_jobs).at_once

    def run_jobs(self, work: Any) -> Any:
        from samebits.sweeps import run_in_pool

        return run_in_pool(work, self.config)
