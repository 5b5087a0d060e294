"""Upload offline runs to W&B's server, and write a sweep's summary as a W&B run.

A run with one offline directory is uploaded by `wandb sync`, with system metrics, media and artifacts. A resumed run
has several directories with one id, in which some steps occur twice, and the server would show them twice. It is
replayed from metrics.jsonl instead, replacing what the server has under its id: each step once, none lost.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.config import enter
from engine.errors import RunFailed
from engine.extras import missing
from engine.files import read_file, read_json, records, write_json
from engine.project import ROOT
from engine.runs import (
    METRICS,
    RESULT,
    STATUS,
    begin_wandb,
    choose_wandb_mode,
    end_wandb,
    is_claimed,
    log_wandb_artifact,
    log_wandb_step,
    wandb_arguments,
    wandb_reachable,
)
from engine.sweeps.report.analyse import best_group, config_keys, counts, groups, is_failure
from engine.sweeps.report.best import override_list
from engine.sweeps.report.read import Study, read_job, read_study

REPLAYED = "replayed.json"  # in a run's wandb/: status and hash of the metrics that were sent


def offline_parts(run_dir: Path) -> list[Path]:
    """Returns W&B's directories of a run, one for each start of it, oldest first."""
    return sorted((run_dir / "wandb").glob("*run-*-*"), key=lambda path: path.name.split("run-")[1])


def upload_plan(run_dir: Path) -> str:
    """Returns what to do: sync (`wandb sync`), replay, nothing (uploaded, or not logged to W&B), running (later)."""
    enter(run_dir)
    status = read_json(run_dir / STATUS).get("status")
    if status == "running" and is_claimed(run_dir):
        return "running"
    parts = offline_parts(run_dir)
    offline = [part for part in parts if part.name.startswith("offline-")]
    if not offline:
        return "nothing"
    if len(parts) == 1:
        return "nothing" if list(parts[0].glob("*.synced")) else "sync"
    sent = read_json(run_dir / "wandb" / REPLAYED)
    return "nothing" if sent == _sent(run_dir) else "replay"


def upload_parts(parts: list[Path]) -> str:
    """Upload with `wandb sync`. Returns a line for the user. Raises RunFailed."""
    beside = Path(sys.executable).with_name("wandb")
    command = str(beside) if beside.exists() else shutil.which("wandb")
    if command is None:
        raise RunFailed(missing("the upload", "wandb"))
    here = parts[0].resolve().parents[1]  # the run directory: wandb sync makes a folder wandb/ where it is started
    runs = [str(part.resolve()) for part in parts]
    if status := subprocess.run([command, "sync", "--yes", *runs], cwd=here).returncode:
        raise RunFailed(f"wandb sync ended with status {status}")
    return "uploaded by wandb sync"


def replay_run(run_dir: Path, mode: str, folder: Path | None = None) -> str:
    """Write metrics.jsonl into one W&B run of its id. Returns a line for the user. mode: online, or offline to view it
    (wandb leet). folder: for W&B's own files, not needed after the upload."""
    logger, arguments = wandb_arguments(run_dir)
    status = read_job(run_dir, 0, ()).status
    run = begin_wandb(arguments, folder or run_dir, mode, logger.timeout_s)
    for _, record in records(run_dir / METRICS):
        step, when = record.pop("step"), record.pop("time")
        known = {key: value for key, value in record.items() if value is not None}
        log_wandb_step(run, step, {**known, "_timestamp": when})
    result = read_json(run_dir / RESULT)
    run.summary.update({f"final/{key}": value for key, value in result.items() if "/" in key})
    if logger.artifact and (best := own_checkpoint(run_dir, result)) is not None:
        log_wandb_artifact(run, result | {"best_checkpoint": str(best)})
    end_wandb(run, status)
    if mode == "online":
        write_json(run_dir / "wandb" / REPLAYED, _sent(run_dir))
    return "written as one run"


