"""Sweeps that are killed, stopped and started twice: nothing is lost, nothing runs twice, nothing stays behind."""

from __future__ import annotations

import contextlib
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest
from checking import ctrl_c_twice
from common import QUICK, ROOT
from sweeps import SWEEP, call, ended_at, environment, faulty_command, job_dirs, plain_command, results, states

from samebits.testing import assert_equal, last_checkpoint, metrics, status
from samebits.testing.processes import limit, processes_with, slow, wait_for, warm

# jobs of some tenths of a second, saved often
LONG = (
    "-m",
    *QUICK,
    "trainer.max_steps=500",
    "trainer.log_every=50",
    "trainer.eval_every=250",
    "trainer.save_every=20",
)
POOL = ("hydra/launcher=pool", "hydra.launcher.jobs_at_once=2")
SLOWLY = "time.sleep(1000)"  # the job with seed=1 hangs, the others end


def popen(*arguments: str) -> subprocess.Popen[str]:
    command = plain_command(*arguments)
    return warm.Popen(command, env=environment(), stderr=subprocess.PIPE, text=True, start_new_session=True)


def victims(process: subprocess.Popen[str], where: str, kind: str) -> list[int]:
    """Process ids: of the command itself, of its jobs, of the ranks below these, or of all."""
    found = [pid for pid in processes_with(where) if pid != process.pid]
    parents = {pid: parent_of(pid) for pid in found}
    jobs = [pid for pid, parent in parents.items() if parent == process.pid]
    ranks = [pid for pid, parent in parents.items() if parent in jobs]
    return {"parent": [process.pid], "job": jobs, "rank": ranks, "all": [process.pid, *found]}[kind]


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def saved(where: str) -> set[Path]:
    return set(Path(where).glob("*/checkpoints/last_*.pt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "kinds"),
    [
        (("seed=range(3)", *POOL), ("parent", "job", "all")),
        (("seed=range(2)", "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=200"), ("rank", "parent", "job")),
    ],
)
def test_killed_again_and_again_it_ends_as_if_undisturbed(
    tmp_path: Path, options: tuple[str, ...], kinds: tuple[str, ...]
) -> None:
    call(*LONG, *options, f"hydra.sweep.dir={tmp_path}/straight")
    dice, where, ended, kills = random.Random(0), f"{tmp_path}/killed", {}, 0
    for attempt in range(12):
        before = saved(where)
        process = popen(*LONG, *options, f"hydra.sweep.dir={where}", "sweep.retry_failed=true")
        if attempt < 3:
            kind = kinds[attempt % len(kinds)]
            wait_for(lambda p=process, old=before: saved(where) - old or p.poll() is not None)
            time.sleep(dice.uniform(0, 0.2))
            if there := victims(process, where, kind):
                for pid in there if kind == "all" else [dice.choice(there)]:
                    with contextlib.suppress(ProcessLookupError):  # it ends by itself just now
                        os.kill(pid, signal.SIGKILL)
                        kills += 1
        _, shown = process.communicate(timeout=limit(60))
        wait_for(lambda: not processes_with(where))
        if Path(where, "sweep.json").exists():
            now = ended_at(Path(where))
            assert ended.items() <= now.items(), "a job ran again after it had finished"
            ended = now
        if process.returncode == 0:
            break
        assert process.returncode in (1, -signal.SIGKILL), shown
    assert process.returncode == 0
    assert kills >= 1  # a fast machine may have ended it before the others
    assert results(tmp_path / "straight") == results(Path(where))
    for job in job_dirs(tmp_path / "straight"):
        twin = Path(where) / job.name
        assert metrics(job) == metrics(twin)
        assert_equal(last_checkpoint(job)["model"], last_checkpoint(twin)["model"])


@pytest.mark.slow
def test_two_starts_share_the_work(tmp_path: Path) -> None:
    # the job with seed=1 waits for all others: who has it leaves them to the other start
    finished = f"sum('finished' in p.read_text() for p in pathlib.Path({str(tmp_path / 's')!r}).glob('*/status.json'))"
    wait = f"import pathlib\n        while {finished} < 3: time.sleep(0.02)"
    command = faulty_command(wait, *SWEEP, "seed=range(4)", f"hydra.sweep.dir={tmp_path}/s")
    both = [warm.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True) for _ in range(2)]
    shown = [process.communicate(timeout=limit(60))[1] for process in both]
    assert [process.returncode for process in both] == [0, 0], shown
    assert states(tmp_path / "s") == ["finished"] * 4
    logs = [(path / "train.log").read_text() for path in job_dirs(tmp_path / "s")]
    assert [log.count("finished 6 steps") for log in logs] == [1] * 4
    begun = [text.count("\njob ") for text in shown]
    assert sum("finished 6 steps" in text for text in shown) == 2, "one of them did nothing"
    assert sum(begun) >= 4
    assert all("4 finished" in text for text in shown)


