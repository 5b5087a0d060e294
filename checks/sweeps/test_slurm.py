"""SLURM for real: srun's ranks and hosts, a job that is preempted, requeued and goes on, a sweep."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from cluster import Cluster, cluster, missing
from common import QUICK, ROOT, TRAIN
from fork import commit
from shell import clone_with_environment
from sshd import LACKS, connected

from samebits.testing import assert_equal, last_checkpoint, metrics, result, status
from samebits.testing.processes import called, limit, processes_with, wait_for, warm

pytestmark = [pytest.mark.slurm, pytest.mark.timeout(400)]
TRAIN_LINE = " ".join([sys.executable, str(ROOT / "src/train.py"), *QUICK])
REPORT = [sys.executable, ROOT / "src/report.py"]
SHORT = "trainer.max_steps=6 trainer=ddp"


@pytest.fixture(scope="module")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if reason := missing():
        pytest.skip(reason)
    try:
        with cluster(tmp_path_factory.mktemp("slurm")) as here:
            yield here
    except RuntimeError as error:
        pytest.skip(str(error))


def trained_here(run: Path, *overrides: str) -> Path:
    called([*TRAIN, *QUICK, *overrides, f"hydra.run.dir={run}"])
    return run


def test_srun_of_ranks_of_hosts_and_of_one_task(slurm: Cluster, tmp_path: Path) -> None:
    job = slurm.submit(
        f"""set -ex
        srun --ntasks-per-node=2 {TRAIN_LINE} {SHORT} hydra.run.dir={tmp_path}/ranks
        srun --ntasks=2 --ntasks-per-node=1 {TRAIN_LINE} {SHORT} hardware.num_procs=2 hydra.run.dir={tmp_path}/hosts
        srun --nodes=1 --ntasks=1 {TRAIN_LINE} trainer.max_steps=6 hydra.run.dir={tmp_path}/task
        {TRAIN_LINE} trainer.max_steps=6 hydra.run.dir={tmp_path}/plain""",
        "--nodes=2", "--ntasks=4",
    )  # fmt: skip
    assert slurm.wait_for_end(job, 150) == "COMPLETED", slurm.log(job)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["hosts", "plain", "ranks", "task"]
    four = trained_here(tmp_path / "here", "trainer=ddp", "trainer.max_steps=6", "hardware.num_procs=4")
    for name, ranks in {"ranks": 4, "hosts": 4, "task": 1, "plain": 1}.items():
        assert len(last_checkpoint(tmp_path / name)["ranks"]) == ranks
    for name in ("ranks", "hosts"):
        assert_equal(last_checkpoint(tmp_path / name)["model"], last_checkpoint(four)["model"])
    assert_equal(last_checkpoint(tmp_path / "task")["model"], last_checkpoint(tmp_path / "plain")["model"])


def test_preempted_jobs_are_requeued_and_end_as_undisturbed_ones(slurm: Cluster, tmp_path: Path) -> None:
    """Twice: by the signal that comes before the time limit (--signal=USR1@60), and by an operator's requeue."""
    run = tmp_path / "run"
    work = ("trainer=ddp", "trainer.max_steps=1500", "trainer.log_every=20", "trainer.save_every=null")
    job = slurm.submit(
        f"""srun {TRAIN_LINE} {" ".join(work)} hydra.run.dir={run} resume=auto
        status=$?
        if [ $status -eq 75 ]; then scontrol requeue $SLURM_JOB_ID; fi
        exit $status""",
        "--nodes=2", "--ntasks-per-node=1", "--requeue",
    )  # fmt: skip

    def reached(step: int) -> bool:
        return (run / "metrics.jsonl").exists() and any(line["step"] >= step for line in metrics(run))

    for restarts, (step, interrupt) in enumerate(
        [(100, ("scancel", "--signal=USR1", str(job))), (500, ("scontrol", "requeue", str(job)))]
    ):
        slurm.wait(job, lambda step=step: reached(step), 60)  # type: ignore[misc]
        slurm.command(*interrupt)
        slurm.wait(job, lambda n=restarts: slurm.facts(job)["Restarts"] == str(n + 1), 30)  # type: ignore[misc]
        slurm.wait(job, lambda: status(run)["status"] == "preempted", 30)  # SLURM counts before the run has saved
        slurm.wait(job, lambda: slurm.facts(job)["JobState"] == "PENDING", 30)
        # not two minutes later, but not before the nodes have buried the job's former life either
        slurm.command("scontrol", "update", f"JobId={job}", "StartTime=now+6")
    assert slurm.wait_for_end(job, 90) == "COMPLETED", slurm.log(job)
    assert status(run)["status"] == "finished"
    straight = trained_here(tmp_path / "straight", *work, "hardware.num_procs=2")
    for key in ("model", "optimizer", "ranks"):
        assert_equal(last_checkpoint(run)[key], last_checkpoint(straight)[key], key)
    assert_equal(metrics(run), metrics(straight))
    assert result(run)["test/loss"] == result(straight)["test/loss"]
    assert not processes_with(str(run))


