"""Send to W&B on request what is missing there of a run (./run sync), and create W&B runs for groups of runs."""

from __future__ import annotations

import logging
import subprocess
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError, RunFailed
from samebits.extras import check_installed
from samebits.files import no_links
from samebits.loggers.wandb_log import (
    FOLDER,
    OUTPUT,
    auto_wandb_mode,
    choose_wandb_mode,
    upload_command,
    upload_environment,
    wandb_arguments,
    wandb_reachable,
)
from samebits.loggers.wandb_upload import Feed, begin_wandb, confirmed, finish_wandb, send_wandb, sender_of
from samebits.project import Project
from samebits.runs import current_status, is_running
from samebits.saved import read_config
from samebits.status import METRICS

RUN_S = 1800.0  # seconds to send one run


def logs_to_wandb(project: Project, run_dir: Path) -> bool:
    """Return True if the run logs to W&B, or if its config cannot be read; upload_run then reports the error."""
    try:
        return bool(read_config(project, run_dir).logger.kind == "wandb")
    except (ConfigError, RunFailed):
        return True


def upload_run(project: Project, run_dir: Path, anew: bool) -> str | None:
    """Send what is missing of a run to W&B, in a separate process, so that wandb can hang or crash without effect here.

    anew: send everything as a new W&B run. Return a line for the user; None if everything was confirmed before, or the
    run does not log to W&B. Raise RunFailed if the upload failed.
    """
    if not anew and (confirmed(run_dir) or read_config(project, run_dir).logger.kind != "wandb"):
        return None
    running = is_running(run_dir)
    if running and sender_of(run_dir) is not None:
        return "is running, and sends its data itself"
    if not anew and current_status(run_dir) == "queued" and not (run_dir / METRICS).exists():
        return None
    (run_dir / FOLDER).mkdir(exist_ok=True)
    with open(run_dir / FOLDER / OUTPUT, "a", opener=no_links) as output:
        command = upload_command(project, run_dir, "anew" if anew else "sync")
        try:
            done = subprocess.run(
                command, env=upload_environment(project.root), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                stderr=output, text=True, timeout=RUN_S,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            raise RunFailed(f"W&B did not answer within {RUN_S:.0f} s") from None
    said = (done.stdout.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
    if done.returncode:
        raise RunFailed(f"{said} (output of wandb: {output.name})")
    return f"{said}; it is still running, so repeat this later" if running else said


def write_offline(project: Project, run_dir: Path, folder: Path) -> str:
    """Write metrics.jsonl into an offline W&B run, to view it with `wandb leet`. Return a line for the user."""
    logging.raiseExceptions = False  # on a full disk, the log of wandb would print a traceback for each of its lines
    feed = Feed(run_dir)
    run, _, _ = send_wandb(project, run_dir, feed, folder, "offline")
    finish_wandb(project, run, run_dir, feed.status)
    return "written as an offline run"


def check_online() -> None:
    """Raise ConfigError if wandb is not installed, is offline or disabled, or its server cannot be reached."""
    check_installed("wandb", "./run sync")
    if auto_wandb_mode() != "online":
        raise ConfigError(
            "W&B has no API key (run `wandb login`, or set WANDB_API_KEY), or is set to offline "
            "(by WANDB_MODE, or by `wandb offline`, which `wandb online` undoes)"
        )
    if not wandb_reachable(10.0):
        raise ConfigError("W&B's server cannot be reached (if you host it yourself, set WANDB_BASE_URL)")


def mode_of_run(project: Project, run_dir: Path) -> str:
    """Return the mode on this machine of a run that logs to W&B: online, offline or disabled."""
    return choose_wandb_mode(wandb_arguments(project, run_dir)[0])


def start_run_in_group(
    project: Project, run_dir: Path, arguments: dict[str, Any], folder: Path, mode: str | None
) -> Any:
    """Return a new W&B run in the project and group of a run that logs to W&B.

    arguments: arguments of wandb.init that replace those of that run. mode: online or offline; None: the mode of that
    run. Raise RunFailed if the server cannot be reached.
    """
    logger, known = wandb_arguments(project, run_dir)
    mode = mode or choose_wandb_mode(logger)
    if mode == "online" and not wandb_reachable(3.0):
        raise RunFailed("W&B's server cannot be reached")
    return begin_wandb(known | arguments, folder, mode, logger.timeout_s)
