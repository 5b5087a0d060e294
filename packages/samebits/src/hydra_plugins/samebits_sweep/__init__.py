"""Hydra plugin: the default sweeper and the local launcher. Does not import torch; the implementation is in
samebits.sweeps."""

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
    """The sweeper hydra/sweeper=ledger, see conf/hydra/sweeper/ledger.yaml."""

    def __init__(self, params: dict[str, Any] | None, **others: Any) -> None:
        from samebits.errors import ConfigError

        if others:  # options of another sweeper, set by an experiment
            key = next(iter(others))
            raise ConfigError(f"hydra.sweeper.{key}: hydra/sweeper=ledger has only params - remove it")
        if params is not None and not isinstance(params, Mapping):
            raise ConfigError(f'hydra.sweeper.params: expected a mapping, such as {{seed: "0,1,2"}}, got {params}')
        self.params = params or {}

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the project and create the launcher. Called by Hydra."""
        self.project = task_function.project  # type: ignore[attr-defined] # samebits.config.run_hydra
        self.master, self.loader = config, hydra_context.config_loader
        self.chosen = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Run the sweep. Called by Hydra."""
        from samebits.config import as_started
        from samebits.sweeps import sweep

        given = [f"{key}={value}" for key, value in self.params.items()]
        with as_started():
            sweep(self.project, self.master, self.loader, self.chosen, [*given, *arguments])


class EngineLauncher(Launcher):
    """The base class of launchers for this project's sweepers, which call `run_jobs`; Hydra's `launch` raises
    ConfigError."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    @abstractmethod
    def run_jobs(self, work: Any) -> Any:
        """Run the jobs. work: samebits.sweeps.drive.Work. Return the signal that stopped them early, or None."""

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        """Raise ConfigError: other sweepers of Hydra cannot use this launcher."""
        from samebits.errors import ConfigError

        raise ConfigError("hydra/launcher: this launcher requires hydra/sweeper=ledger or optuna - choose one of them")


class PoolLauncher(EngineLauncher):
    """The launcher hydra/launcher=pool, see conf/hydra/launcher/pool.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Check the options."""
        from samebits.schema import typed
        from samebits.sweeps import PoolConfig

        self.config = typed(PoolConfig, self.options, "hydra.launcher")

    def run_jobs(self, work: Any) -> Any:
        """Run the jobs on this machine."""
        from samebits.sweeps import run_in_pool

        return run_in_pool(work, self.config)
