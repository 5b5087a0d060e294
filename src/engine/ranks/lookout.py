"""When a rank's watchdog looks into the run directory, which may lie on a file system that all hosts share.

    first rank of a host   every POLL_S; with more than HOSTS hosts, less often
    the others             when that rank has seen something, which it tells by a file of this machine; else seldom

1,024 ranks of 128 hosts look 120 times a second together; each of them every POLL_S would be 2,048 times.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
from contextlib import suppress
from pathlib import Path

POLL_S = 0.5
HOSTS = 32
SELDOM = 8  # times the interval of the first rank: where the ranks of a host do not share its temporary files


def alarm_file(run_dir: Path, folder: Path | None = None) -> Path:
    """Of one run. folder: of this machine's temporary files."""
    name = hashlib.sha256(f"{os.getuid()} {run_dir.absolute()}".encode()).hexdigest()[:16]
    return Path(folder or tempfile.gettempdir()) / f"engine-{name}.alarm"


class Lookout:
    """folder: of this machine's temporary files."""

    def __init__(self, run_dir: Path, size: int, local_rank: int, local_size: int, folder: Path | None = None) -> None:
        self.first = local_rank == 0
        self.interval_s = POLL_S * max(1.0, size / local_size / HOSTS)
        self.slowest_s = self.interval_s * (1 if local_size == 1 else SELDOM)  # until every rank has looked
        self._alarm = alarm_file(run_dir, folder)
        self._looked_at = -math.inf
        self._shared = local_size > 1
        self._alarmed = False
        if self.first:
            self.calm()  # left by an earlier process

    def due(self, now: float) -> bool:
        """Whether to look now. now: time.monotonic()."""
        every = self.interval_s if self.first else self.interval_s * SELDOM
        if not self.first:  # once alarmed, always: the first rank removes the file when it ends
            self._alarmed = self._alarmed or self._alarm.exists()
        if now - self._looked_at < every and not self._alarmed:
            return False
        self._looked_at = now
        return True

    def alarm(self) -> None:
        """There is something to see, for the other ranks of this machine."""
        if not self._shared:
            return
        with suppress(OSError):
            os.close(os.open(self._alarm, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600))

    def calm(self) -> None:
        """There is nothing to see."""
        if self.first:
            with suppress(OSError):
                self._alarm.unlink(missing_ok=True)
