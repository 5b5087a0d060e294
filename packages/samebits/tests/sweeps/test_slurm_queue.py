"""When a batch job counts as ended, and what Ctrl-C does, without a cluster."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_slurm import FakeSlurm, options

from samebits.errors import RunFailed
from samebits.status import write_status
from samebits.sweeps import drive, slurm, submit_to_slurm
from samebits.sweeps.slurm_arrays import BatchJob
from samebits.testing.processes import in_a_terminal, limit, wait_for


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    found = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", found.path)
    monkeypatch.setattr(slurm, "POLL_S", 0.05)
    return found


def work(fake: FakeSlurm, count: int = 2) -> Any:
    wanted = SimpleNamespace(retry_failed=False, fail_fast=False)
    jobs = fake.jobs(count)
    return SimpleNamespace(ledger=fake.ledger(), total=[], jobs=jobs, options=wanted, on_end=lambda job: None)


def a_batch(fake: FakeSlurm, count: int = 2, jobs_at_once: int = 8) -> slurm.Batch:
    return slurm.Batch(work(fake, count), options(jobs_at_once=jobs_at_once))


def now(*pairs: tuple[str, str]) -> dict[str, BatchJob]:
    return {key: BatchJob("t", 3, "17_3", state) for key, state in pairs}


@pytest.mark.parametrize("state", ["queued", "running", "preempted", "failed", "finished", "interrupted"])
def test_a_job_that_goes_back_into_the_queue_may_be_missing_for_a_moment(fake: FakeSlurm, state: str) -> None:
    batch, said = a_batch(fake), []
    batch._screen = SimpleNamespace(say=said.append)  # type: ignore[assignment]
    job: Any = SimpleNamespace(state=lambda: state, key="a")
    one = slurm.Submitted(job, BatchJob("t", 3, "17_3"), began=100.0, seen=100.0)
    batch._running = [one]
    here, gone = now(("a", "RUNNING")), now(("b", "RUNNING"))
    at_once = state in ("failed", "finished", "interrupted")
    assert batch._gone(here, 110.0) == []
    assert batch._gone(None, 120.0) == []  # squeue failed
    assert batch._gone(gone, 122.0) == ([one] if at_once else [])
    assert batch._gone(now(("a", "NODE_FAIL")), 120.0 + slurm.REQUEUE_S + 1) == [one]
    assert batch._gone(now(("a", "COMPLETING")), 150.0) == []  # it was back
    assert [line.split(";")[0] for line in said] == (
        [] if at_once else ["batch job 17_3 has left SLURM's queue unfinished"]
    )
    batch._ending = True  # after scancel nothing comes back
    assert batch._gone(gone, 151.0) == [one]


def test_an_squeue_that_fails_is_told_once_and_nothing_is_submitted(
    fake: FakeSlurm, capsys: pytest.CaptureFixture[str]
) -> None:
    fake.set("down", "squeue: error: DNS lookup failed\nsqueue: fatal: Unable to contact slurm controller\n")
    said_once = r"^hydra/launcher=slurm: squeue failed: Unable to contact slurm controller; nothing was submitted"
    with pytest.raises(RunFailed, match=said_once):
        a_batch(fake).run()
    with pytest.raises(RunFailed, match=said_once):
        submit_to_slurm(work(fake), options())
    batch = a_batch(fake)
    assert batch._queue() is batch._queue() is None
    said = capsys.readouterr()
    assert (said.out + said.err).count("Unable to contact slurm controller") == 1
    assert fake.lines("calls") == []


def test_detached_it_submits_all_and_tells_what_is_there(fake: FakeSlurm, capsys: pytest.CaptureFixture[str]) -> None:
    fake.set("limit", "2")
    assert submit_to_slurm(work(fake, 3), options(jobs_at_once=1)) == 1
    said = capsys.readouterr().err.splitlines()
    assert said[0] == "2 batch jobs submitted as job array 12, 13; squeue --me lists them"
    assert said[1].startswith("1 job not submitted; repeat the command when others have ended: sbatch: error: Assoc")
    assert said[2] == "in SLURM's queue: 2 pending"
    assert submit_to_slurm(work(fake, 2), options()) == 0
    assert capsys.readouterr().err == "in SLURM's queue: 2 pending\n"


def test_the_exit_status_of_a_sweep_that_was_left(fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch) -> None:
    """0 if all jobs are in good hands, 75 if some must be submitted later, 1 if some have failed."""
    reports: list[bool] = []
    monkeypatch.setattr(drive, "report", lambda ledger, changed: reports.append(changed))
    jobs, ledger = fake.jobs(2), fake.ledger()
    ledger.jobs = jobs
    drive.conclude(ledger, jobs, None, left=0)
    with pytest.raises(SystemExit) as end:
        drive.conclude(ledger, jobs, None, left=1)
    assert (end.value.code, reports) == (75, [])
    with pytest.raises(SystemExit):  # watched
        drive.conclude(ledger, jobs, None)
    jobs[0].directory.mkdir()
    write_status(jobs[0].directory, "failed", error="RunFailed: x")
    with pytest.raises(RunFailed, match=r"^1 of 2 jobs failed; add sweep=s sweep.retry_failed=true to run them again$"):
        drive.conclude(ledger, jobs, None, left=0)
    assert reports == [True, True]


def test_the_last_lines_count_the_jobs_of_the_command_and_of_the_whole_sweep(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(drive, "report", lambda ledger, changed: None)
    jobs, ledger = fake.jobs(3), fake.ledger()
    for job, status in zip(jobs, ("finished", "failed", "finished")):
        job.directory.mkdir()
        write_status(job.directory, status)
    ledger.jobs = jobs
    said = {2: "sweep s: of this command 1 finished, 1 failed; of the whole sweep 2 finished, 1 failed",
            3: "sweep s: 2 finished, 1 failed"}  # fmt: skip
    for number, line in said.items():
        of_command = " of this command" * (number == 2)
        with pytest.raises(RunFailed, match=rf"^1 of {number} jobs{of_command} failed; add"):
            drive.conclude(ledger, jobs[:number], None)
        assert capsys.readouterr().err.splitlines()[-1] == line


def test_jobs_that_a_limit_refuses_are_submitted_when_others_have_ended(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slurm, "FULL_S", 0.1)
    fake.set("limit", "1")
    batch, told = a_batch(fake, 3), []
    look = batch._queue

    def ended() -> Any:
        for line in fake.lines("queue"):
            number, _, script = line.split("|")
            key = Path(script).with_suffix(".jobs").read_text().splitlines()[int(number.partition("_")[2])]
            (fake.sweep / key).mkdir()
            write_status(fake.sweep / key, "finished")
            fake.ended(number)
        return look()

    monkeypatch.setattr(batch, "_queue", ended)
    monkeypatch.setattr(batch, "_tell", lambda job, seconds: told.append(job.key))
    assert batch.run() is None
    assert told == ["seed-0", "seed-1", "seed-2"]


def test_ctrl_c_cancels_the_batch_jobs_and_a_second_one_leaves_them_alone(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a terminal. What had not started is not called failed: the next command runs it."""
    before, batch = signal.getsignal(signal.SIGHUP), a_batch(fake)
    job = fake.jobs(1)[0]
    job.directory.mkdir()
    write_status(job.directory, "queued")

    def interrupted() -> dict[str, BatchJob]:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # the batch jobs do not need this process
        signal.raise_signal(signal.SIGINT)
        return {}

    monkeypatch.setattr(batch, "_queue", interrupted)
    monkeypatch.setattr(batch, "_tell", lambda job, seconds: None)
    assert batch.run() == signal.SIGINT
    assert fake.lines("cancelled") == ["11_0 11_1"]
    assert job.state() == "interrupted"
    assert signal.getsignal(signal.SIGHUP) is before

    fake.set("queue")
    batch = a_batch(fake)
    monkeypatch.setattr(batch, "_queue", interrupted)
    monkeypatch.setattr(batch, "_gone", lambda queued, now: [])
    with pytest.raises(KeyboardInterrupt):
        batch.run()
    assert fake.lines("cancelled") == ["11_0 11_1", "12_0 12_1"]


