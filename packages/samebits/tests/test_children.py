"""Child processes: how their parent learns that they have ended."""

from __future__ import annotations

import multiprocessing
import os
import signal
import time
from pathlib import Path

from samebits.children import exited
from samebits.testing.processes import wait_for


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
