"""Hydra plugin: the launcher of a Ray cluster's tasks. The work is in multirun.ray_cluster."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.engine_sweep import EngineLauncher


class RayLauncher(EngineLauncher):
    """hydra/launcher=ray, see conf/hydra/launcher/ray.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from engine.extras import check_installed
        from engine.schema import typed
        from multirun import RayConfig

        self.config = typed(RayConfig, self.options, "hydra.launcher")
        check_installed("ray", "hydra/launcher=ray", "ray")

    def run_jobs(self, work: Any) -> Any:
        from multirun import run_on_ray

        return run_on_ray(work, self.config)