def test_a_signal_during_sbatch_cancels_what_was_submitted_and_submits_no_more(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake.set("size", "1")
    batch = a_batch(fake, 3)
    sbatch = batch._arrays._sbatch

    def interrupted(*arguments: Any) -> Any:
        answer = sbatch(*arguments)
        signal.raise_signal(signal.SIGTERM)  # as at the end of the block that holds signals
        return answer

    monkeypatch.setattr(batch._arrays, "_sbatch", interrupted)
    monkeypatch.setattr(batch, "_queue", dict)
    monkeypatch.setattr(batch, "_tell", lambda job, seconds: None)
    assert batch.run() == signal.SIGTERM
    assert (len(fake.lines("calls")), fake.lines("cancelled")) == (1, ["11_0"])


def test_a_second_ctrl_c_during_sbatch_leaves_the_batch_jobs_alone(
    fake: FakeSlurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    batch = a_batch(fake)

    def interrupted() -> Any:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(batch._arrays, "listed", interrupted)
    with pytest.raises(KeyboardInterrupt):
        batch.run()
    said = capsys.readouterr()
    assert "SIGINT: waiting for SLURM's answer; Ctrl-C again: leave them alone" in said.out + said.err
    assert fake.lines("cancelled") == []


WATCH = f"""
import sys
sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}
from pathlib import Path
from fake_slurm import FakeSlurm
from samebits.sweeps import slurm
import test_slurm_queue
fake = FakeSlurm.__new__(FakeSlurm)
fake.root = Path(sys.argv[1])
fake.sweep = fake.root / "sweep"
slurm.POLL_S = slurm.REQUEUE_S = 0.1
try:
    sys.exit(100 + (test_slurm_queue.a_batch(fake).run() or 0))
except KeyboardInterrupt:
    sys.exit(130)
"""


@pytest.mark.parametrize(
    ("typed", "status", "cancelled"),
    [("c\n", 100 + signal.SIGINT, True), ("l\n", 130, False), ("\x03", 130, False), ("w\n", None, False)],
)
def test_ctrl_c_in_a_terminal_offers_the_choice(
    fake: FakeSlurm, typed: str, status: int | None, cancelled: bool
) -> None:
    process, terminal = in_a_terminal(sys.executable, "-c", WATCH, str(fake.root))
    try:
        wait_for(lambda: len(fake.lines("looks")) > 1, process)  # the first one comes before sbatch
        os.write(terminal, b"\x03")
        shown = b""
        while b"leave them" not in shown.rpartition(b"Ctrl-C again")[2]:
            shown += os.read(terminal, 4096)
        os.write(terminal, typed.encode())
        if status is None:
            before = len(fake.lines("looks"))
            wait_for(lambda: len(fake.lines("looks")) > before + 1, process)  # Ctrl-C may have come while squeue ran
            os.write(terminal, b"\x03")  # it asks again
            while shown.count(b"Ctrl-C again: leave them") < 2:
                shown += os.read(terminal, 4096)
            os.write(terminal, b"l\n")
        if cancelled:
            wait_for(lambda: fake.lines("cancelled"))
            fake.set("queue", "")
        assert process.wait(limit(30)) == (status or 130)
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
    assert bool(fake.lines("cancelled")) is cancelled


def test_ctrl_c_during_sbatch_in_a_terminal_is_answered_when_the_batch_jobs_are_known(fake: FakeSlurm) -> None:
    fake.set("hold_after")
    process, terminal = in_a_terminal(sys.executable, "-c", WATCH, str(fake.root))
    try:
        wait_for((fake.root / "accepted").exists, process)
        os.write(terminal, b"\x03")
        time.sleep(0.3)
        (fake.root / "hold_after").unlink()
        shown = b""
        while b"2 batch jobs in SLURM's queue. Type c" not in shown:
            shown += os.read(terminal, 4096)
        os.write(terminal, b"c\n")
        wait_for(lambda: fake.lines("cancelled"))
        fake.set("queue", "")
        assert process.wait(limit(30)) == 100 + signal.SIGINT
    finally:
        process.kill()
        process.wait()
        os.close(terminal)
