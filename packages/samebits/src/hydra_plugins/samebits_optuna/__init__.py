"""Hydra plugin: the sweeper for searches. Imports neither torch nor Optuna; the implementation is in
samebits.sweeps.search."""

from typing import Any

from hydra.core.plugins import Plugins
from hydra.plugins.sweeper import Sweeper
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig, OmegaConf


class OptunaSweeper(Sweeper):
    """The sweeper hydra/sweeper=optuna, see conf/hydra/sweeper/optuna.yaml."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Store the project and create the launcher. Called by Hydra."""
        self.project = task_function.project  # type: ignore[attr-defined] # samebits.config.run_hydra
        self.master, self.loader = config, hydra_context.config_loader
        if config.hydra.sweeper.n_jobs is not None and "jobs_at_once" in config.hydra.launcher:
            config = config.copy()
            OmegaConf.set_readonly(config.hydra, False)
            config.hydra.launcher.jobs_at_once = config.hydra.sweeper.n_jobs
        self.chosen = Plugins.instance().instantiate_launcher(
            hydra_context=hydra_context, task_function=task_function, config=config
        )

    def sweep(self, arguments: list[str]) -> Any:
        """Run the search. Called by Hydra."""
        from samebits.config import as_started
        from samebits.sweeps import run_search

        with as_started():
            run_search(self.project, self.master, self.loader, self.chosen, arguments, self.options)
