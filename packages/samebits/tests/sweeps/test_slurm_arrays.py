"""Each job is submitted once: whoever is killed, whatever SLURM refuses, however many there are."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from fake_slurm import FakeSlurm, options

from samebits.config import quote_value
from samebits.errors import ConfigError, RunFailed
from samebits.status import write_status
from samebits.sweeps import check_sbatch_options, run_search
from samebits.testing.processes import limit, wait_for


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeSlurm:
    fake = FakeSlurm(tmp_path)
    monkeypatch.setenv("PATH", fake.path)
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")  # its user's variables change no answer
    monkeypatch.setenv("SBATCH_CLUSTERS", "other")  # where squeue would not find the jobs
    monkeypatch.setenv("SBATCH_WAIT", "1")
    return fake


def arrays(fake: FakeSlurm) -> list[str]:
    return [word for call in fake.lines("calls") for word in call.split() if word.startswith("--array=")]


def test_what_is_in_the_queue_is_not_submitted_again_and_new_jobs_are(slurm: FakeSlurm) -> None:
    jobs = slurm.jobs(5)
    first = slurm.arrays().submit(jobs[:3], False)
    assert first.new == ["seed-0", "seed-1", "seed-2"]
    assert [one.number for one in first.queued.values()] == ["11_0", "11_1", "11_2"]
    again = slurm.arrays().submit(jobs[:3], False)
    assert (again.new, list(again.queued)) == ([], first.new)
    slurm.ended("11_0")
    jobs[0].directory.mkdir()
    write_status(jobs[0].directory, "finished")
    more = slurm.arrays().submit(jobs, False)
    assert (more.new, more.ended) == (["seed-3", "seed-4"], jobs[:1])
    assert arrays(slurm) == ["--array=0-2%256", "--array=0-1%256"]
    assert Counter(slurm.queue()) == Counter(job.key for job in jobs[1:])


def test_thousands_of_jobs_within_the_limits_of_the_cluster(slurm: FakeSlurm) -> None:
    """Chunks of at most MaxArraySize; what a limit refuses comes with a later command; and no array starts early."""
    slurm.set("limit", "3000")
    jobs = slurm.jobs(5000)
    first = slurm.arrays(jobs_at_once=40).submit(jobs, False)
    assert len(first.new) + len(first.left) == 5000
    assert len(first.new) == 3000
    assert "AssocMaxSubmitJobLimit" in first.why
    accepted = [line.partition("_")[0] for line in slurm.lines("queue")]
    assert max(Counter(accepted).values()) == 1001
    calls = slurm.lines("calls")
    assert all("%40 " in call for call in calls)
    assert "--dependency" not in calls[0]  # %N limits one array only
    assert "--dependency=afterany:11 " in calls[1]
    before = len(calls)
    slurm.ended(*(line.partition("|")[0] for line in slurm.lines("queue")[:2500]))
    for job in jobs[:2500]:
        job.directory.mkdir()
        write_status(job.directory, "finished")
    second = slurm.arrays(jobs_at_once=40).submit(jobs, False)
    assert (len(second.new), len(second.left), len(second.ended)) == (2000, 0, 2500)
    assert len(slurm.lines("calls")) == before + 2
    assert Counter(slurm.queue()) == Counter(job.key for job in jobs[2500:])


@pytest.mark.parametrize("hold", ["hold_before", "hold_after"])
def test_killed_while_sbatch_runs_the_next_command_submits_nothing_twice(slurm: FakeSlurm, hold: str) -> None:
    """Only the command is killed. Its sbatch goes on; the next command waits for it, and finds what it submits."""
    script = (
        f"import sys; sys.path[:0] = {[str(Path(__file__).parent), *sys.path]!r}\n"
        "from pathlib import Path\nfrom fake_slurm import FakeSlurm\n"
        "fake = FakeSlurm.__new__(FakeSlurm)\n"
        f"fake.root, fake.sweep = Path({str(slurm.root)!r}), Path({str(slurm.sweep)!r})\n"
        "print(fake.arrays().submit(fake.jobs(3), False).new)\n"
    )

    def started() -> subprocess.Popen[str]:
        return subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)

    slurm.set(hold)
    killed = started()
    wait_for((slurm.root / {"hold_before": "begun", "hold_after": "accepted"}[hold]).exists, killed)
    killed.kill()
    killed.wait()
    second = started()
    with pytest.raises(subprocess.TimeoutExpired):
        second.wait(1)
    (slurm.root / hold).unlink()
    said, _ = second.communicate(timeout=limit(30))
    assert (said, second.returncode) == ("[]\n", 0)
    assert slurm.queue() == ["seed-0", "seed-1", "seed-2"]
    assert len(slurm.lines("calls")) == 1


def test_an_sbatch_without_an_answer_is_looked_up(slurm: FakeSlurm) -> None:
    slurm.set("timed_out")
    with pytest.raises(RunFailed, match=r"Socket timed out .*; repeat the command: it submits only jobs that are not"):
        slurm.arrays().submit(slurm.jobs(2), False)
    (slurm.root / "timed_out").unlink()
    assert slurm.arrays().submit(slurm.jobs(2), False).new == []
    assert len(slurm.lines("calls")) == 1


def test_a_copy_of_a_sweep_does_not_take_over_its_batch_jobs(slurm: FakeSlurm, tmp_path: Path) -> None:
    """The same folder under another name does."""
    slurm.arrays().submit(slurm.jobs(2), False)
    original, copy, link = slurm.sweep, tmp_path / "copy", tmp_path / "link"
    shutil.copytree(original, copy)
    link.symlink_to(original)
    slurm.sweep = link
    assert slurm.arrays().submit(slurm.jobs(2), False).new == []
    slurm.sweep = copy
    assert slurm.arrays().submit(slurm.jobs(2), False).new == ["seed-0", "seed-1"]


@pytest.mark.parametrize("script", ["/home/a/" + "x" * 300, "/" + "x" * 300 + "/20260102-030405-0123abcd.sh", "(null)"])
def test_other_batch_jobs_of_the_user_do_not_matter(slurm: FakeSlurm, script: str) -> None:
    slurm.arrays().submit(slurm.jobs(1), False)
    slurm.set("queue", f"7_0|RUNNING|{script}\n")
    assert slurm.arrays().listed() == {}


def test_what_sbatch_refuses_is_an_error_with_its_reason(slurm: FakeSlurm) -> None:
    slurm.set("refuse", "sbatch: error: invalid partition specified: gpu\n")
    with pytest.raises(RunFailed, match=r"^hydra/launcher=slurm: sbatch: error: invalid partition specified: gpu$"):
        slurm.arrays(partition="gpu").submit(slurm.jobs(2), False)
    assert "--partition=gpu" in slurm.lines("calls")[0]
    # a limit of one job looks like a limit of their number
    slurm.set("refuse", "sbatch: error: Job violates accounting/QOS policy (job submit limit, user's size)\n")
    with pytest.raises(RunFailed, match="violates accounting/QOS policy"):
        slurm.arrays().submit(slurm.jobs(2), False)
    assert not list((slurm.sweep / ".slurm").glob("*.jobs"))


@pytest.mark.parametrize("retry_failed", [False, True])
def test_a_job_that_ended_without_a_record_has_failed_unless_it_was_cancelled(
    slurm: FakeSlurm, retry_failed: bool
) -> None:
    """One that never started is submitted again, as one that a command has cancelled."""
    jobs, batch = slurm.jobs(3), slurm.arrays()
    first = batch.submit(jobs, False)
    for job in jobs:
        job.directory.mkdir()
        write_status(job.directory, "running")
    for key in ("seed-0", "seed-2"):
        (batch.folder / first.queued[key].log).touch()
    batch.cancel([first.queued["seed-2"]])
    assert slurm.lines("cancelled") == ["11_2"]
    number, _, script = slurm.lines("queue")[0].split("|")
    slurm.set("queue", f"{number}|OUT_OF_MEMORY|{script}\n")
    second = slurm.arrays().submit(jobs, retry_failed)
    assert second.new == ["seed-0", "seed-1", "seed-2"][not retry_failed :]
    assert (
        jobs[0]
        .status()["error"]
        .startswith(
            "RunFailed: batch job 11_0 ended without an error record (OUT_OF_MEMORY); see sacct -j 11_0, .slurm/"
        )
    )
    assert [job.state() for job in jobs] == ["failed", "running", "running"]


def test_the_script_has_the_job_and_the_options(slurm: FakeSlurm, tmp_path: Path) -> None:
    """Run with an srun that prints its command."""
    batch = slurm.arrays(
        cpus_per_task=4,
        setup=["export greeting='a b'"],
        additional_parameters={"exclude": "node7", "x": None, "comment": "a\ntouch left_the_comment"},
    )
    batch.submit(slurm.jobs(2), False)
    call = slurm.lines("calls")[0]
    assert all(text in call for text in ("--cpus-per-task=4", "--exclude=node7", "--signal=USR2@120", "--time=240"))
    assert "--x" not in call
    (srun := slurm.root / "bin/srun").write_text('#!/bin/sh\nprintf "%s\\n" "$greeting" "$@"\nexit 75\n')
    srun.chmod(0o755)
    (slurm.root / "bin/scontrol").write_text(f'#!/bin/sh\necho "$*" >> {shlex.quote(str(slurm.root))}/requeued\n')
    job = slurm.jobs(2)[1]
    job.directory.mkdir()
    (script,) = batch.folder.glob("*.sh")
    number = {"SLURM_ARRAY_JOB_ID": "11", "SLURM_ARRAY_TASK_ID": "1", "PATH": slurm.path}

    def ran(name: str, **more: str) -> list[str]:
        write_status(job.directory, "preempted", signal=name)
        assert subprocess.run(["bash", script], env=number | more, cwd=tmp_path, timeout=limit(30)).returncode == 75
        return slurm.lines("requeued")

    assert ran("SIGTERM") == []  # SLURM requeues it, or it was cancelled
    assert ran("SIGUSR2", SLURM_RESTART_COUNT="100") == []
    assert ran("SIGUSR2", SLURM_RESTART_COUNT="99") == ["requeue 11_1"]
    assert not (tmp_path / "left_the_comment").exists()
    said = (job.directory / "output.log").read_text().splitlines()
    assert said[0] == "a b"
    assert "--cpus-per-task=4" in said
    assert f"sweep.job={quote_value(str(job.directory))}" in said


@pytest.mark.parametrize("given", [{"array": "0-3"}, {"open-mode": "truncate"}, {"wait": True}, {"clusters": "x"}])
def test_options_of_sbatch_that_the_launcher_sets_are_refused(given: dict[str, Any]) -> None:
    (key,) = given
    with pytest.raises(ConfigError, match=rf"^hydra.launcher.additional_parameters: {key}=.* - remove it, because the"):
        check_sbatch_options(given)
    check_sbatch_options(options(additional_parameters={"exclude": "node7"}).additional_parameters)


def test_a_search_is_not_left() -> None:
    """Before anything is written."""
    nothing: Any = None
    launcher: Any = SimpleNamespace(detached=True)
    with pytest.raises(ConfigError, match=r"^hydra.launcher.detach=true: a search chooses trials by the results of"):
        run_search(nothing, nothing, nothing, launcher, [], {})
