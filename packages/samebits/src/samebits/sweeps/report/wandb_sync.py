"""Send to W&B what it lacks of runs, and a sweep's summary as a W&B run."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from samebits.config import read_config
from samebits.errors import ConfigError, RunFailed
from samebits.files import no_links, read_text
from samebits.loggers import (
    Feed,
    begin_wandb,
    confirmed,
    finish_wandb,
    send_wandb,
    sender_of,
    status_of,
    sync_command,
    upload_command,
    upload_environment,
    wandb_arguments,
)
from samebits.project import Project
from samebits.runs import METRICS, is_claimed
from samebits.sweeps.report.analyse import best_group, counts, is_failure
from samebits.sweeps.report.best import override_list
from samebits.sweeps.report.read import Study
from samebits.sweeps.report.study import read_study
from samebits.sweeps.report.text import group_rows, job_rows

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
    (run_dir / "wandb").mkdir(exist_ok=True)
    with open(run_dir / "wandb" / "upload.log", "a", opener=no_links) as output:
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


def upload_summary(project: Project, sweep_dir: Path, mode: str, folder: Path | None = None) -> str | None:
    """Log a sweep's summary (tables of jobs and configurations, counts, the best) as one W&B run of the sweep's group,
    always with the same id, so that a later one replaces it. mode: online or offline. Returns its name; None if
    the sweep does not log to W&B."""
    import wandb

    study = read_study(project, [sweep_dir])
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return None
    logger, arguments = wandb_arguments(project, begun[0].path)
    name = f"{study.name}: summary"
    about = {"sweep": study.name, "overrides": study.typed, "directory": str(sweep_dir)}
    same = hashlib.sha256(f"{study.name} {study.created}".encode()).hexdigest()[:8]
    arguments |= {"id": same, "name": name, "job_type": "summary", "config": about}
    run = begin_wandb(arguments, folder or sweep_dir, mode, logger.timeout_s)
    run.summary.update(_facts(study))

    def table(head: list[str], rows: list[list[Any]]) -> Any:
        plain = [[cell if isinstance(cell, (int, float)) else str(cell or "") for cell in row] for row in rows]
        return wandb.Table(columns=[*head], data=plain, allow_mixed_types=True)

    run.log({"table/configurations": table(*group_rows(study)), "table/jobs": table(*job_rows(study))})
    run.finish(exit_code=0)
    return name


def _facts(study: Study) -> dict[str, Any]:
    facts: dict[str, Any] = {"jobs": len(study.jobs), **{f"jobs/{k}": n for k, n in counts(study).items()}}
    facts["jobs/without a score"] = sum(is_failure(job, study.objective) for job in study.jobs)
    if best := best_group(study):
        facts |= {"best/overrides": " ".join(override_list(best)), "best/n": len(best.scores(study.objective))}
        facts |= {f"best/{o.key}": best.mean(o) for o in study.objectives}
    return facts


def sync_apart(project: Project, sweep_dir: Path, limit_s: float) -> str | None:
    """At a sweep's end: send what its runs lack (the machine of a SLURM job is gone with the job) and the summary, in a
    process that goes on after limit_s. Returns an error's last line; None if there is none yet."""
    command = [sys.executable, str(project.root / "src/sync.py"), str(sweep_dir)]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_RUN_ID"}
    log = sweep_dir / "sync.log"
    with open(log, "w", opener=no_links) as output:
        streams: Any = {"stdin": subprocess.DEVNULL, "stdout": output, "stderr": output}
        process = subprocess.Popen(command, env=environment, start_new_session=True, **streams)
    try:
        status = process.wait(limit_s)
    except subprocess.TimeoutExpired:
        process.returncode = 0  # it goes on alone
        return f"W&B is still being sent to; if it does not get through: {sync_command(sweep_dir)}"
    said = read_text(log).strip().splitlines()
    return None if status == 0 else f"{(said or ['no word'])[-1]}; again: {sync_command(sweep_dir)}"
