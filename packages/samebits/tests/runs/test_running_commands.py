"""Whether a command runs a sweep: seen by others, also without locks, and after the death of such a command."""

from __future__ import annotations

import errno
import fcntl
import os
import platform
import time
from pathlib import Path
from typing import Any

import pytest

from samebits.locks import Lock
from samebits.runs import SILENT_S, is_launching, launching
from samebits.runs.live import DEAD_S, LAUNCHING

HERE, ELSEWHERE = f"{LAUNCHING}{platform.node()}.", f"{LAUNCHING}elsewhere."


@pytest.fixture(params=["flock", "markers"])
def locks(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """With flock, or on a file system without it."""

    def lacking(*_: Any) -> None:
        raise OSError(errno.ENOLCK, os.strerror(errno.ENOLCK))

    if request.param == "markers":
        monkeypatch.setattr(fcntl, "flock", lacking)
    return str(request.param)


def left(sweep: Path, name: str, holder: str, age: float) -> Path:
    """The file of a killed command, and its marker of a file system without flock."""
    path = sweep / name
    path.touch()
    path.with_name(f"{name}.held").write_text(holder)
    os.utime(path, (time.time() - age, time.time() - age))
    return path


def files(sweep: Path) -> set[str]:
    return {path.name for path in sweep.glob(f"{LAUNCHING}*")}


@pytest.mark.usefixtures("locks")
def test_commands_with_one_host_name_and_process_id_run_a_sweep_beside_each_other(tmp_path: Path) -> None:
    """As in two containers; a dead process had this id, too, and its marker has no token."""
    left(tmp_path, f"{HERE}{os.getpid()}", f"{os.getpid()}\n{platform.node()}\n", age=0)
    before = files(tmp_path)
    with launching(tmp_path):
        with launching(tmp_path):
            assert is_launching(tmp_path)
        assert is_launching(tmp_path)
    assert files(tmp_path) == before


def test_a_command_waits_for_a_watch_that_looks_at_its_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flock, waited = fcntl.flock, []

    def looked_at(fd: int, how: int) -> None:
        """Take the lock of a watch on the file before the command locks it, release it when the command waits."""
        if not waited:
            (path,) = tmp_path.glob(f"{LAUNCHING}*")
            with open(path) as file:
                flock(file, fcntl.LOCK_SH)
                waited.append(not how & fcntl.LOCK_NB)
                if how & fcntl.LOCK_NB:
                    flock(fd, how)
        flock(fd, how)

    monkeypatch.setattr(fcntl, "flock", looked_at)
    with launching(tmp_path):
        assert is_launching(tmp_path)
    assert waited == [True]


@pytest.mark.usefixtures("locks")
def test_a_silent_command_of_another_host_is_presumed_dead(tmp_path: Path) -> None:
    """Whatever its lock says, because a marker outlives its process. It is alive again when a run writes."""
    path = left(tmp_path, f"{ELSEWHERE}5", "5\nelsewhere\n", age=SILENT_S + 1)
    assert not is_launching(tmp_path)
    path.with_name(f"{path.name}.held").unlink()
    with Lock(path):
        assert not is_launching(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    assert is_launching(tmp_path)


def test_files_of_dead_commands_are_removed_by_the_next_one(tmp_path: Path, locks: str) -> None:
    """Not those of processes that may be alive."""
    gone, alive = 2**22 + 1, os.getppid()  # above the largest process id of Linux
    old = DEAD_S + 60
    for name, holder, age in (
        (f"{ELSEWHERE}5", "5\nelsewhere\n", old),
        (f"{HERE}{gone}-7", f"{gone}\n{platform.node()}\n", old),
        (f"{ELSEWHERE}6", "6\nelsewhere\n", DEAD_S / 2),
        (f"{HERE}{alive}-8", f"{alive}\n{platform.node()}\n", old),
    ):
        left(tmp_path, name, holder, age)
    stay = {f"{name}{end}" for name in (f"{ELSEWHERE}6", f"{HERE}{alive}-8") for end in ("", ".held")}
    with open(tmp_path / f"{HERE}{alive}-8") as file:
        if locks == "flock":
            fcntl.flock(file, fcntl.LOCK_EX)
        with launching(tmp_path):
            assert stay < files(tmp_path)
        assert files(tmp_path) == stay
    # a run has written since
    (tmp_path / "run").mkdir()
    (tmp_path / "run/metrics.jsonl").touch()
    left(tmp_path, f"{ELSEWHERE}5", "5\nelsewhere\n", old)
    with launching(tmp_path):
        assert f"{ELSEWHERE}5" in files(tmp_path)