def sweep(slurm: Cluster, sweep_dir: Path, *overrides: str) -> subprocess.Popen[str]:
    command = [*TRAIN, "-m", "hydra/launcher=slurm", f"hydra.sweep.dir={sweep_dir}", *QUICK, *overrides]
    return warm.Popen(command, env=slurm.env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def test_a_sweep_of_batch_jobs_one_of_which_is_signalled(slurm: Cluster, tmp_path: Path) -> None:
    """A job of two ranks, too: started by its task, or by srun; the signalled one is queued again and goes on."""
    lr, steps = "optim.lr=1e-3,3e-3", ("trainer.max_steps=1500", "trainer.save_every=null", "trainer.log_every=20")
    ledger = tmp_path / "sweep/sweep.json"

    def jobs() -> list[Path]:
        keys = [job["key"] for job in json.loads(ledger.read_text())["jobs"]] if ledger.exists() else []
        return [ledger.parent / key for key in keys]

    process = sweep(slurm, tmp_path / "sweep", lr, *steps, "trainer=ddp", "hardware.num_procs=2")
    try:
        wait_for(lambda: jobs() and all((job / "metrics.jsonl").exists() for job in jobs()), process)
        first = next(
            line.split()[0] for line in slurm.command("squeue", "-h", "-r", "-t", "R", "-o", "%i").splitlines()
        )
        slurm.command("scancel", "--signal=USR2", first)  # as before its time limit
        slurm.wait(first, lambda: slurm.facts(first).get("Restarts") == "1", 60)
        slurm.wait(first, lambda: slurm.facts(first)["JobState"] == "PENDING", 60)
        slurm.command("scontrol", "update", f"JobId={first}", "StartTime=now+6")  # as in the test above
        said, _ = process.communicate(timeout=limit(60))
    finally:
        process.kill()
    assert process.returncode == 0, said
    assert [status(job)["status"] for job in jobs()] == ["finished", "finished"], said
    assert "2 finished" in said
    text = "".join((job / "output.log").read_text() for job in jobs())
    assert text.count("stopped by SIGUSR2") == text.count("resumed from last_") == 1
    assert not processes_with(str(tmp_path))


def test_a_sweep_that_is_submitted_and_left(slurm: Cluster, tmp_path: Path) -> None:
    """The same command again tells the states and submits only what is new; what ran is what runs here."""
    folder, steps = tmp_path / "left", ("trainer.max_steps=300", "trainer.save_every=null", "trainer.log_every=100")

    def submitted(*overrides: str, code: int = 0) -> str:
        process = sweep(
            slurm, folder, *overrides, *steps, "hydra.launcher.detach=true", "hydra.launcher.jobs_at_once=1"
        )
        said, _ = process.communicate(timeout=limit(60))
        assert process.returncode == code, said
        return said

    def listed() -> list[str]:
        return slurm.command("squeue", "-h", "-r", "-t", "all", "-n", "left", "-o", "%i %T").splitlines()

    slurm.command("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")
    try:
        said = submitted("seed=0,1")
        assert "2 batch jobs submitted as job array" in said, said
        assert "in SLURM's queue: 2 pending" in said
        assert "2 jobs not ended; to look again, repeat the command with sweep=left" in said
        assert not (folder / "report.md").exists()
        again = submitted("seed=0,1,2")
        assert "1 batch job submitted as job array" in again, again
        assert "3 jobs, 3 not ended" in again
        called([*REPORT, folder])
        assert len(listed()) == 3
    finally:
        slurm.command("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
    wait_for(lambda: all("COMPLETED" in line for line in listed()), seconds=120)
    assert "sweep left: 3 finished" in submitted("seed=0,1,2")
    assert len(listed()) == 3
    straight = trained_here(tmp_path / "straight", *steps, "seed=2")
    (run,) = folder.glob("seed-2_*")
    assert_equal(metrics(run), metrics(straight))
    assert (folder / "report.md").exists()


def test_jobs_that_are_cancelled_run_with_the_next_command(slurm: Cluster, tmp_path: Path) -> None:
    """A job that computes saves; one that waited is as it was. None has failed."""
    folder, steps = tmp_path / "sweep", ("trainer.max_steps=3000", "trainer.save_every=null", "trainer.log_every=20")
    more = (
        "seed=0,1",
        *steps,
        *(f"+hydra.launcher.additional_parameters.{text}" for text in ("exclusive=true", "nodelist=n1")),
    )
    process = sweep(slurm, folder, *more)
    try:
        wait_for(lambda: any(path.stat().st_size for path in folder.glob("*/metrics.jsonl")), process)
        process.send_signal(signal.SIGINT)
        said, _ = process.communicate(timeout=limit(60))
    finally:
        process.kill()
    assert process.returncode == 130, said
    assert sorted(status(path.parent)["status"] for path in folder.glob("seed*/config.yaml")) == [
        "interrupted",
        "preempted",
    ], said
    process = sweep(slurm, folder, *more)
    said, _ = process.communicate(timeout=limit(120))
    assert process.returncode == 0, said
    assert "2 finished" in said
    assert "resumed from last_" in "".join(path.read_text() for path in folder.glob("*/output.log"))


@pytest.mark.skipif(bool(LACKS), reason=f"not installed: {', '.join(LACKS)}")
def test_a_sweep_by_run_remote_survives_a_lost_connection(slurm: Cluster, tmp_path: Path) -> None:
    """Jobs are submitted once, results are brought back; a detached sweep keeps the code, and `stop` ends it."""
    steps = ("trainer.max_steps=1000", "trainer.save_every=null", "trainer.log_every=20")
    command = ("train", "-m", "hydra/launcher=slurm", *QUICK, *steps)
    (tmp_path / "there").mkdir()
    with clone_with_environment(tmp_path) as here:
        commit(here)
        with connected(tmp_path / "there", here) as machine:
            (machine.home / ".bash_profile").write_text(f"export SLURM_CONF={slurm.env['SLURM_CONF']}\n")
            machine.run("box", "help")  # makes the folder
            (machine.home / "remote/clone/.venv").symlink_to(here / ".venv")
            process = machine.started("box", *command, "seed=0,1", "sweep=two")
            wait_for(lambda: "batch jobs submitted" in machine.said(), process, 120)
            machine.lose_the_connection()
            assert process.wait(limit(30)) == 255
            assert machine.run("box", *command, "seed=0,1", "sweep=two").count("2 batch jobs submitted") == 1
            assert len(slurm.command("squeue", "-h", "-r", "-t", "all", "-n", "two", "-o", "%i").splitlines()) == 2
            straight = [here / "run", "train", *QUICK, *steps, "seed=1", f"hydra.run.dir={tmp_path}/one"]
            subprocess.run(straight, check=True, capture_output=True)
            (run,) = (here / "outputs/remote/box/default/sweeps/two").glob("seed-1_*")
            assert_equal(metrics(run), metrics(tmp_path / "one"))
            assert (run.parent / "report.md").exists()
            slurm.command("scontrol", "update", "NodeName=n1,n2", "State=DRAIN", "Reason=test")
            try:
                elsewhere = f"hydra.sweep.dir={tmp_path}/elsewhere"
                detached = (*command, "hydra.launcher.detach=true", "seed=2,3", elsewhere)
                assert "in SLURM's queue: 2 pending" in machine.run("box", *detached)
                with open(here / "README.md", "a") as file:
                    file.write("more\n")
                assert "a job in SLURM's queue is running" in machine.run("box", "train", "seed=4", code=2)
                assert "cancelled in SLURM's queue:" in machine.run("box", "stop")
                assert not slurm.command("squeue", "-h", "-n", "elsewhere")
            finally:
                slurm.command("scontrol", "update", "NodeName=n1,n2", "State=RESUME")
