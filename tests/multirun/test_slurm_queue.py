"""When a batch job counts as ended, without a cluster."""

from __future__ import annotations

import signal
from types import SimpleNamespace
from typing import Any

import pytest

from multirun import slurm


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


def test_ctrl_c_cancels_the_batch_jobs_and_a_second_one_leaves_them_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    before, commands = signal.getsignal(signal.SIGHUP), []
    monkeypatch.setattr(slurm.subprocess, "run", lambda command, **_: commands.append(command))

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
