"""Any command, killed at its k-th write for each k, and what is left behind.

    done = attempt(command, folder)         # in a fork of this process; done.writes: what it wrote, in order
    attempt(command, folder, kill_at=k)     # the same, but all its processes are killed before write k takes place
    attempt(command, folder)                # the user repeats the command

A write is what another process could find: a file made, cut, renamed or deleted, a folder made or deleted, bytes put
into an open file (then once before, and once when half of them are there), an fsync. Those of all threads and forked
processes below `folder` count, in one order. A fork costs no import of torch. Linux.
"""

from __future__ import annotations

import multiprocessing
import os
import platform
import re
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from running import limit

PATHS = {"os.rename": (0, 2), "os.remove": (0, 1), "os.rmdir": (0, 1), "os.mkdir": (0, 2), "os.link": (1, 3)}
PROCESS = re.compile(rf"\.{re.escape(platform.node())}\.\d+$")
NEW = ("os.mkdir", "os.link")
CHANGES = os.O_CREAT | os.O_TRUNC


@dataclass(frozen=True)
class Attempt:
    """status: the exit status, below 0 by that signal. writes: "what file", each. shown: what it printed."""

    status: int
    writes: list[str]
    shown: str


def mark(what: str) -> None:
    """Counts as a write where a command calls it: after bytes that Python's own files put on the disk."""
    _mark(what)


_mark: Callable[[str], None] = lambda what: None  # noqa: E731


def attempt(command: Callable[[], Any], folder: Path, kill_at: int | None = None) -> Attempt:
    """kill_at: the number of the write, from 0, that is not made any more."""
    notes, shown = os.memfd_create("writes"), os.memfd_create("shown")
    count = multiprocessing.get_context("fork").Value("q", 0)
    if (child := os.fork()) == 0:
        status = 1
        try:
            os.setsid()  # so that its group is all that it starts
            for stream in (1, 2):
                os.dup2(shown, stream)
            sys.stdout = sys.stderr = open(shown, "w", buffering=1, closefd=False)  # noqa: SIM115
            _watch(str(folder), notes, count, kill_at)
            status = _status_of(command)
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    code = _wait_for(child)
    _wait_for_group(child)
    texts = [os.pread(file, os.fstat(file).st_size, 0).decode(errors="replace") for file in (notes, shown)]
    os.close(notes), os.close(shown)
    return Attempt(code, texts[0].splitlines(), texts[1])


def refusals() -> tuple[type[Exception], ...]:
    """Return the errors by which a command refuses its input, of the libraries that are imported."""
    return tuple(sys.modules[name].ConfigError for name in ("h5rows", "samebits.errors") if name in sys.modules)


def _status_of(command: Callable[[], Any]) -> int:
    try:
        told = command()
        return told if isinstance(told, int) else 0
    except SystemExit as end:
        return int(end.code or 0)
    except refusals() as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        return 130


def _wait_for(child: int) -> int:
    end = time.monotonic() + limit(60)
    while True:
        pid, code = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(code)
        if time.monotonic() > end:
            os.killpg(child, signal.SIGKILL)
            raise AssertionError("it does not end")
        time.sleep(0.002)


def _wait_for_group(leader: int) -> None:
    """Until nobody of it is left who could hold a lock."""
    end = time.monotonic() + limit(30)
    while time.monotonic() < end:
        try:
            os.killpg(leader, 0)
        except ProcessLookupError:
            return
        except PermissionError:
            pass
        if not _lives(leader):
            return
        time.sleep(0.002)
    os.killpg(leader, signal.SIGKILL)
    raise AssertionError("it has left a process behind")


def _lives(leader: int) -> bool:
    """Whether its group has more than zombies, which nobody reaps in some containers."""
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has ended
            state, _, group = stat.read_text(errors="replace").rpartition(")")[2].split()[:3]
            if int(group) == leader and state not in "ZX":
                return True
    return False


def _watch(folder: str, notes: int, count: Any, kill_at: int | None) -> None:
    """From here on each write below `folder` is counted, in this process and in those that are forked from it."""
    os_write, own = os.write, threading.local()

    def note(what: str, path: str, instead: Callable[[], Any] = lambda: None) -> None:
        """instead: done where the process is killed here."""
        if what == "make" and path == getattr(own, "made", None):
            return  # an opener's own open
        own.made = path if what == "make" else None
        with count.get_lock():
            if count.value == kill_at:
                instead()
                os.killpg(0, signal.SIGKILL)
                time.sleep(60)
            count.value += 1
            os_write(notes, f"{what} {PROCESS.sub('', path[len(folder) + 1 :])}\n".encode())

    def below(path: Any, at: Any = None) -> str | None:
        """The path, if it is in the folder. at: the descriptor of the folder that it begins in."""
        if isinstance(path, int):
            path = _path_of(path)
        start = _path_of(at) if isinstance(at, int) and at >= 0 else ""
        whole = os.path.abspath(os.path.join(start, os.fsdecode(path)))
        return whole if whole.startswith(folder + os.sep) else None

    def hear(event: str, args: tuple[Any, ...]) -> None:
        if event == "open":
            path, _, flags = args
            found = None if isinstance(path, int) or not flags & CHANGES else below(path)
            if found and (not os.path.lexists(found) or (flags & os.O_TRUNC and os.path.getsize(found))):
                note("make", found)
        elif event in PATHS:
            name, at = PATHS[event]
            found = below(args[name], args[at])
            if found and os.path.lexists(found) is not (event in NEW):  # else it fails
                note(event.removeprefix("os."), found)
        elif event == "os.truncate" and (found := below(args[0])):
            note("truncate", found)

    def watched(name: str) -> None:
        original = getattr(os, name)

        def call(fd: Any, *rest: Any) -> Any:
            if found := below(fd):
                note(name, found)
                if name.endswith("write") and len(rest[0]) > 1:
                    half = memoryview(rest[0]).cast("B")[: len(rest[0]) // 2]
                    note(f"half a {name}", found, lambda: original(fd, half, *rest[1:]))
            return original(fd, *rest)

        setattr(os, name, call)

    global _mark
    _mark = lambda what: note(what, folder)  # noqa: E731
    for name in ("write", "pwrite", "fsync"):
        watched(name)
    sys.addaudithook(hear)


def _path_of(fd: int) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{fd}")
    except OSError:
        return ""
