"""Processes that end with their parent, even if it was killed; another's state. Importing this imports no torch."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
import time
from multiprocessing import util

from samebits.torch_private import set_death_signal

POLL_S = 1.0
_ends_children = 0  # the process that does so


def die_with(parent: int) -> None:
    """The kernel kills this process when `parent`, whose main thread has started it, ends (PR_SET_PDEATHSIG, Linux);
    elsewhere a thread of this process polls for it."""
    if not set_death_signal(signal.SIGKILL):
        threading.Thread(target=_outlive, args=(parent,), name="parent", daemon=True).start()
    if os.getppid() != parent:
        os._exit(1)


def die_with_starter(by_main_thread: bool) -> None:
    """End this `multiprocessing` process with its starter, whatever the start method (even through a fork server).

    by_main_thread: the starter's main thread started it. For other threads this polls, as the kernel's signal comes
    when the starting thread ends.
    """
    starter = multiprocessing.parent_process()
    assert starter is not None
    assert starter.pid is not None
    if by_main_thread and starter.pid == os.getppid():
        die_with(starter.pid)
    else:
        threading.Thread(target=_outlive, args=(os.getppid(),), name="parent", daemon=True).start()


def end_children_at_exit() -> None:
    """At this process's end kill the daemons of multiprocessing that somebody's code has started. It would send them
    SIGTERM and wait for ever, as they have inherited a handler that only asks a run to save."""
    global _ends_children
    if _ends_children != os.getpid():  # a fork has none of them
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


def process_state(pid: int) -> str | None:
    """A process's state, a letter as in ps: R running, S waiting, T stopped, t traced, Z a zombie, X dead. "" where
    there is no such process; None where nothing is known (no /proc)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]  # its name, before that, may have spaces and brackets
    except OSError:
        return "" if os.path.isdir("/proc/self") else None
