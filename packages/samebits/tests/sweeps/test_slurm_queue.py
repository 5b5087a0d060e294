"""When a batch job counts as ended, without a cluster."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.errors import RunFailed
from samebits.sweeps import slurm


def a_batch() -> slurm.Batch:
    work: Any = SimpleNamespace(ledger=None, total=[])
    return slurm.Batch(work, SimpleNamespace(jobs_at_once=1))  # type: ignore[arg-type]


@pytest.mark.parametrize("state", ["queued", "running", "preempted", "failed", "finished", "interrupted"])
def test_a_job_that_goes_back_into_the_queue_may_be_missing_for_a_moment(state: str) -> None:
    batch, said = a_batch(), []
    batch._screen = SimpleNamespace(say=said.append)  # type: ignore[assignment]
    job: Any = SimpleNamespace(state=lambda: state)
    one = slurm.Submitted(job, "17_3", began=100.0, seen=100.0)
    batch._running = [one]
    at_once = state in ("failed", "finished", "interrupted")
    assert batch._gone({"17_2", "17_3"}, 110.0) == []
    assert batch._gone(None, 120.0) == []  # squeue failed
    assert batch._gone({"17_2"}, 122.0) == ([one] if at_once else [])
    assert batch._gone({"17_2"}, 120.0 + slurm.REQUEUE_S + 1) == [one]
    assert batch._gone({"17_3"}, 150.0) == []  # it was back
    assert [line.split(";")[0] for line in said] == (
        [] if at_once else ["batch job 17_3 has left SLURM's queue unfinished"]
    )
    batch._ending = True  # after scancel nothing comes back
    assert batch._gone({"17_2"}, 151.0) == [one]


def test_no_answer_of_squeue_is_not_an_empty_queue(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A job that may be there still is not submitted again; and its user's variables change no answer."""
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setenv("SQUEUE_STATES", "RUNNING")
    squeue = tmp_path / "squeue"
    squeue.write_text('#!/bin/sh\ntest -z "$SQUEUE_STATES" || exit 0\necho 17_3\n')
    squeue.chmod(0o755)
    (tmp_path / slurm.NUMBER).write_text("17_3")
    batch, job = a_batch(), SimpleNamespace(directory=tmp_path, number=3)
    assert list(batch._adopt([job])) == []  # type: ignore[list-item]
    assert [one.number for one in batch._running] == ["17_3"]
    squeue.write_text("#!/bin/sh\necho slurm_load_jobs error: Unable to contact slurm controller >&2\nexit 1\n")
    with pytest.raises(RunFailed, match=r"job 3 may still be in SLURM's queue \(17_3\), but squeue fails: slurm_load"):
        list(batch._adopt([job]))  # type: ignore[list-item]
    assert batch._queue() is None
    said = capsys.readouterr()
    assert (said.out + said.err).count("Unable to contact slurm controller") == 1


def test_ctrl_c_cancels_the_batch_jobs_and_a_second_one_leaves_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before, commands = signal.getsignal(signal.SIGHUP), []
    monkeypatch.setattr(slurm, "_slurm", commands.append)

    def act() -> None:
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_DFL  # the batch jobs do not need this process
        signal.raise_signal(signal.SIGINT)
        assert batch._ending
        signal.raise_signal(signal.SIGINT)

    batch = a_batch()
    batch._running = [slurm.Submitted(SimpleNamespace(), "17_3"), slurm.Submitted(SimpleNamespace(), "17_4")]  # type: ignore[arg-type]
    monkeypatch.setattr(batch, "_run", act)
    with pytest.raises(KeyboardInterrupt):
        batch.run()
    assert commands == [["scancel", "17_3", "17_4"]]
    assert signal.getsignal(signal.SIGHUP) is before
