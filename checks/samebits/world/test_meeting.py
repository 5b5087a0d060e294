"""Processes that wait for each other before a run begins: what they say, and how that ends."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from common import QUICK, ROOT

from lab.program import PROGRAM
from samebits.runs import fill_directory
from samebits.status import read_failure
from samebits.testing import compose, status
from samebits.testing.processes import called, free_port, limit, processes_with, warm

# a command that says after 0.2 s what it waits for (AGAIN_S: and how often), and waits for at most argv[1] seconds
COMMAND = f"""
import os, sys; sys.path.insert(0, {str(ROOT / "src")!r})
from samebits import early_signals
early_signals.prepare()
from samebits.world import rendezvous
rendezvous.SAY_S, rendezvous.START_TIMEOUT_S = 0.2, float(sys.argv.pop(1))
rendezvous.SAY_AGAIN_S = float(os.environ.get("AGAIN_S", "60"))
import train
train.leave(train.main())
"""
OF_RANKS = ("trainer=ddp", "trainer.max_steps=2")
RANK = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
ALONE = {  # who is alone -> its variables, what it waits for
    "rank 0": (RANK | {"RANK": "0"}, "rank 1 of 2 at"),
    "rank 1": (RANK | {"RANK": "1"}, "rank 0 at"),
    "host 0": ({"RANK": "0"}, "host 1 of 2 at"),
    "host 1": ({"RANK": "1"}, "rank 0 at"),
}


def start(tmp_path: Path, limit_s: float, *overrides: str, **env: str) -> subprocess.Popen[str]:
    return typed(tmp_path, limit_s, *QUICK, *OF_RANKS, *overrides, f"hydra.run.dir={tmp_path}/run", **env)


def typed(tmp_path: Path, limit_s: float, *arguments: str, **env: str) -> subprocess.Popen[str]:
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2"}
    return warm.Popen(
        [sys.executable, "-c", COMMAND, str(limit_s), *arguments],
        env={**os.environ, **meeting, **env}, stderr=subprocess.PIPE, text=True, bufsize=1, cwd=tmp_path,
    )  # fmt: skip


def ended(process: subprocess.Popen[str], tmp_path: Path) -> tuple[int, str]:
    """Exit status and what it said; nothing is left of it."""
    try:
        said = process.communicate(timeout=limit(30))[1]
    finally:
        process.kill()
    assert not (tmp_path / "run").exists()
    assert not processes_with(str(tmp_path))
    return process.returncode, said


@pytest.mark.slow
@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 75), (signal.SIGHUP, 75), (signal.SIGINT, 130)])
@pytest.mark.parametrize("who", ALONE)
def test_a_signal_ends_who_waits_at_once(tmp_path: Path, who: str, number: signal.Signals, status: int) -> None:
    env, awaited = ALONE[who]
    process = start(tmp_path, 600, **env)
    assert process.stderr is not None
    line = process.stderr.readline()
    assert line.startswith(f"waiting for {awaited} MASTER_ADDR=127.0.0.1 MASTER_PORT=")
    process.send_signal(number)
    found, said = ended(process, tmp_path)  # long before the limit of 600 s
    assert (found, said.count("\n")) == (status, 1), said
    assert said.startswith(f"{number.name}: stopped before the run began")


@pytest.mark.slow
@pytest.mark.parametrize("who", ALONE)
def test_a_limit_ends_who_waits_in_a_line(tmp_path: Path, who: str) -> None:
    """The shorter one of START_TIMEOUT_S and three times process.timeout."""
    env, awaited = ALONE[who]
    for limit_s, timeout in ((1.5, "10m"), (600, "0.5")):
        found, said = ended(start(tmp_path, limit_s, f"process.timeout={timeout}", **env), tmp_path)
        assert found == 2
        assert re.fullmatch(rf"waiting for {awaited} .*\nerror: MASTER_ADDR=.* within 2 s: .*\n", said), said


def test_a_host_that_still_connects_ends_without_a_teardown() -> None:
    """Its thread is in a native call, and aborts the process where rank 0 answers during the teardown."""
    code = (
        f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n"
        "import atexit, time, train\nfrom samebits.world.rendezvous import Wait\n"
        "atexit.register(print, 'teardown')\n"
        "seconds, limit_s = map(float, sys.argv[1:])\n"
        "try: Wait('rank 0').run(lambda: time.sleep(seconds), limit_s)\n"
        "except TimeoutError: pass\n"
        "train.leave(2)"
    )
    for *waits, said in (("1000", "0.2", ""), ("0", "1000", "teardown\n")):
        assert called([sys.executable, "-c", code, *waits], code=2).stdout == said


@pytest.mark.slow
def test_a_program_that_does_not_answer_is_left_as_well(tmp_path: Path) -> None:
    """Another program's port, which takes connections: within the store's own calls no signal is heard."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = start(tmp_path, 600, **RANK, RANK="1", MASTER_PORT=str(other.getsockname()[1]))
        assert process.stderr is not None
        assert process.stderr.readline().startswith("waiting for rank 0 at")
        process.send_signal(signal.SIGTERM)
        assert ended(process, tmp_path)[0] == 75


