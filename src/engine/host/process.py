"""What the kernel says of another process. Imports no torch."""

from __future__ import annotations

import os


def process_state(pid: int) -> str | None:
    """A process's state, a letter as in ps: R running, S waiting, T stopped, t traced, Z a zombie, X dead. "" where
    there is no such process; None where nothing is known (no /proc)."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0]  # its name, before that, may have spaces and brackets
    except OSError:
        return "" if os.path.isdir("/proc/self") else None
