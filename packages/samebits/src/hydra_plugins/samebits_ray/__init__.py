"""Hydra plugin: the launcher for Ray clusters. The implementation is in samebits.sweeps.ray_cluster."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from hydra_plugins.samebits_sweep import EngineLauncher
from omegaconf import DictConfig


class RayLauncher(EngineLauncher):
    """The launcher hydra/launcher=ray, see conf/hydra/launcher/ray.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Check the options, and that Ray is installed."""
        from samebits.extras import check_installed
        from samebits.schema import typed
        from samebits.sweeps import RayConfig

        self.config = typed(RayConfig, self.options, "hydra.launcher")
        check_installed("ray", "hydra/launcher=ray", "ray")

    def run_jobs(self, work: Any) -> Any:
        """Run the jobs as tasks of the cluster."""
        from samebits.sweeps import run_on_ray

        return run_on_ray(work, self.config)
