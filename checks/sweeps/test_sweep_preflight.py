"""sweep.preflight=true: what it says is right, and a job that cannot run stops the sweep before anything is written."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sweeps import SWEEP, call, call_faulty, states

TRIED = ("hydra/launcher=pool", "sweep.preflight=true")


def rows(shown: str) -> list[list[str]]:
    """The cells of the table's lines."""
    lines = shown.partition("\n\npreflight: ")[0].splitlines()
    assert lines[0].split()[:2] == ["job", "steps"]
    return [re.split(r"\s{2,}", line) for line in lines[1:]]


@pytest.mark.slow
def test_it_tells_steps_and_shapes(tmp_path: Path) -> None:
    where = f"hydra.sweep.dir={tmp_path}/s"
    options = ("model.hidden=[8],[16,16]", "optim.lr=1e-3,2e-3", "trainer.global_batch_size=32", where)
    done = call(*SWEEP, *TRIED, *options)
    table = rows(done.stderr)
    assert [row[0] for row in table] == ["0", "1", "2", "3"]
    assert {row[1] for row in table} == {"6"}
    assert {row[5] for row in table} == {"x (32, 1, 8, 8), y (32,)"}
    assert "preflight: 4 jobs of 2 shapes" in done.stderr
    assert table[0][2:4] == table[1][2:4], "jobs of one shape are timed once"
    assert all(float(row[2]) > 0 and int(row[3].split()[0].replace(",", "")) > 50 for row in table)
    assert states(tmp_path / "s") == ["finished"] * 4
    again = call(*SWEEP, *TRIED, *options)
    assert "preflight: no job is to run" in again.stderr


@pytest.mark.slow
def test_several_ranks_show_one_ranks_share(tmp_path: Path) -> None:
    more = ("trainer=ddp", "hardware.num_procs=2", "hardware.micro_batch_size=16", "seed=0,1")
    done = call(*SWEEP, *TRIED, *more, f"hydra.sweep.dir={tmp_path}/s")
    assert {row[5] for row in rows(done.stderr)} == {"x (16, 1, 8, 8), y (16,)"}
    assert "2 jobs of 1 shape" in done.stderr


@pytest.mark.slow
def test_a_job_that_cannot_be_built_stops_the_sweep(tmp_path: Path) -> None:
    done = call(*SWEEP, *TRIED, "data.splits.val.rows=[0,1],[0,2]", f"hydra.sweep.dir={tmp_path}/s", code=2)
    assert "error: preflight: job 1 (data.splits.val.rows=[0,2]): data.splits.val.rows=[0, 2]: must be" in done.stderr
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("os.kill(os.getpid(), signal.SIGKILL)", "it ended with status -9"),
        ("raise ZeroDivisionError('the cause')", "ZeroDivisionError: the cause ("),
    ],
)
def test_a_batch_that_fails_is_one_line(tmp_path: Path, fault: str, says: str) -> None:
    """The third call of forward_loss, in whichever process."""
    third = f"pass\n    if seen['calls'] == 3:\n        {fault}"
    done = call_faulty(third, *SWEEP, *TRIED, "seed=5,6", f"hydra.sweep.dir={tmp_path}/s", code=1)
    assert done.stderr.startswith(f"failed: preflight: job 0 (seed=5): {says}")
    assert done.stderr.count("\n") == 1
    assert not list(tmp_path.iterdir())
