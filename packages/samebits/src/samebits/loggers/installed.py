"""Check that the libraries of the config group `logger` are installed."""

from __future__ import annotations

from samebits import extras
from samebits.loggers.options import LoggerConfig


def check_installed(config: LoggerConfig) -> None:
    """Raise ConfigError if the library of a logger is not installed, or for an invalid mode of W&B."""
    if config.kind == "wandb":
        from samebits.loggers.wandb_log import choose_wandb_mode  # imports numpy

        choose_wandb_mode(config)
    for wanted, library, extra in (
        (config.kind == "wandb", "wandb", ""),
        (config.tensorboard, "tensorboard", "tensorboard"),
        (config.mlflow is not None, "mlflow", "mlflow"),
    ):
        if wanted:
            extras.check_installed(library, f"logger={library}", extra)