@pytest.mark.slow
def test_a_start_takes_over_what_another_leaves(tmp_path: Path) -> None:
    """The first hangs in a job and is killed; the second, which has waited for that job, runs it."""
    where, hangs = f"hydra.sweep.dir={tmp_path}/s", tmp_path / "hangs"
    command = faulty_command(f"open({str(hangs)!r}, 'w').close(); {SLOWLY}", *SWEEP, "seed=range(3)", where)
    first = warm.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
    wait_for(hangs.exists)  # else the second could begin that job
    second = popen(*SWEEP, "seed=range(3)", where)
    wait_for(lambda: [status(p)["status"] for p in job_dirs(tmp_path / "s")].count("finished") == 2)
    time.sleep(1.5)
    assert second.poll() is None
    first.kill()
    first.wait()
    _, shown = second.communicate(timeout=limit(60))
    assert second.returncode == 0, shown
    assert states(tmp_path / "s") == ["finished"] * 3


@pytest.mark.slow
@pytest.mark.parametrize("number", [slow(signal.SIGINT), signal.SIGTERM])
def test_a_signal_saves_all_running_jobs(tmp_path: Path, number: signal.Signals) -> None:
    long = [o for o in LONG if "max_steps" not in o] + ["trainer.max_steps=1000000", "trainer.save_every=null"]
    options = (*long, "seed=range(3)", *POOL, f"hydra.sweep.dir={tmp_path}/s")
    process = popen(*options)
    wait_for(lambda: len([p for p in job_dirs(tmp_path / "s") if (p / "metrics.jsonl").exists() and metrics(p)]) == 2)
    if number == signal.SIGINT:
        os.killpg(process.pid, number)  # what a terminal does
    else:
        process.send_signal(number)
    _, shown = process.communicate(timeout=limit(60))
    assert process.returncode == {signal.SIGINT: 130, signal.SIGTERM: 75}[number], shown
    assert f"{number.name}: running jobs save and stop" in shown
    assert "Traceback" not in shown
    stopped = {signal.SIGINT: "interrupted", signal.SIGTERM: "preempted"}[number]
    assert states(tmp_path / "s") == [stopped, stopped, "queued"]
    saved = [last_checkpoint(path)["step"] for path in job_dirs(tmp_path / "s")[:2]]
    assert all(step > 0 for step in saved)
    assert not processes_with(str(tmp_path))


@pytest.mark.slow
def test_a_second_ctrl_c_ends_it_now(tmp_path: Path) -> None:
    where = f"hydra.sweep.dir={tmp_path}/s"
    hangs = tmp_path / "hangs"
    command = faulty_command(f"open({str(hangs)!r}, 'w').close(); {SLOWLY}", *SWEEP, "seed=1", where, *POOL)
    process = warm.Popen(command, cwd=ROOT, env=environment(), stderr=subprocess.PIPE, text=True)
    wait_for(hangs.exists, process)
    shown = ctrl_c_twice(process, "running jobs save and stop", process.send_signal)
    assert process.returncode == 130, shown
    assert not processes_with(str(tmp_path))
    call(*SWEEP, "seed=1", where)
    assert states(tmp_path / "s") == ["finished"]