@pytest.mark.slow
@pytest.mark.parametrize("who", ["rank 0", "host 0"])
def test_a_port_that_is_taken_is_one_line(tmp_path: Path, who: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        process = start(tmp_path, 600, **ALONE[who][0], MASTER_PORT=(port := str(other.getsockname()[1])))
        found, said = ended(process, tmp_path)
    why = "another program uses this port; give all ranks another MASTER_PORT"
    line = f"error: MASTER_ADDR=127.0.0.1 MASTER_PORT={port}: the ranks cannot connect: {why}\n"
    assert (found, said) == (2, line)


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [("2", "3"), ("3", "2")])
@pytest.mark.parametrize("kind", ["rank", "host"])
def test_unlike_numbers_of_processes_are_named(tmp_path: Path, kind: str, sizes: tuple[str, str]) -> None:
    port, env = str(free_port()), RANK if kind == "rank" else {}
    started = [
        start(tmp_path, 60, **env, RANK=str(rank), WORLD_SIZE=size, MASTER_PORT=port) for rank, size in enumerate(sizes)
    ]
    for process in started:
        found, said = ended(process, tmp_path)
        assert found == 2
        line = rf"error: rank 0 is one of {sizes[0]} processes, {kind} 1 on .* one of {sizes[1]}: .*WORLD_SIZE"
        assert re.search(line, said), said


@pytest.mark.slow
@pytest.mark.parametrize("signalled", [0, 1])
def test_a_signal_to_one_of_those_that_wait_ends_all(tmp_path: Path, signalled: int) -> None:
    port = str(free_port())
    more = {**RANK, "WORLD_SIZE": "3", "MASTER_PORT": port, "AGAIN_S": "0.2"}
    started = [start(tmp_path, 600, **more, RANK=str(rank)) for rank in range(2)]
    assert started[0].stderr is not None
    while "waiting for rank 2 of 3" not in (line := started[0].stderr.readline()):  # rank 1 has answered then
        assert line, "it has ended"
    started[signalled].send_signal(signal.SIGTERM)
    for process in started:
        found, said = ended(process, tmp_path)
        assert found == 75, said


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code", "state"), [(signal.SIGTERM, 75, "preempted"), (signal.SIGINT, 130, "interrupted")]
)
def test_a_job_of_a_sweep_that_is_cancelled_before_all_are_there_goes_on_later(
    tmp_path: Path, number: signal.Signals, code: int, state: str
) -> None:
    """As by scancel while another node boots: the sweep counts it neither as failed nor as ended."""
    job = tmp_path / "sweep" / "job"
    job.mkdir(parents=True)
    fill_directory(PROGRAM, job, compose(*QUICK, *OF_RANKS), [*QUICK, *OF_RANKS])
    process = typed(tmp_path, 600, f"sweep.job={job}", **RANK, RANK="0")
    assert process.stderr is not None
    assert process.stderr.readline().startswith("waiting for rank 1 of 2 at")
    process.send_signal(number)
    assert ended(process, tmp_path)[0] == code
    assert {"status": state, "signal": number.name}.items() <= status(job).items()
    assert read_failure(job) is None
