"""Child processes: how their parent learns that they have ended."""

from __future__ import annotations

import errno
import multiprocessing
import os
import shutil
import signal
import sys
import time
from multiprocessing import heap
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.children import Heartbeats, exited, process_state
from samebits.errors import ConfigError, one_line
from samebits.sweeps.job_process import FAULT, death
from samebits.testing.processes import wait_for
from samebits.world.launch import RankLauncher


def leave_an_orphan(pid: Path) -> None:
    orphan = os.fork()
    if orphan == 0:
        time.sleep(1000)
    pid.write_text(str(orphan))
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_child_has_exited_though_its_own_child_runs(tmp_path: Path) -> None:
    """The orphan keeps the child's sentinel open, so a parent that waits only for sentinels waits for the orphan."""
    context = multiprocessing.get_context("fork")
    processes = [
        context.Process(target=leave_an_orphan, args=(tmp_path / "pid",)),
        context.Process(target=time.sleep, args=(1000,)),
    ]
    for process in processes:
        process.start()
    try:
        ended = wait_for(lambda: exited(processes, 0.05), seconds=10)
        assert ended == processes[:1]
        assert ended[0].exitcode == -signal.SIGKILL
    finally:
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        processes[1].kill()
        processes[1].join()


# as Python 3.11 wrote it when the frames of the second thread were freed while it read them
CUT_SHORT = """Fatal Python error: Bus error

Current thread 0x00007f9cbd4a96c0 (most recent call first):
  File "bus.py", line 10 in touch

Thread 0x00007f9cbe1bcb80 (most recent call first):
  File "bus.py", line 6 in rec
  File "bus.py"Fatal Python error: Segmentation fault

"""
OTHER = "Fatal Python error: Segmentation fault\n\nCurrent thread 0x00007f9cbd4a96c0 (most recent call first):\n"


def test_a_job_that_could_not_record_its_error_names_a_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job: Any = SimpleNamespace(directory=tmp_path)
    assert str(death(job, 1)).endswith("without an error record; see output.log")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: SimpleNamespace(free=0))
    assert f"; the disk of {tmp_path} is full: " in str(death(job, 1))


@pytest.mark.parametrize(
    ("number", "stack", "said"),
    [
        (signal.SIGSEGV, CUT_SHORT, "SIGBUS (a data file was cut short"),
        (signal.SIGSEGV, OTHER, "SIGSEGV"),
        (signal.SIGSEGV, "", "SIGSEGV"),
        (signal.SIGKILL, CUT_SHORT, "SIGKILL"),
    ],
)
def test_a_crash_while_the_stack_is_written_does_not_hide_the_first_error(
    number: signal.Signals, stack: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither of a sweep's job nor of a rank."""
    (tmp_path / FAULT).write_text(stack)
    job: Any = SimpleNamespace(directory=tmp_path)
    assert str(death(job, -number)).startswith(f"the job was killed by {said}")
    launcher, messages = RankLauncher(), list[str]()
    rank = {
        "_processes": [SimpleNamespace(exitcode=-number)],
        "_heartbeats": SimpleNamespace(said=lambda index: False),
        "_stacks": [SimpleNamespace(poll=lambda: False)],
        "_written": [stack],
        "_record": lambda folder, rank, message, **more: messages.append(message),
    }
    for name, value in rank.items():
        monkeypatch.setattr(launcher, name, value, raising=False)
    launcher._record_death(tmp_path)
    (message,) = messages
    assert message.startswith(f"rank 0 was killed by {said}")


def test_no_ranks_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^RankLauncher\.run: count must be >= 1, got 0$"):
        RankLauncher().run(lambda folder: None, tmp_path, 0)


@pytest.mark.skipif(sys.platform != "linux", reason="of Linux")
def test_without_shared_memory_one_line_names_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(path: str) -> None:
        raise FileNotFoundError(2, "No such file or directory", path)

    monkeypatch.setattr(os, "statvfs", missing)
    monkeypatch.setattr(heap.BufferWrapper, "_heap", heap.Heap())  # a new one, which has no memory yet
    with pytest.raises(ConfigError, match=r"^processes of ranks and jobs need shared memory \(.*'/dev/shm'\); mount "):
        Heartbeats(multiprocessing, 2)


@pytest.mark.parametrize(
    ("error", "remedy"),
    [
        (RuntimeError("can't start new thread"), "ulimit -u"),
        (BlockingIOError(errno.EAGAIN, os.strerror(errno.EAGAIN)), "ulimit -u"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE)), "ulimit -n"),
        (OSError(errno.EMFILE, os.strerror(errno.EMFILE), "a.txt"), "ulimit -n"),
        (BlockingIOError("unable to lock file, errno = 11, error message = 'Resource temporarily unavailable'"), ""),
    ],
)
def test_an_error_at_a_limit_of_the_system_has_its_remedy(error: Exception, remedy: str) -> None:
    line = one_line(error)
    assert line.startswith(f"{type(error).__name__}: {error}")
    assert ("raise the limit" in line) == bool(remedy)
    assert remedy in line


@pytest.mark.skipif(not Path("/proc/self/comm").exists(), reason="needs Linux's /proc")
def test_a_process_name_may_end_within_a_letter() -> None:
    """setproctitle sets it, and the kernel keeps 15 bytes."""
    comm = Path("/proc/self/comm")
    before = comm.read_bytes()
    try:
        comm.write_bytes("(a b) 训练模型".encode()[:14])
        assert process_state(os.getpid()) in ("R", "S")
    finally:
        comm.write_bytes(before)
