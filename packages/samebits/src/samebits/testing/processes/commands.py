"""Run commands of the project, and find processes that remain."""

from __future__ import annotations

import contextlib
import os
import pty
import random
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from samebits.testing.processes import warm
from samebits.testing.processes.limits import limit
from samebits.testing.processes.registered import program


def called(
    command: Sequence[Any], code: int | None = 0, seconds: float = 60, fresh: bool = False, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run the command and return the finished process with its output. code: the expected exit status; None: any.
    fresh: start a new Python instead of forking the warm process."""
    run = subprocess.run if fresh else warm.run
    done = run([*command], capture_output=True, text=True, timeout=limit(seconds), **options)
    assert code in (None, done.returncode), f"it ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done


def in_a_terminal(*command: str) -> tuple[subprocess.Popen[bytes], int]:
    """Start the command in a new terminal; return its process and the file descriptor of the terminal."""
    ours, theirs = pty.openpty()
    code = "import fcntl, os, sys, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0); os.execv(sys.argv[1], sys.argv[1:])"
    process = subprocess.Popen(
        [sys.executable, "-c", code, *command], stdin=theirs, stdout=theirs, stderr=theirs, start_new_session=True
    )
    os.close(theirs)
    return process, ours


def importing(*folders: Path) -> dict[str, str]:
    """Return an environment with these folders and the libraries at the front of PYTHONPATH."""
    _, *libraries = warm.code_of(program().root)
    others = filter(None, [os.environ.get("PYTHONPATH")])
    return {**os.environ, "PYTHONPATH": os.pathsep.join([*map(str, (*folders, *libraries)), *others])}


def free_port() -> int:
    """Return a free port. It stays free until it is used, because the kernel does not assign such low ports itself."""
    while True:
        port = random.SystemRandom().randrange(10_000, 32_768)
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def processes_with(text: str) -> list[int]:
    """Return the ids of processes whose command line contains `text`, such as a run directory."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            for _ in range(100):
                line = (entry / "cmdline").read_bytes()
                if line or not (entry / "exe").exists():  # otherwise execv is replacing the program
                    break
            if text in line.decode(errors="replace"):
                found.append(int(entry.name))
        except OSError:
            continue
    return [pid for pid in found if pid != os.getpid()]


HELD = """
import sys, time
from pathlib import Path
sys.path.insert(0, {src!r})
sys.argv[0] = "train.py"
import train
import {package}.loop as loop
train_step = loop.train_step
def held(loss_modules, state, *rest):
    while state.step >= {step} and not Path({until!r}).exists():
        time.sleep(0.01)
    return train_step(loss_modules, state, *rest)
loop.train_step = held
sys.exit(train.main())
"""


def held_command(step: int, until: Path) -> list[str]:
    """Return the first words of a train.py command whose ranks wait after `step` steps until the file `until` exists,
    so that the run cannot end before the test has looked at it."""
    src, package = str(program().root / "src"), program().package
    return [sys.executable, "-c", HELD.format(src=src, package=package, step=step, until=str(until))]
