"""Log a run to its directory, the terminal, TensorBoard, MLflow, a csv file and W&B. Does not import torch.

Input: the config group `logger`; values, images and tables with the step they belong to. Output: a `Logger`.

Guarantees: `Logger` is the null object; `RunLogger` writes metrics.jsonl, train.log, media and the progress bar.
Threads write to TensorBoard, MLflow and metrics.csv and a separate process to W&B, so that these neither delay nor end
a run. Data that W&B did not receive can be sent later from the run directory (`upload_run`); the directory's wandb/
records what the server has confirmed, so nothing is sent twice.

Errors: ConfigError for a logger that cannot be used, RunFailed for an upload that failed.

    logger, media                       logged values; images, tables and other media
    background                          the base class of the threads
    tensorboard_log, mlflow_log         the threads for TensorBoard and MLflow
    csv_log                             the thread for metrics.csv
    wandb_log, wandb_upload             the W&B arguments of a run; the process that sends it
    wandb_stop                          runs that were stopped on W&B's server
    wandb_sync                          uploads on request (./run sync)
    options, installed                  the schema of the group; whether its libraries are installed
"""

from typing import TYPE_CHECKING

from samebits.lazy_imports import lazy_getattr

if TYPE_CHECKING:
    from samebits.loggers.installed import check_installed as check_installed
    from samebits.loggers.logger import (
        Logger as Logger,
        RunLogger as RunLogger,
        check_numbers as check_numbers,
        log_to as log_to,
    )
    from samebits.loggers.media import Audio as Audio, Histogram as Histogram, Svg as Svg, Table as Table, grid as grid
    from samebits.loggers.mlflow_log import sync_mlflow as sync_mlflow
    from samebits.loggers.options import LoggerConfig as LoggerConfig
    from samebits.loggers.wandb_log import check_wandb_key as check_wandb_key, sync_command as sync_command
    from samebits.loggers.wandb_stop import WANDB as WANDB, stopped_by_wandb as stopped_by_wandb
    from samebits.loggers.wandb_sync import (
        check_online as check_online,
        logs_to_wandb as logs_to_wandb,
        mode_of_run as mode_of_run,
        start_run_in_group as start_run_in_group,
        upload_run as upload_run,
        write_offline as write_offline,
    )
else:
    __getattr__ = lazy_getattr(__name__, __file__)
