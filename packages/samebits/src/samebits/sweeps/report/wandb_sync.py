"""Send to W&B a sweep's summary as a W&B run, and at a sweep's end what it lacks of the runs."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from samebits.files import no_links, read_text
from samebits.loggers import start_run_in_group, sync_command
from samebits.project import Project
from samebits.sweeps.report.analyse import best_group, counts, is_failure
from samebits.sweeps.report.best import override_list
from samebits.sweeps.report.read import Study
from samebits.sweeps.report.study import read_study
from samebits.sweeps.report.text import group_rows, job_rows


def upload_summary(project: Project, sweep_dir: Path, mode: str, folder: Path | None = None) -> str | None:
    """Log a sweep's summary (tables of jobs and configurations, counts, the best) as one W&B run of the sweep's group,
    always with the same id, so that a later one replaces it. mode: online or offline. Returns its name; None if
    the sweep does not log to W&B."""
    import wandb

    study = read_study(project, [sweep_dir])
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return None
    name = f"{study.name}: summary"
    about = {"sweep": study.name, "overrides": study.typed, "directory": str(sweep_dir)}
    same = hashlib.sha256(f"{study.name} {study.created}".encode()).hexdigest()[:8]
    arguments = {"id": same, "name": name, "job_type": "summary", "config": about}
    run = start_run_in_group(project, begun[0].path, arguments, folder or sweep_dir, mode)
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
