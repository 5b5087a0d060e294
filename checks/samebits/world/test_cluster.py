"""What the environment says: every way to start a process ends as a plain one, a rank or a host."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from common import QUICK, TRAIN

from samebits.errors import ConfigError
from samebits.testing import assert_equal, last_checkpoint, result
from samebits.testing.processes import called, free_port, limit
from samebits.world import ClusterRole, become_rank, dist_env, rendezvous, run_rendezvous, store


def test_a_variable_left_over_in_a_shell_ends_the_command_in_one_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    import train

    monkeypatch.setenv("LOCAL_RANK", "0")
    assert train.main() == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert dist_env.size is None  # how the process ends is asked of it


def test_the_argument_of_torch_distributed_launch_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {
        "LOCAL_RANK": "1",
        "RANK": "1",
        "WORLD_SIZE": "2",
        "MASTER_ADDR": "a",
        "MASTER_PORT": "1",
        "TORCH_CPP_LOG_LEVEL": "ERROR",  # which become_rank would leave to the tests after this one
    }.items():
        monkeypatch.setenv(name, value)
    for argument, left in (("--local-rank=1", []), ("--local_rank=1", []), ("--local-rank=0", ["--local-rank=0"])):
        monkeypatch.setattr(sys, "argv", ["train.py", argument, "seed=1"])
        become_rank()
        assert sys.argv[1:] == [*left, "seed=1"]


def pods(count: int, *overrides: str, **more: str) -> list[tuple[int, str]]:
    """`count` pods of a PyTorchJob on this machine -> their exit statuses and what they said, but that they wait for
    each other, as on a busy machine."""
    shared = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(count)}
    started = [
        subprocess.Popen(  # not a warm process, in which TORCH_CPP_LOG_LEVEL is set too late: torch has been imported
            [*TRAIN, *QUICK, *overrides], env={**shared, "RANK": str(index), **more}, stderr=subprocess.PIPE, text=True
        )
        for index in reversed(range(count))
    ]
    try:
        said = [re.sub(r"(?m)^waiting for .*\n", "", process.communicate(timeout=limit(60))[1]) for process in started]
    finally:
        for process in started:
            process.kill()
    return [(process.returncode, text) for process, text in zip(started, said)][::-1]


@pytest.mark.slow
def test_two_pods_of_two_ranks_equal_four_ranks(tmp_path: Path) -> None:
    short = ("trainer=ddp", "trainer.max_steps=6")
    ended = pods(2, *short, "hardware.num_procs=2", f"hydra.run.dir={tmp_path}/pods")
    assert [status for status, _ in ended] == [0, 0], ended
    assert ended[1][1] == "", "rank 0 alone speaks"
    assert [p.name for p in tmp_path.iterdir()] == ["pods"]
    called([*TRAIN, *QUICK, *short, "hardware.num_procs=4", f"hydra.run.dir={tmp_path}/one"])
    assert_equal(last_checkpoint(tmp_path / "pods")["model"], last_checkpoint(tmp_path / "one")["model"])
    assert result(tmp_path / "pods")["test/loss"] == result(tmp_path / "one")["test/loss"]


@pytest.mark.slow
def test_a_mistake_ends_all_pods_and_is_said_once(tmp_path: Path) -> None:
    ended = pods(2, "trainer=ddp", "modle=mlp", f"hydra.run.dir={tmp_path}/run")
    assert [status for status, _ in ended] == [2, 2], ended
    assert [text.count("error: modle: no such") for _, text in ended] == [1, 0]
    ended = pods(2, "trainer.max_steps=1", f"hydra.run.dir={tmp_path}/run")
    assert [status for status, _ in ended] == [2, 2], ended
    assert "2 hosts were started: add trainer=ddp; for one process, unset RANK and WORLD_SIZE" in ended[0][1]
    assert ended[1][1] == ""


@pytest.mark.slow
def test_a_follower_names_the_address_where_nobody_is(monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = ClusterRole("host", 1, 2, "127.0.0.1", free_port())
    for module in (rendezvous, store):
        monkeypatch.setattr(module, "cluster_role", lambda *_: nobody)
    monkeypatch.setattr(rendezvous, "START_TIMEOUT_S", 1.0)
    monkeypatch.setattr(store, "_stores", {})
    with pytest.raises(ConfigError, match=r"MASTER_ADDR=127\.0\.0\.1"):
        run_rendezvous.await_directory()
