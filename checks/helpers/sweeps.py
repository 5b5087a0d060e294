"""Shared by the tests of sweeps: start one as a user does, with faults where a test wants them, and read its jobs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from common import QUICK, ROOT

from samebits.testing import result, status
from samebits.testing.processes import called, importing

SWEEP = ("-m", *QUICK, "trainer.max_steps=6", "trainer.log_every=3")
# without pictures, which test_report.py is about: drawing takes longer than all else of a small sweep
PLAIN = """
import sys
sys.modules["matplotlib"] = None
sys.argv = ["train.py", *{arguments!r}]
import train
sys.exit(train.main())
"""
# {fault} happens in the jobs with these seeds, or in the one with the directory {key}, in its step {step}
FAULTY = """
import ctypes, os, resource, signal, sys, time
sys.modules["matplotlib"] = None
sys.argv = ["train.py", *{arguments!r}]
import lab.objective, samebits.process.parent, train
from omegaconf import OmegaConf

forward_loss, run, seen = lab.objective.forward_loss, samebits.process.parent.run, dict(calls=0, here=False)

def noted(program, run_dir, *more):
    seen["seed"] = OmegaConf.load(run_dir / "config.yaml").seed
    seen["here"] = run_dir.name == {key!r} or seen["seed"] in {seeds} and not {key!r}
    run(program, run_dir, *more)

def faulty(*args):
    seen["calls"] += 1
    if seen["here"] and seen["calls"] == {step}:
        {fault}
    return forward_loss(*args)

samebits.process.parent.run, lab.objective.forward_loss = noted, faulty
sys.exit(train.main())
"""


def faulty_command(
    fault: str, *arguments: str, key: str | None = None, step: int = 3, seeds: Sequence[int] = (1,)
) -> list[str]:
    code = FAULTY.format(arguments=list(arguments), fault=fault, key=key, step=step, seeds=list(seeds))
    return [sys.executable, "-c", code]


def plain_command(*arguments: str) -> list[str]:
    return [sys.executable, "-c", PLAIN.format(arguments=list(arguments))]


def environment() -> dict[str, str]:
    return importing(ROOT / "src")


def call(*arguments: str, code: int | None = 0, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
    return called(plain_command(*arguments), code, cwd=cwd, env=environment())


def call_faulty(
    fault: str, *arguments: str, code: int | None = 0, seeds: Sequence[int] = (1,)
) -> subprocess.CompletedProcess[str]:
    return called(faulty_command(fault, *arguments, seeds=seeds), code, cwd=ROOT, env=environment())


def job_dirs(sweep: Path) -> list[Path]:
    return sorted(path.parent for path in sweep.glob("*/config.yaml"))


def book(sweep: Path) -> dict[str, Any]:
    return json.loads((sweep / "sweep.json").read_text())


def states(sweep: Path) -> list[str]:
    """By the job's number."""
    return [status(sweep / job["key"])["status"] for job in book(sweep)["jobs"]]


def results(sweep: Path) -> dict[str, Any]:
    """{job: its result without times and places}"""
    changing = ("seconds", "best_checkpoint", "balance")
    found = {path.name: result(path) for path in job_dirs(sweep)}
    return {key: {k: v for k, v in r.items() if k not in changing} for key, r in found.items()}


def ended_at(sweep: Path) -> dict[str, int]:
    """{finished job: when its result was written}"""
    done = [path for path in job_dirs(sweep) if status(path)["status"] == "finished"]
    return {path.name: (path / "result.json").stat().st_mtime_ns for path in done}