def own_checkpoint(run_dir: Path, result: dict[str, Any]) -> Path | None:
    """Returns the best checkpoint that result.json names, only if it is in this run directory: no other is uploaded."""
    path = run_dir / "checkpoints" / Path(str(result.get("best_checkpoint", ""))).name
    inside = path.resolve().parent == (run_dir.resolve() / "checkpoints")
    return path if "best_checkpoint" in result and inside and path.exists() else None


def _sent(run_dir: Path) -> dict[str, Any]:
    """Returns what a replay depends on (status, hash of the metrics): if unchanged, no upload is needed."""
    status = read_json(run_dir / STATUS)
    text = read_file(run_dir / METRICS) if (run_dir / METRICS).exists() else b""
    return {"status": status.get("status"), "metrics": hashlib.sha256(text).hexdigest()}


def upload_summary(sweep_dir: Path, mode: str | None = None, folder: Path | None = None) -> str | None:
    """Log a sweep's summary (tables of jobs and configurations, counts, the best) as one W&B run of the sweep's group,
    always with the same id, so that a later one replaces it. mode: online, offline; None: as in the jobs' config.
    Returns its name; None if the sweep does not log to W&B."""
    import wandb

    study = read_study([sweep_dir])
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return None
    logger, arguments = wandb_arguments(begun[0].path)
    mode = mode or choose_wandb_mode(logger)
    if mode == "online" and not wandb_reachable(3.0):
        mode = "offline"
    name = f"{study.name}: summary"
    about = {"sweep": study.name, "overrides": study.typed, "directory": str(sweep_dir)}
    arguments |= {"id": _summary_id(study), "name": name, "job_type": "summary", "config": about}
    run = begin_wandb(arguments, folder or sweep_dir, mode, logger.timeout_s)
    run.summary.update(_facts(study))
    objectives = [objective.key for objective in study.objectives]
    keys = config_keys(study)
    configurations = [
        [str(group.values[key]) for key in keys]
        + [v for o in study.objectives for v in (group.mean(o), group.std(o))]
        + [len(group.scores(study.objective)), len(group.failures(study.objective))]
        for group in groups(study)
    ]
    heads: list[str | int] = [
        *keys,
        *(f"{key} {what}" for key in objectives for what in ("mean", "std")),
        "n",
        "failures",
    ]
    jobs = [
        [job.number, job.status, *(str(study.value(job, key)) for key in study.swept)]
        + [job.score(o) for o in study.objectives]
        + [job.step, job.error or ""]
        for job in study.jobs
    ]
    run.log({
        "table/configurations": wandb.Table(columns=heads, data=configurations),
        "table/jobs": wandb.Table(columns=["job", "status", *study.swept, *objectives, "step", "error"], data=jobs),
    })  # fmt: skip
    run.finish(exit_code=0)
    return name


def _facts(study: Study) -> dict[str, Any]:
    facts: dict[str, Any] = {"jobs": len(study.jobs), **{f"jobs/{k}": n for k, n in counts(study).items()}}
    facts["jobs/without a score"] = sum(is_failure(job, study.objective) for job in study.jobs)
    if best := best_group(study):
        facts |= {"best/overrides": " ".join(override_list(best)), "best/n": len(best.scores(study.objective))}
        facts |= {f"best/{o.key}": best.mean(o) for o in study.objectives}
    return facts


def _summary_id(study: Study) -> str:
    return hashlib.sha256(f"{study.name} {study.created}".encode()).hexdigest()[:8]


def summarise_apart(sweep_dir: Path, limit_s: float) -> str | None:
    """Run `summarise` in its own process, as W&B changes global state, for limit_s at most. Returns an error's last
    line; None if it went well."""
    command = [sys.executable, str(ROOT / "src/sync.py"), "--summary", str(sweep_dir)]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_RUN_ID"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return f"W&B gave no answer within {limit_s:.0f} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
