"""Hydra plugin: the launcher of SLURM jobs. The work is in multirun.slurm."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig

from hydra_plugins.engine_sweep import EngineLauncher


class SlurmLauncher(EngineLauncher):
    """hydra/launcher=slurm, see conf/hydra/launcher/slurm.yaml."""

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from shutil import which

        from engine.errors import ConfigError
        from engine.extras import check_installed
        from engine.schema import typed
        from multirun import SlurmConfig

        self.config = typed(SlurmConfig, self.options, "hydra.launcher")
        check_installed("submitit", "hydra/launcher=slurm", "slurm")
        if which("sbatch") is None:
            raise ConfigError("hydra/launcher=slurm: there is no sbatch here - start it where SLURM is")

    def run_jobs(self, work: Any) -> Any:
        from multirun import run_on_slurm

        return run_on_slurm(work, self.config)
