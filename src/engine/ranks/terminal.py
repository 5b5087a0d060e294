"""Which of several ranks a debugger's prompt talks to."""

from __future__ import annotations

import os
import pdb
import sys
from contextlib import suppress
from typing import Any


def share(rank: int) -> None:
    """In a rank whose starter has a terminal: rank 0 reads from it (multiprocessing gives its processes /dev/null); the
    others pass over breakpoints, and wait for rank 0 at the next collective."""
    if rank == 0:
        with suppress(OSError):  # there is none that controls this process
            fd = os.open("/dev/tty", os.O_RDWR)
            os.dup2(fd, 0)
            os.close(fd)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - for good
        return

    def passed_over(*rest: Any, **more: Any) -> None:
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        print(f"rank {rank}: breakpoint at {place} passed over, as rank 0 has the terminal", file=sys.stderr)

    sys.breakpointhook = passed_over
    pdb.set_trace = passed_over
