"""Breakpoints with several ranks: only rank 0 has the terminal."""

from __future__ import annotations

import os
import pdb
import sys
from contextlib import suppress
from typing import Any


def share(rank: int) -> None:
    """Connect rank 0 to its parent's terminal, because multiprocessing gives children /dev/null. The other ranks skip
    breakpoints and wait for rank 0 at the next collective."""
    if rank == 0:
        with suppress(OSError):  # no controlling terminal
            fd = os.open("/dev/tty", os.O_RDWR)
            os.dup2(fd, 0)
            os.close(fd)
            sys.stdin = open(0, closefd=False)  # noqa: SIM115 - stays open
        return

    def passed_over(*rest: Any, **more: Any) -> None:
        caller = sys._getframe(1)
        place = f"{caller.f_code.co_filename}:{caller.f_lineno}"
        print(f"rank {rank}: breakpoint at {place} skipped, because rank 0 has the terminal", file=sys.stderr)

    sys.breakpointhook = passed_over
    pdb.set_trace = passed_over
