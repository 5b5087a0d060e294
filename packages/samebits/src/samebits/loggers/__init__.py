"""What a run logs, and where to: its directory, the screen, TensorBoard, MLflow, W&B. Imports no torch.

Given: the group `logger`, values, pictures and tables by the number of the step. Returned: a `Logger`.

Promised: `Logger` is the null object, `RunLogger` writes metrics.jsonl, train.log, media, the progress bar and, from
threads and a process, TensorBoard, MLflow and W&B, which neither delay nor end a run. What W&B did not get is sent
later from the run's directory, once (`upload_run`), which notes in its wandb/ what the server has confirmed.

Raised: ConfigError for what the user asked in vain, RunFailed for an upload that failed.

    logger, media             logged values, pictures
    background, *_log         threads for TensorBoard and MLflow; what W&B is told
    wandb_upload, wandb_stop  the process that sends a run to W&B; a run that was stopped there
    wandb_later               what W&B lacks of runs, sent when somebody asks
    options, installed        what a user may set; whether its libraries are there
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.loggers.installed import check_installed
    from samebits.loggers.logger import Logger, RunLogger, check_numbers, log_to
    from samebits.loggers.media import Audio, Histogram, Table, grid
    from samebits.loggers.mlflow_log import sync_mlflow
    from samebits.loggers.options import LoggerConfig
    from samebits.loggers.wandb_log import sync_command
    from samebits.loggers.wandb_stop import WANDB, stopped_by_wandb
    from samebits.loggers.wandb_sync import (
        check_online,
        logs_to_wandb,
        mode_of_run,
        start_run_in_group,
        upload_run,
        write_offline,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
