"""End processes with their parent, even if it is killed; state of other processes. Does not import torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterable
from multiprocessing import connection, util
from typing import Any

from samebits.torch_private import set_death_signal

POLL_S = 1.0
_ends_children = 0  # the process that has registered `_end_children`


def die_with(parent: int) -> None:
    """Kill this process when `parent` ends. On Linux the kernel does it (PR_SET_PDEATHSIG), which needs that the
    parent's main thread has started this process; on other systems a thread polls."""
    if not set_death_signal(signal.SIGKILL):
        threading.Thread(target=_outlive, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def die_with_starter(by_main_thread: bool) -> None:
    """End this `multiprocessing` process with its starter, whatever the start method (even through a fork server).

    by_main_thread: the starter's main thread started it. For other threads this polls, because the kernel sends its
    signal when the starting thread ends."""
    starter = multiprocessing.parent_process()
    assert starter is not None
    assert starter.pid is not None
    if by_main_thread and starter.pid == os.getppid():
        die_with(starter.pid)
    else:
        threading.Thread(target=_outlive, args=(os.getppid(),), name="parent", daemon=True).start()


def end_children_at_exit() -> None:
    """Kill daemon processes of user code when this process exits.

    multiprocessing would send them SIGTERM and wait forever, because they have inherited a handler that only requests a
    save.
    """
    global _ends_children
    if _ends_children != os.getpid():  # a forked process has no such children
        _ends_children = os.getpid()
        util.Finalize(None, _end_children, exitpriority=50)


def _end_children() -> None:
    for child in multiprocessing.active_children():
        if child.daemon:
            child.kill()


def _outlive(parent: int) -> None:
    starter = multiprocessing.parent_process()
    while os.getppid() == parent and (starter is None or starter.is_alive()):
        time.sleep(POLL_S)
    os._exit(1)


def exited(processes: Iterable[Any], wait_s: float) -> list[Any]:
    """Return the `multiprocessing` processes that have exited; wait up to wait_s seconds for the first.

    A sentinel alone is not enough: a process that a child has forked keeps it open after the child's end."""
    processes = list(processes)
    closed = connection.wait([process.sentinel for process in processes], wait_s)
    return [process for process in processes if process.sentinel in closed or not process.is_alive()]


def process_state(pid: int) -> str | None:
    """Return the state of a process as a letter, as in ps: R running, S waiting, T stopped, t traced, Z zombie, X dead;
    "" if there is no such process, None if it is unknown (no /proc)."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the process name before it may contain spaces and brackets, and end within a letter
            return file.read().rpartition(b")")[2].split()[0].decode()
    except OSError:
        return "" if os.path.isdir("/proc/self") else None
