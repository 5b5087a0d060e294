"""What ranks hear of each other by the store, and that nobody waits for a store that does not answer."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.status import read_failure
from samebits.testing.processes import free_port, limit, on_ranks, wait_for
from samebits.world import timer, watchdog
from samebits.world.board import FAILED, STUCK, Board, tell_failed
from samebits.world.collectives import World
from samebits.world.environment import rank_environment
from samebits.world.watchdog import HangWatchdog


class Patient(Board):
    """Waits for an answer of the store however busy this machine is."""

    def ask(self, call: Callable[[Any], Any], default: Any, wait_s: float = 0.0) -> Any:
        return super().ask(call, default, limit(60))


def test_a_failure_is_heard_by_all_but_the_one_that_failed(tmp_path: Path) -> None:
    def work(world: World, folder: Path) -> None:
        board = Patient(os.environ)
        assert board.look(world.rank) == ""
        world.barrier()
        if world.rank == 1:
            tell_failed(1, os.environ)
        world.barrier()
        assert board.look(world.rank) == ("" if world.rank == 1 else FAILED)

    on_ranks(work, tmp_path / "run", 3)


@pytest.mark.slow
def test_each_round_has_its_own_reports(tmp_path: Path) -> None:
    """A rank that reported in an earlier round, and says nothing now, must be missing now."""

    def work(world: World, folder: Path) -> None:
        board, own = Patient(os.environ), {"rank": world.rank}
        for number in range(3):
            if world.rank == number:
                board.say_where(world.rank, own, f"stack of {number}")
            world.barrier()
            assert board.look(world.rank) == STUCK
            if number < 2:
                for _ in range(2):  # the second has no effect
                    board.say_where(world.rank, own, f"stack {number} of {world.rank}")
            world.barrier()
            ranks = sorted(report["rank"] for report in board.reports())
            assert ranks == ([0, 1, 2] if number < 2 else [2])
            assert board.stack(number) == f"stack of {number}"
            world.barrier()
            if world.rank != 1:  # two find at once that all move
                board.end_round()
            world.barrier()
            assert board.look(world.rank) == ""
            world.barrier()

    on_ranks(work, tmp_path / "run", 3)


def test_a_late_answer_counts_at_the_next_call() -> None:
    """The store of 1,024 ranks that all stand still may not answer in time. An answer of an earlier round does not."""
    come, never = threading.Event(), threading.Event()
    board = Board({})

    def get(key: str) -> bytes:
        if key == "stuck/0" and not come.is_set():
            come.wait()
            return b'{"rank": 3}\n'
        never.wait()
        raise RuntimeError

    board._store = SimpleNamespace(get=get, set=lambda *told: None)
    try:
        assert board.reports() == []
        come.set()
        assert board._asking is not None
        board._asking.join()
        assert board.reports() == [{"rank": 3}]
        board._round += 1
        assert board.reports() == []
    finally:
        never.set()


HOLDER = """
import sys, time
from samebits.world.store import store
store()
print("holds", flush=True)
time.sleep(1000)
"""


@pytest.mark.slow
def test_a_store_that_is_stopped_or_gone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Rank 0 holds it, as with srun. Stopped, it is found to be the one that hangs; gone, the others end."""
    env = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1"}
    env |= {"LOCAL_RANK": "0", "TORCH_CPP_LOG_LEVEL": "ERROR"}
    rank_0 = subprocess.Popen(
        [sys.executable, "-c", HOLDER], stdout=subprocess.PIPE, text=True,
        env={**os.environ, **env, "RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    try:
        assert rank_0.stdout is not None
        assert rank_0.stdout.readline() == "holds\n"
        for name, value in {**env, "RANK": "1"}.items():
            monkeypatch.setenv(name, value)
        board = Board(os.environ)
        wait_for(lambda: board.look(1) == "" and not board.lost, seconds=limit(20))
        os.kill(rank_0.pid, signal.SIGSTOP)
        began = time.monotonic()
        for _ in range(5):
            assert board.look(1) == ""
        assert time.monotonic() - began < limit(30)
        ended: list[str] = []
        monkeypatch.setattr(HangWatchdog, "_end", lambda self: ended.append("end"))
        monkeypatch.setattr(watchdog, "GATHER_S", 1.0)
        standing = HangWatchdog(tmp_path, 1, 2, 5.0)
        monkeypatch.setattr(
            standing, "_position", lambda: (watchdog.Report(1, 9.0, 5.0, 7, "training", True, True), "")
        )
        standing._stands_still(standing.latest())
        assert ended == ["end"]
        assert "rank 0 hung: the others waited for it" in (read_failure(tmp_path) or {})["message"]
        rank_0.kill()
        wait_for(lambda: board.look(1) == FAILED, seconds=limit(20))
        assert board.lost
    finally:
        timer.disarm()  # that of `standing`, which would end the tests
        rank_0.kill()
        rank_0.communicate()


def test_a_launcher_finds_the_store_of_its_ranks(tmp_path: Path) -> None:
    file = str(tmp_path / "store")
    environments = [rank_environment(rank, 2, file) for rank in range(2)]
    tell_failed(1, environments[0])
    assert [Patient(env).look(rank) for rank, env in enumerate(environments)] == [FAILED, ""]
    tell_failed(0, rank_environment(0, 1, str(tmp_path / "alone")))
    assert not (tmp_path / "alone").exists(), "one rank has nobody to tell"


def test_a_rank_is_beyond_its_limit_though_it_reported_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another rank looked for the stuck one shortly before the limit of this one, which is longer in a callback."""
    for name, value in rank_environment(1, 2, str(tmp_path / "store")).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(HangWatchdog, "_end", lambda self: None)
    board, watch = Patient(os.environ), HangWatchdog(tmp_path, 1, 2, 5.0)
    board.say_where(0, asdict(watchdog.Report(0, 9.0, 5.0, 7, "training", True, True)), "")
    now = watchdog.Report(1, 181.0, 180.0, 7, "on_log", False, False)
    watch._board.say_where(1, asdict(replace(now, idle_s=179.0)), "")
    monkeypatch.setattr(watch, "_position", lambda: (now, ""))
    try:
        watch._stands_still(watch.latest())
    finally:
        timer.disarm()
    assert "rank 1 hung: it did not move for 180 s" in (read_failure(tmp_path) or {})["message"]


@pytest.mark.parametrize("told", [False, True])
def test_a_rank_that_told_of_its_failure_was_not_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, told: bool
) -> None:
    """Its record is missing, because the disk is full or the directory was removed."""
    for name, value in rank_environment(1, 2, str(tmp_path / "store")).items():
        monkeypatch.setenv(name, value)
    watch = HangWatchdog(tmp_path, 1, 2, 5.0)
    watch._board, watch.dead_peers = Patient(os.environ), lambda: [0]
    if told:
        tell_failed(0, os.environ)
    watch.record_dead_peers()
    assert (read_failure(tmp_path) is None) == told


@pytest.mark.parametrize(("works_at", "overdue_at"), [(None, 31), (25, 56)])
def test_a_callback_waits_since_it_was_last_seen_at_work(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, works_at: int | None, overdue_at: int
) -> None:
    """One that trains is in backward, or in a collective, at nearly each look."""
    now = [0]
    monkeypatch.setattr(watchdog, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(watchdog, "waits", lambda frame: now[0] != works_at)
    watch, mark = HangWatchdog(tmp_path, 0, 2, 10.0), watchdog.Mark(at=0.0, step=7, doing="on_log", limit=36.0)
    for now[0] in range(1, 60):
        if watch._is_overdue(mark, now[0], 10.0):
            break
    assert now[0] == overdue_at


def test_the_watch_thread_goes_on_if_no_thread_can_be_started(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise its heartbeats would end, and the launcher would kill a rank that trains."""
    watch, looks = HangWatchdog(tmp_path, 0, 2, None), []

    def look(now: float) -> None:
        looks.append(now)
        if len(looks) == 1:
            raise RuntimeError("can't start new thread")
        watch._over.set()

    monkeypatch.setattr(watchdog, "POLL_S", 0.01)
    monkeypatch.setattr(watch, "_look_at_the_others", look)
    watch._work()
    assert len(looks) == 2
