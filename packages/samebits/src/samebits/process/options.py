"""The engine's groups of a config, and what a run's processes read of it."""

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
    """Base of a project's whole schema, and of its typed config."""

    process: ProcessConfig = field(default_factory=ProcessConfig)
    hardware: HardwareConfig
    logger: LoggerConfig = field(default_factory=LoggerConfig)
    profiler: ProfilerConfig = field(default_factory=ProfilerConfig)

    def check_groups(self, trainer: Strategy, trains: bool) -> None:
        """Raise ConfigError for options that do not go together, and for a logger that is not installed if it logs."""
        check_options(trainer, self.hardware)
        if trains:
            check_installed(self.logger)

    @property
    def groups(self) -> dict[str, Any]:
        names = ("process", "hardware", "logger", "profiler")
        return {name: getattr(self, name) for name in names}


class Options(Protocol):
    """The groups of a checked config that a run's processes read. given: the whole, as config.yaml has it."""

    @property
    def given(self) -> DictConfig: ...
    @property
    def process(self) -> ProcessConfig: ...
    @property
    def hardware(self) -> HardwareConfig: ...
    @property
    def trainer(self) -> Strategy: ...
    @property
    def logger(self) -> LoggerConfig: ...
