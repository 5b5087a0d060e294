"""Whether the libraries that the config group `logger` asks for are there."""

from __future__ import annotations

from samebits import extras
from samebits.loggers.options import LoggerConfig


def check_installed(config: LoggerConfig) -> None:
    """ConfigError for a logger whose library is not there, or for a mode that W&B does not have."""
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
