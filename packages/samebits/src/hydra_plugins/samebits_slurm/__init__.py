"""Hydra plugin: the launcher for SLURM. The implementation is in samebits.sweeps.slurm."""

from typing import Any

from hydra.types import HydraContext, TaskFunction
from hydra_plugins.samebits_sweep import EngineLauncher
from omegaconf import DictConfig


class SlurmLauncher(EngineLauncher):
    """The launcher hydra/launcher=slurm, see conf/hydra/launcher/slurm.yaml."""

    left: int | None = None  # with detach: the number of jobs that SLURM does not accept yet

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        """Check the options, and that sbatch is installed."""
        from shutil import which

        from samebits.errors import ConfigError
        from samebits.schema import typed
        from samebits.sweeps import SlurmConfig, check_sbatch_options

        self.config = typed(SlurmConfig, self.options, "hydra.launcher")
        check_sbatch_options(self.config.additional_parameters)
        if which("sbatch") is None:
            raise ConfigError("hydra/launcher=slurm: sbatch is not installed - start the sweep on a SLURM login node")

    @property
    def detached(self) -> bool:
        """Return True if the command ends while jobs run."""
        return self.config.detach

    def run_jobs(self, work: Any) -> Any:
        """Run the jobs as batch jobs, or only submit them."""
        from samebits.sweeps import run_on_slurm, submit_to_slurm

        if not self.detached:
            return run_on_slurm(work, self.config)
        self.left = submit_to_slurm(work, self.config)
        return None
