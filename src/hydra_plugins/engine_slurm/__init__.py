"""Hydra plugin: the launcher of SLURM jobs. The work is in engine.sweeps.slurm."""

from collections.abc import Sequence
from typing import Any

from hydra.core.utils import JobReturn
from hydra.plugins.launcher import Launcher
from hydra.types import HydraContext, TaskFunction
from omegaconf import DictConfig


class SlurmLauncher(Launcher):
    """hydra/launcher=slurm, see conf/hydra/launcher/slurm.yaml."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def setup(self, *, hydra_context: HydraContext, task_function: TaskFunction, config: DictConfig) -> None:
        from shutil import which

        from engine.config import typed
        from engine.errors import ConfigError
        from engine.extras import check_installed
        from engine.sweeps import SlurmConfig

        self.config = typed(SlurmConfig, self.options, "hydra.launcher")
        check_installed("submitit", "hydra/launcher=slurm", "slurm")
        if which("sbatch") is None:
            raise ConfigError("hydra/launcher=slurm: there is no sbatch here - start it where SLURM is")

    def run_jobs(self, work: Any) -> Any:
        from engine.sweeps import run_on_slurm

        return run_on_slurm(work, self.config)

    def launch(self, job_overrides: Sequence[Sequence[str]], initial_job_idx: int) -> Sequence[JobReturn]:
        from engine.errors import ConfigError

        raise ConfigError("hydra/launcher=slurm: runs the jobs of hydra/sweeper=ledger or optuna - choose one")
