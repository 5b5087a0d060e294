"""Guard: the watchdog of last resort for a training process without a parent of ours (plain command, torchrun's rank).

Where native code holds the GIL, no Python thread of the process can report a hang. The watch thread (watch.py) rearms
faulthandler's timer again and again. If the timer expires, faulthandler writes the stack into a pipe and ends the
process with status 1. A small helper process at the other end of the pipe then writes the failure record.

    python -I -S guard.py    the small process: standard input is the pipe; a line of JSON, then what faulthandler wrote
    python guard.py record   records it
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

POLL_MS = 1000
REWIND_S = 1.0
HELD = "native code held its interpreter, or it was stopped, for longer than process.timeout"
_guards: list[Guard] = []


class Guard:
    """The guard of this process, rank `rank` of the run in `run_dir`: it ends unless `wind` is called again in time."""

    def __init__(self, run_dir: Path, rank: int) -> None:
        import json
        import signal
        import subprocess
        import threading

        self._rank, self._wound_at, self._limit_s = rank, 0.0, -1.0
        self._read, self._pipe = os.pipe()
        os.set_blocking(self._pipe, False)  # a full pipe cuts the stack short instead of blocking forever
        facts = {"run_dir": str(run_dir), "rank": rank, "message": f"rank {rank} hung: {HELD}"}
        os.write(self._pipe, json.dumps(facts).encode() + b"\n")
        command = [sys.executable, "-I", "-S", __file__]
        self._process = subprocess.Popen(command, stdin=self._read, stdout=subprocess.DEVNULL)
        os.close(self._read)
        if not _guards and hasattr(os, "register_at_fork"):  # a fork copies the timer's lock, not its thread
            os.register_at_fork(before=_let_go, after_in_parent=_wind_again)
        _guards.append(self)
        main = threading.current_thread() is threading.main_thread()
        self._stops = main and signal.getsignal(signal.SIGTSTP) is signal.SIG_DFL
        if self._stops:
            signal.signal(signal.SIGTSTP, self._stop)

    def wind(self, limit_s: float | None) -> None:
        """Rearm the timer. limit_s: the next call comes within this time, else the process ends; None: no timer."""
        import faulthandler
        import time

        if limit_s == self._limit_s and time.monotonic() - self._wound_at < REWIND_S:
            return
        self._wound_at, self._limit_s = time.monotonic(), limit_s if limit_s is not None else -1.0
        if limit_s is None:
            faulthandler.cancel_dump_traceback_later()
        else:
            faulthandler.dump_traceback_later(limit_s + 2 * REWIND_S, exit=True, file=self._pipe)

    def let_go(self) -> None:
        import faulthandler

        faulthandler.cancel_dump_traceback_later()
        self._wound_at = 0.0

    def wind_again(self) -> None:
        """After a fork, rearm at once: the next native call may hold the GIL, and the watch thread could not."""
        if self._limit_s >= 0:
            self.wind(self._limit_s)

    def _stop(self, number: int, frame: Any) -> None:
        """Ctrl-Z (SIGTSTP): the timer is off until the process continues."""
        import signal

        self.let_go()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
        signal.signal(number, self._stop)

    def close(self) -> None:
        import signal

        self.let_go()
        _guards.remove(self)
        self._process.kill()
        self._process.wait()
        os.close(self._pipe)
        if self._stops:
            signal.signal(signal.SIGTSTP, signal.SIG_DFL)


def _let_go() -> None:
    for guard_ in _guards:
        guard_.let_go()


def _wind_again() -> None:
    for guard_ in _guards:
        guard_.wind_again()


def guard() -> None:
    import select
    import signal

    for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"):  # the helper ends only with the run
        signal.signal(getattr(signal, name), signal.SIG_IGN)
    parent, text = os.getppid(), b""
    os.set_blocking(0, False)
    poll = select.poll()
    poll.register(0, select.POLLIN)
    while True:
        ready = poll.poll(POLL_MS)
        part = os.read(0, 1 << 16) if ready else None
        text += part or b""
        if part == b"" or (part is None and os.getppid() != parent):  # a forked child may keep the pipe open
            break
    header, _, stack = text.partition(b"\n")
    if stack:
        import subprocess

        subprocess.run([sys.executable, __file__, "record"], input=header + b"\n" + stack, check=False)
    os._exit(0)


def record() -> None:
    import json
    from pathlib import Path

    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))
    from engine.errors import RankLost
    from engine.runs import record_failure

    header, _, stack = sys.stdin.read().partition("\n")
    facts = json.loads(header)
    error = RankLost(facts["message"])
    if record_failure(Path(facts["run_dir"]), facts["rank"], error, stack=stack):
        print(f"{stack}failed: {error}", file=sys.stderr)


if __name__ == "__main__":
    record() if sys.argv[1:] else guard()
