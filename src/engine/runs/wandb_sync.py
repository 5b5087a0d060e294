"""Runs that were logged offline, to W&B's server; and the summary of a sweep, as a small run of its own.

A run that has one offline directory is W&B's to upload (wandb sync): with system metrics, media and artifacts. One that
was resumed has several of one id, with steps in them that were done twice, and the server would show them twice. It is
written anew from metrics.jsonl, the truth, over whatever the server has under its id: each step once, none lost.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from engine.errors import RunFailed
from engine.files import records
from engine.runs import directory
from engine.runs.wandb_log import begin, choose_mode, describe_run, end, log_artifact, log_step, reachable
from engine.sweeps.report.analyse import best_group, config_keys, counts, groups, is_failure
from engine.sweeps.report.best import override_list
from engine.sweeps.report.read import METRICS, Study, read, read_job

REPLAYED = "replayed.json"  # in a run's wandb/: what was sent


def offline_parts(run_dir: Path) -> list[Path]:
    """The directories that W&B made for a run, one for each time that it was started, oldest first."""
    return sorted((run_dir / "wandb").glob("*run-*-*"), key=lambda path: path.name.split("run-")[1])


def plan(run_dir: Path) -> str:
    """sync: W&B's own upload; replay; nothing: it is there, or was never meant for W&B; running: later."""
    status = directory.read_json(run_dir / directory.STATUS).get("status")
    if status == "running" and directory.is_claimed(run_dir):
        return "running"
    parts = offline_parts(run_dir)
    offline = [part for part in parts if part.name.startswith("offline-")]
    if not offline:
        return "nothing"
    if len(parts) == 1:
        return "nothing" if list(parts[0].glob("*.synced")) else "sync"
    sent = directory.read_json(run_dir / "wandb" / REPLAYED)
    return "nothing" if sent == _sent(run_dir) else "replay"


def sync(parts: list[Path]) -> str:
    """Upload with W&B's own command -> what was done. Raises RunFailed."""
    beside = Path(sys.executable).with_name("wandb")
    command = str(beside) if beside.exists() else shutil.which("wandb")
    if command is None:
        raise RunFailed("the command wandb is not there; pip install wandb")
    if status := subprocess.run([command, "sync", "--yes", *map(str, parts)]).returncode:
        raise RunFailed(f"wandb sync ended with status {status}")
    return "uploaded by wandb sync"


def replay(run_dir: Path, mode: str, folder: Path | None = None) -> str:
    """Write the run into one W&B run of its id -> what was done. mode: online, or offline to look at it (wandb leet).
    folder: for W&B's own files, which an upload needs no longer."""
    logger, arguments = describe_run(run_dir)
    status = read_job(run_dir, 0, ()).status
    run = begin(arguments, folder or run_dir, mode, logger.timeout_s)
    for _, record in records(run_dir / METRICS):
        step, when = record.pop("step"), record.pop("time")
        known = {key: value for key, value in record.items() if value is not None}
        log_step(run, step, {**known, "_timestamp": when})
    result = directory.read_json(run_dir / directory.RESULT)
    run.summary.update({f"final/{key}": value for key, value in result.items() if "/" in key})
    if logger.artifact and (best := own_checkpoint(run_dir, result)) is not None:
        log_artifact(run, result | {"best_checkpoint": str(best)})
    end(run, status)
    if mode == "online":
        directory.write_json(run_dir / "wandb" / REPLAYED, _sent(run_dir))
    return "written as one run"


def own_checkpoint(run_dir: Path, result: dict[str, Any]) -> Path | None:
    """The best checkpoint that result.json names, of this run directory: what else it may name is not uploaded."""
    path = run_dir / "checkpoints" / Path(str(result.get("best_checkpoint", ""))).name
    inside = path.resolve().parent == (run_dir.resolve() / "checkpoints")
    return path if "best_checkpoint" in result and inside and path.exists() else None


def _sent(run_dir: Path) -> dict[str, Any]:
    """What a replay depends on: the same again needs no upload."""
    status = directory.read_json(run_dir / directory.STATUS)
    text = (run_dir / METRICS).read_bytes() if (run_dir / METRICS).exists() else b""
    return {"status": status.get("status"), "metrics": hashlib.sha256(text).hexdigest()}


def summarise(sweep_dir: Path, mode: str | None = None, folder: Path | None = None) -> str | None:
    """The group's summary: tables of jobs and configurations, counts and the best, as one run of the sweep's group; the
    same id each time, so that a later one takes its place. mode: online, offline, or as the jobs' config says.
    -> its name; None: the sweep logs nothing to W&B."""
    import wandb

    study = read([sweep_dir])
    begun = [job for job in study.jobs if job.config]
    if not begun or begun[0].config.get("logger.kind") != "wandb":
        return None
    logger, arguments = describe_run(begun[0].path)
    mode = mode or choose_mode(logger)
    if mode == "online" and not reachable(3.0):
        mode = "offline"
    name = f"{study.name}: summary"
    about = {"sweep": study.name, "overrides": study.typed, "directory": str(sweep_dir)}
    arguments |= {"id": _summary_id(study), "name": name, "job_type": "summary", "config": about}
    run = begin(arguments, folder or sweep_dir, mode, logger.timeout_s)
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
    """`summarise` in a process of its own, as W&B changes the process it is in; bounded -> an error's last line."""
    command = [sys.executable, str(Path(__file__).parents[2] / "sync.py"), "--summary", str(sweep_dir)]
    environment = {name: value for name, value in os.environ.items() if name != "WANDB_RUN_ID"}
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit_s, env=environment)
    except subprocess.TimeoutExpired:
        return f"W&B gave no answer within {limit_s:.0f} s"
    return None if done.returncode == 0 else (done.stderr.strip().splitlines() or ["it ended without a word"])[-1]
