"""Hydra plugin: the launcher of SLURM jobs. The work is in samebits.sweeps.slurm."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from hydra_plugins.samebits_sweep import EngineLauncher
from omegaconf import DictConfig


class SlurmLauncher(EngineLauncher):
    """hydra/launcher=slurm, see conf/hydra/launcher/slurm.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from shutil import which

        from samebits.errors import ConfigError
        from samebits.extras import check_installed
        from samebits.schema import typed
        from samebits.sweeps import SlurmConfig

        self.config = typed(SlurmConfig, self.options, "hydra.launcher")
        check_installed("submitit", "hydra/launcher=slurm", "slurm")
        if which("sbatch") is None:
            raise ConfigError("hydra/launcher=slurm: there is no sbatch here - start it where SLURM is")

    def run_jobs(self, work: Any) -> Any:
        from samebits.sweeps import run_on_slurm

        return run_on_slurm(work, self.config)
