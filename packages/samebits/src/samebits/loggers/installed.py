"""Check that the libraries of the config group `logger` are installed."""

from __future__ import annotations

from samebits import extras
from samebits.errors import ConfigError
from samebits.loggers.options import LoggerConfig


def check_installed(config: LoggerConfig) -> None:
    """Raise ConfigError if a logger's library is not installed, or if W&B's mode is invalid or requires a key."""
    if config.kind == "wandb":
        from samebits.loggers.wandb_log import choose_wandb_mode, has_wandb_key  # imports numpy

        if choose_wandb_mode(config) == "online" and not has_wandb_key():
            raise ConfigError(
                "logger.mode=online: W&B has no API key - run `./run python -m wandb login`, set WANDB_API_KEY, or use "
                "logger.mode=offline"
            )
    for wanted, library, extra in (
        (config.kind == "wandb", "wandb", ""),
        (config.tensorboard, "tensorboard", "tensorboard"),
        (config.mlflow is not None, "mlflow", "mlflow"),
    ):
        if wanted:
            extras.check_installed(library, f"logger={library}", extra)
