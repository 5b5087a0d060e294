"""Hydra plugin: the launcher for SLURM. The implementation is in samebits.sweeps.slurm."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from hydra_plugins.samebits_sweep import EngineLauncher
from omegaconf import DictConfig


class SlurmLauncher(EngineLauncher):
    """The launcher hydra/launcher=slurm, see conf/hydra/launcher/slurm.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Check the options, and that submitit and sbatch are installed."""
        from shutil import which

        from samebits.errors import ConfigError
        from samebits.extras import check_installed
        from samebits.schema import typed
        from samebits.sweeps import SlurmConfig

        self.config = typed(SlurmConfig, self.options, "hydra.launcher")
        check_installed("submitit", "hydra/launcher=slurm", "slurm")
        if which("sbatch") is None:
            raise ConfigError("hydra/launcher=slurm: sbatch is not installed - start the sweep on a SLURM login node")

    def run_jobs(self, work: Any) -> Any:
        """Run the jobs as batch jobs."""
        from samebits.sweeps import run_on_slurm

        return run_on_slurm(work, self.config)
