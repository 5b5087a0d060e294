"""Locks and files written once, also on file systems that have neither flock nor hard links."""

from __future__ import annotations

import errno
import fcntl
import math
import multiprocessing
import os
import platform
import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits import locks
from samebits.errors import ConfigError, CorruptFileError, DirectoryLockedError
from samebits.runs import claimed, directory, is_claimed
from samebits.status import read_failure, record_failure, write_status
from samebits.sweeps import Ledger
from samebits.sweeps.search.drive import driving


def lacking(number: int) -> Callable[..., Any]:
    def call(*_: Any, **__: Any) -> None:
        raise OSError(number, os.strerror(number))

    return call


@pytest.fixture(params=["flock", errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def file_system(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Any:
    """With flock and links; or without, as the errors say."""
    if request.param != "flock":
        monkeypatch.setattr(fcntl, "flock", lacking(request.param))
        monkeypatch.setattr(os, "link", lacking(errno.EPERM))
    return request.param


def test_the_lock_of_another_user_is_only_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Their runs can be verified and reported."""

    def read_only(path: Path, flags: int, *more: int) -> int:
        if flags & (os.O_WRONLY | os.O_RDWR):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return opened(path, flags, *more)

    opened, path = os.open, tmp_path / ".lock"
    with locks.Lock(path):
        monkeypatch.setattr(os, "open", read_only)
        assert locks.is_locked(path)
    assert not locks.is_locked(path)


def in_a_process(work: Callable[..., None], *arguments: Any) -> int | None:
    process = multiprocessing.get_context("fork").Process(target=work, args=arguments)
    process.start()
    process.join()
    return process.exitcode


def hold_and_die(path: Path) -> None:
    lock = locks.Lock(path)
    assert lock
    os._exit(7)


def test_a_marker_that_leads_nowhere_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It can neither be created nor be read; each attempt to create it began another one."""
    monkeypatch.setattr(fcntl, "flock", lacking(errno.ENOLCK))
    path = tmp_path / ".lock"
    locks.marker_of(path).symlink_to(tmp_path / "nothing")
    with pytest.raises(CorruptFileError, match="is a symbolic link"):
        locks.Lock(path)


@pytest.mark.usefixtures("file_system")
def test_one_process_at_a_time_holds_a_lock(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert not locks.is_locked(path)
    with locks.Lock(path):
        assert locks.is_locked(path)
        with pytest.raises(locks.Busy):
            locks.Lock(path)
    assert not locks.is_locked(path)
    with locks.Lock(path, wait_s=math.inf):
        assert locks.is_locked(path)
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.one_quick
@pytest.mark.usefixtures("file_system")
def test_the_lock_of_a_dead_process_is_free(tmp_path: Path) -> None:
    path = tmp_path / ".lock"
    assert in_a_process(hold_and_die, path) == 7
    assert not locks.is_locked(path)
    with locks.Lock(path):
        assert locks.is_locked(path)
    assert os.listdir(tmp_path) == [".lock"]


@pytest.mark.usefixtures("file_system")
def test_a_forked_child_does_not_give_away_its_parents_lock(tmp_path: Path) -> None:
    with locks.Lock(tmp_path / ".lock") as lock:
        assert in_a_process(lock.close) == 0
        assert locks.is_locked(tmp_path / ".lock")


def test_a_holder_that_nobody_can_see_is_left_to_the_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fcntl, "flock", lacking(errno.ENOSYS))
    held = tmp_path / ".lock.held"
    held.write_text("1\nelsewhere\n")
    says = r"wait for it or stop it - .*held names process 1 on elsewhere; delete it if that process is gone"
    with pytest.raises(DirectoryLockedError, match=says), claimed(tmp_path):
        pass
    assert is_claimed(tmp_path)
    held.write_text("")  # it has not yet said who it is
    with pytest.raises(locks.Busy):
        locks.Lock(tmp_path / ".lock")
    # a number that another process has got since, after a restart of the machine
    held.write_text(f"{os.getpid()}\n{platform.node()}\n5\n")
    with claimed(tmp_path):
        assert is_claimed(tmp_path)


@pytest.mark.usefixtures("file_system")
def test_a_directory_that_is_locked_for_a_moment_can_be_claimed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a report that asks if it is locked, or by a killed process that the kernel has not removed yet."""
    held = [locks.Lock(tmp_path / ".lock")]
    monkeypatch.setattr(time, "sleep", lambda _: held.pop().close())
    with claimed(tmp_path):
        assert is_claimed(tmp_path)
    assert not held


def take_in_turns(path: Path, count: Path) -> None:
    for _ in range(10):
        with locks.Lock(path, wait_s=math.inf):
            count.write_text(str(int(count.read_text()) + 1))


@pytest.mark.one_quick
@pytest.mark.usefixtures("file_system")
def test_waiting_processes_take_turns(tmp_path: Path) -> None:
    count = tmp_path / "count"
    count.write_text("0")
    (tmp_path / ".lock.held").write_text(f"{2**22 + 1}\n{platform.node()}\n")
    context = multiprocessing.get_context("fork")
    processes = [context.Process(target=take_in_turns, args=(tmp_path / ".lock", count)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert count.read_text() == "30"


@pytest.mark.usefixtures("file_system")
def test_everything_that_locks_works(tmp_path: Path) -> None:
    with claimed(tmp_path / "run"), pytest.raises(DirectoryLockedError), claimed(tmp_path / "run"):
        pass
    search = tmp_path / "search"
    with driving(tmp_path, search), pytest.raises(ConfigError, match="another process runs"), driving(tmp_path, search):
        pass
    project: Any = SimpleNamespace(root=tmp_path)
    with Ledger(project, tmp_path / "sweep")._exclusive():
        assert locks.is_locked(tmp_path / "sweep" / ".lock")


@pytest.mark.usefixtures("file_system")
def test_the_first_failure_is_kept(tmp_path: Path) -> None:
    write_status(tmp_path, "running")
    assert record_failure(tmp_path, 1, ValueError("the cause"))
    assert not record_failure(tmp_path, 0, ValueError("an echo"))
    assert read_failure(tmp_path)["message"] == "the cause"  # type: ignore[index]
    assert directory.read_json(tmp_path / "status.json")["error"] == "ValueError: the cause"
    assert record_failure(tmp_path, 2, ValueError("it came before"), first=True)
    assert read_failure(tmp_path)["rank"] == 2  # type: ignore[index]
    assert sorted(os.listdir(tmp_path)) == ["failure.json", "status.json"]


def test_the_first_failure_is_in_the_status_if_the_disk_is_too_full_for_its_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full_disk(*given: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("samebits.status.failures.write_once", full_disk)
    write_status(tmp_path, "running")
    told = [record_failure(tmp_path, rank, ValueError(text)) for rank, text in enumerate(["the cause", "an echo"])]
    assert told == [True, False]
    assert directory.read_json(tmp_path / "status.json")["error"] == "ValueError: the cause"
