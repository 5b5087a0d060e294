"""Hydra plugin: the launcher of a Ray cluster's tasks. The work is in engine.sweeps.ray_cluster."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class RayLauncher(Launcher):
    """hydra/launcher=ray, see conf/hydra/launcher/ray.yaml."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from engine.config import typed
        from engine.extras import check_installed
        from engine.sweeps import RayConfig

        self.config = typed(RayConfig, self.options, "hydra.launcher")
        check_installed("ray", "hydra/launcher=ray", "ray")

    def run_jobs(self, work: Any) -> Any:
        from engine.sweeps import run_on_ray

        return run_on_ray(work, self.config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from engine.errors import ConfigError

        raise ConfigError("hydra/launcher=ray: runs the jobs of hydra/sweeper=ledger or optuna - choose one")
