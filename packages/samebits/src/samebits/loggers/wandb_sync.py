"""Send to W&B what it lacks of runs, when somebody asks for it, and begin a W&B run of several runs' own."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from samebits.errors import ConfigError, RunFailed
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
from samebits.loggers.wandb_upload import Feed, begin_wandb, confirmed, finish_wandb, send_wandb, sender_of, status_of
from samebits.project import Project
from samebits.runs import is_claimed
from samebits.saved import read_config
from samebits.status import METRICS

RUN_S = 1800.0  # for what one run lacks


def logs_to_wandb(project: Project, run_dir: Path) -> bool:
    """Whether a run does, or cannot be read, which upload_run then says."""
    try:
        return bool(read_config(project, run_dir).logger.kind == "wandb")
    except (ConfigError, RunFailed):
        return True


def upload_run(project: Project, run_dir: Path, anew: bool) -> str | None:
    """Send what W&B lacks of a run, in a process of its own, so that wandb can hang or end alone. Returns a line for
    the user; None if the record says that all is there, or the run does not log to W&B. Raises RunFailed."""
    if not anew and (confirmed(run_dir) or read_config(project, run_dir).logger.kind != "wandb"):
        return None
    running = is_claimed(run_dir)
    if running and sender_of(run_dir) is not None:
        return "is running, and sends by itself"
    if not anew and status_of(run_dir) == "queued" and not (run_dir / METRICS).exists():
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
            raise RunFailed(f"W&B gave no answer within {RUN_S:.0f} s") from None
    said = (done.stdout.strip().splitlines() or [f"ended with status {done.returncode}"])[-1]
    if done.returncode:
        raise RunFailed(f"{said} (wandb's own lines: {output.name})")
    return f"{said}; it is running, again later" if running else said


def write_offline(project: Project, run_dir: Path, folder: Path) -> str:
    """Write metrics.jsonl into an offline W&B run, to view it (wandb leet)."""
    run, _, _ = send_wandb(project, run_dir, Feed(run_dir), folder, "offline")
    finish_wandb(project, run, run_dir, status_of(run_dir))
    return "written as an offline run"


def check_online() -> None:
    """ConfigError where W&B is not to be sent to, or its server cannot be reached."""
    if auto_wandb_mode() != "online":
        raise ConfigError(
            "no key of W&B's is configured (wandb login, or WANDB_API_KEY), or W&B is told to be offline "
            "(WANDB_MODE, or `wandb offline`, which `wandb online` takes back)"
        )
    if not wandb_reachable(10.0):
        raise ConfigError("W&B's server cannot be reached (WANDB_BASE_URL, if it is one of your own)")


def mode_of_run(project: Project, run_dir: Path) -> str:
    """Return online, offline or disabled, of a run that logs to W&B, on this machine."""
    return choose_wandb_mode(wandb_arguments(project, run_dir)[0])


def start_run_in_group(
    project: Project, run_dir: Path, arguments: dict[str, Any], folder: Path, mode: str | None
) -> Any:
    """Return a new W&B run in the project and group of a run that logs to W&B. arguments: of wandb.init, its own. mode:
    online, offline; None: as that run's. Raise RunFailed where the server cannot be reached."""
    logger, known = wandb_arguments(project, run_dir)
    mode = mode or choose_wandb_mode(logger)
    if mode == "online" and not wandb_reachable(3.0):
        raise RunFailed("W&B's server cannot be reached")
    return begin_wandb(known | arguments, folder, mode, logger.timeout_s)
