"""Config groups of this library, and the groups that the processes of a run read."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from omegaconf import DictConfig

from samebits.device import HardwareConfig, check_options
from samebits.loggers import LoggerConfig, check_installed
from samebits.parallel import Strategy
from samebits.profiling import ProfilerConfig
from samebits.world import ProcessConfig


@dataclass(frozen=True, kw_only=True)
class EngineGroups:
    """Base class of a project's schema and of its typed config."""

    process: ProcessConfig = field(default_factory=ProcessConfig)
    hardware: HardwareConfig
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)

    def check_groups(self, trainer: Strategy, trains: bool) -> None:
        """Raise ConfigError for options that exclude each other or, if trains, for a logger that is not installed."""
        check_options(trainer, self.hardware)
        if trains:
            check_installed(self.logger)

    @property
    def groups(self) -> dict[str, Any]:
        """Return {name: options} of the groups of this library."""
        names = ("process", "hardware", "logger", "profiler")
        return {name: getattr(self, name) for name in names}


class Options(Protocol):
    """The groups of a checked config that the processes of a run read. given: the whole config, as in config.yaml."""

    @property
    def given(self) -> DictConfig:
        """Return the whole config, as in config.yaml."""

    @property
    def process(self) -> ProcessConfig:
        """Return the options of the group `process`."""

    @property
    def hardware(self) -> HardwareConfig:
        """Return the options of the group `hardware`."""

    @property
    def trainer(self) -> Strategy:
        """Return the options of the group `trainer`."""

    @property
    def logger(self) -> LoggerConfig:
        """Return the options of the group `logger`."""
