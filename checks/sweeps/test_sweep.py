"""A sweep from the command line: what is written, what is run, what a second start does."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml
from common import ROOT, TRAIN
from sweeps import SWEEP, book, call, call_faulty, ended_at, job_dirs, results, states

from samebits.testing import metrics, status
from samebits.testing.processes import called, processes_with


@pytest.mark.slow
def test_start_again_extend_reorder(tmp_path: Path) -> None:
    """Four jobs, nothing to do, two more in a pool; however the same values are written. A value for all makes other
    jobs; a job alone is the one of the sweep."""
    where = f"hydra.sweep.dir={tmp_path}/lr"
    call(*SWEEP, "optim.lr=1e-3,1e-2", "seed=range(2)", where)
    assert len(job_dirs(tmp_path / "lr")) == 4
    assert all("lr-0.0" in path.name and "seed-" in path.name for path in job_dirs(tmp_path / "lr"))
    before, configs = ended_at(tmp_path / "lr"), [(p / "config.yaml").read_bytes() for p in job_dirs(tmp_path / "lr")]
    again = call(*SWEEP, where, "seed=1,0,1", "optim.lr=.01,0.001")
    assert "4 jobs, 0 to run, 4 finished before" in again.stderr
    assert "6 combinations, 4 of them different: equal ones run once" in again.stderr
    assert ended_at(tmp_path / "lr") == before
    more = call(*SWEEP, "optim.lr=1e-3,1e-2", "seed=range(3)", "hydra/launcher=pool", "logger=none", where)
    assert "6 jobs, 2 to run, 4 finished before" in more.stderr
    assert len(job_dirs(tmp_path / "lr")) == 6
    assert before.items() <= ended_at(tmp_path / "lr").items()
    assert all(c in [(p / "config.yaml").read_bytes() for p in job_dirs(tmp_path / "lr")] for c in configs)
    written = book(tmp_path / "lr")
    assert [job["number"] for job in written["jobs"]] == list(range(6))
    assert written["swept"] == ["optim.lr", "seed"]
    assert written["objectives"] == [{"key": "val/loss", "mode": "min"}]
    assert "seed=2" in written["jobs"][-1]["overrides"]
    assert status(tmp_path / "lr" / written["jobs"][5]["key"])["sweep"] == {"sweep": "lr", "job": 5}
    other = call(*SWEEP, "optim.lr=1e-3", "seed=0", where, "trainer.max_steps=3")
    assert "1 job, 1 to run, 6 more from other commands" in other.stderr
    assert book(tmp_path / "lr")["swept"] == ["optim.lr", "seed", "trainer.max_steps"]
    assert len(job_dirs(tmp_path / "lr")) == 7
    shutil.rmtree(job_dirs(tmp_path / "lr")[0])
    lost = call(*SWEEP, where, "seed=range(3)", "optim.lr=1e-3,1e-2")
    assert "6 jobs, 1 to run, 5 finished before" in lost.stderr
    assert "differ" not in lost.stderr
    assert len(job_dirs(tmp_path / "lr")) == len(book(tmp_path / "lr")["jobs"]) == 7
    call(*SWEEP, "optim.lr=1e-2", "seed=2", f"hydra.sweep.dir={tmp_path}/alone")
    (found,) = results(tmp_path / "alone").values()
    assert found in results(tmp_path / "lr").values()


@pytest.mark.slow
def test_names_and_places(tmp_path: Path) -> None:
    """sweep=NAME below outputs/<name>/sweeps; without it a new name each time. Nothing where the command was typed."""
    name = f"test_sweep_{os.getpid()}"
    folder = ROOT / "outputs" / name
    try:
        for options in (["sweep=a"], [], []):
            call(*SWEEP, f"name={name}", "seed=0", *options, cwd=tmp_path)
        found = sorted(path.name for path in (folder / "sweeps").iterdir())
        assert len(found) == 3
        assert "a" in found
        assert not list(tmp_path.iterdir())
    finally:
        subprocess.run(["rm", "-r", str(folder)], check=False)


@pytest.mark.slow
def test_zipped_values_are_jobs_like_others(tmp_path: Path) -> None:
    """However they are written, crossed with seeds; a full grid of the same sweep adds what is missing, in a pool."""
    where = f"hydra.sweep.dir={tmp_path}/z"
    call(*SWEEP, "optim=adamw,sgd", "optim.lr=1e-3,0.1", "seed=0,1", "sweep.zip=optim,optim.lr", where)
    found = [set(job["overrides"]) & PAIRED for job in book(tmp_path / "z")["jobs"]]
    lr = {"adamw": "optim.lr=0.001", "sgd": "optim.lr=0.1"}
    assert found == [{f"optim={o}", lr[o], f"seed={s}"} for o in ("adamw", "sgd") for s in (0, 1)]
    params = "hydra.sweeper.params={optim.lr: '0.1,1e-3', optim: 'sgd,adamw'}"
    again = call(*SWEEP, params, "seed=range(2)", "sweep.zip=[optim.lr,optim]", where)
    assert "4 jobs, 0 to run, 4 finished before" in again.stderr
    grid = call(*SWEEP, "optim=adamw,sgd", "optim.lr=1e-3,0.1", "seed=0,1", where, "hydra/launcher=pool")
    assert "8 jobs, 4 to run, 4 finished before" in grid.stderr


@pytest.mark.slow
def test_another_sweeper_does_not_ignore_zip(tmp_path: Path) -> None:
    others = ("hydra/sweeper=basic", "hydra/launcher=basic", f"hydra.sweep.dir={tmp_path}/z")
    done = call(*SWEEP, "seed=1,2", "optim.lr=1,2", "sweep.zip=seed,optim.lr", *others, code=2)
    assert done.stderr.splitlines()[-1].startswith("error: sweep.zip: has no effect with this hydra/sweeper")
    assert not job_dirs(tmp_path / "z")


PAIRED = {"optim=adamw", "optim=sgd", "optim.lr=0.001", "optim.lr=0.1", "seed=0", "seed=1"}


FAULTS = {
    "raise ZeroDivisionError('the cause')": ["ZeroDivisionError: the cause", "in faulty"],
    "ctypes.string_at(0)": ["killed by SIGSEGV", "in faulty"],
    "os.kill(os.getpid(), signal.SIGKILL)": ["killed by SIGKILL"],
    "os.kill(os.getpid(), signal.SIGBUS)": ["killed by SIGBUS (a data file was cut short", "in faulty"],
    "resource.setrlimit(resource.RLIMIT_AS, (2**33, 2**33)); bytearray(2**34)": ["MemoryError", "in faulty"],
    "os.fork() or time.sleep(1000); os.kill(os.getpid(), signal.SIGKILL)": ["killed by SIGKILL"],
    # a process outside of the job's group holds the lock of its directory for some seconds, as a rank that is slow to
    # die does
    "pid = os.fork() or (os.setsid(), time.sleep(3), os._exit(0))\n"
    "while os.getsid(pid) != pid: time.sleep(0.01)\n"
    "os.kill(os.getpid(), signal.SIGKILL)": ["killed by SIGKILL"],
    "os._exit(3)": ["the job ended with status 3, without an error record"],
}


@pytest.mark.slow
def test_a_fault_stays_in_its_job(tmp_path: Path) -> None:
    """Each in a job of its own, one job before them and one behind."""
    seeds = range(1, 1 + len(FAULTS))
    options = (*SWEEP, f"seed=range({len(FAULTS) + 2})", f"hydra.sweep.dir={tmp_path}/s", "hydra/launcher=pool")
    done = call_faulty(f"exec({list(FAULTS)!r}[seen['seed'] - 1])", *options, seeds=seeds, code=1)
    assert states(tmp_path / "s") == ["finished", *["failed"] * len(FAULTS), "finished"]
    for number, parts in zip(seeds, FAULTS.values()):
        kept = status(tmp_path / "s" / book(tmp_path / "s")["jobs"][number]["key"])
        assert parts[0] in kept["error"]
        assert all(part in kept["error"] + kept["traceback"] for part in parts)
        row = next(line for line in done.stderr.splitlines() if line.startswith(f"{number}    failed"))
        assert parts[0] in row
    assert f"{len(FAULTS)} of {len(FAULTS) + 2} jobs failed" in done.stderr
    assert not processes_with(str(tmp_path))


@pytest.mark.slow
def test_what_failed_runs_again_on_request(tmp_path: Path) -> None:
    """A sweep that failed fast goes on: a job from its directory alone, as SLURM and Ray call it; what was queued; what
    had failed, on the hardware given now. A recipe that has been changed in between changes none of its jobs."""
    mine, sweep = tmp_path / "mine/experiment", tmp_path / "s"
    mine.mkdir(parents=True)
    recipe = "# @package _global_\nmodel: {hidden: [%d]}\n"
    (mine / "r.yaml").write_text(recipe % 8)
    options = ("--config-dir", str(tmp_path / "mine"), *(o for o in SWEEP if not o.startswith("model")), "experiment=r",
               "seed=range(4)", f"hydra.sweep.dir={sweep}")  # fmt: skip
    call_faulty("raise ZeroDivisionError", *options, "sweep.fail_fast=true", code=1)
    assert states(sweep) == ["finished", "failed", "queued", "queued"]
    (mine / "r.yaml").write_text(recipe % 9)

    queued = sweep / book(sweep)["jobs"][2]["key"]
    called([*TRAIN, f"sweep.job={queued}"], cwd=ROOT)
    assert status(queued)["status"] == "finished"
    assert [m["step"] for m in metrics(queued) if "train/loss" in m] == [3, 6]

    again = call(*options, "hydra/launcher=pool", code=1)
    assert "1 to run, 2 finished before, 1 failed before" in again.stderr
    call(*options, "sweep.retry_failed=true", "hardware.eval_batch_size=50")
    assert states(sweep) == ["finished"] * 4
    jobs = [yaml.safe_load((sweep / job["key"] / "config.yaml").read_text()) for job in book(sweep)["jobs"]]
    assert [job["hardware"]["eval_batch_size"] for job in jobs] == [None, 50, None, None]
    assert [job["model"]["hidden"] for job in jobs] == [[8]] * 4


@pytest.mark.slow
def test_hydras_own_launcher_gets_directories(tmp_path: Path) -> None:
    call(*SWEEP, "seed=0,1", f"hydra.sweep.dir={tmp_path}/s", "hydra/launcher=basic")
    assert states(tmp_path / "s") == ["finished", "finished"]
    folders = {p.name for p in (tmp_path / "s").iterdir() if p.is_dir()}
    assert folders - {"report"} == {p.name for p in job_dirs(tmp_path / "s")}
