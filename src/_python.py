"""Choose the Python and the libraries of a command; each command in src/ imports this module first.

Libraries in packages/ are preferred to installed ones. If this Python lacks a package that the project needs, the
command is started again with the Python in .venv."""

from __future__ import annotations

import atexit
import gc
import io
import os
import signal
import stat
import sys
from collections.abc import Callable
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn, TextIO

ROOT = Path(__file__).resolve().parents[1]
NEEDED = ("hydra", "omegaconf", "torch", "numpy", "h5py", "samebits", "h5rows")
TRIED = "LAB_PYTHON"  # set while .venv's Python is tried, so that it is tried only once


def find(needed: tuple[str, ...] = NEEDED) -> None:
    """Return if this Python has all packages. Otherwise restart with .venv's Python, or exit with status 2."""
    tried = os.environ.pop(TRIED, None)
    missing = [name for name in needed if find_spec(name) is None]
    if not missing:
        return
    python = str(ROOT / ".venv/bin/python")
    if python not in (tried, sys.executable) and os.access(python, os.X_OK):
        given = getattr(sys, "orig_argv", [sys.executable, *sys.argv])  # with options such as -m pdb, -X, -u
        os.environ[TRIED] = python
        os.execv(python, [python, *given[1:]])
    print(
        f"error: {tried or sys.executable} has no {', '.join(missing)} - type {ROOT}/run {Path(sys.argv[0]).stem} ..., "
        f"which creates the environment",
        file=sys.stderr,
    )
    sys.exit(2)


lost: list[OSError] = []  # errors because of which printed text was lost


def guard_output() -> None:
    """Discard printed text if stdout or stderr cannot be written, so that a training run does not fail because of it
    and no `except OSError` takes it for an error of the file that it reads. If stdout is lost for another reason than a
    closed pipe, as with `| head`, print one line to stderr, and let exit_with return status 1 instead of 0."""

    def guarded(call: Callable[..., object], stream: TextIO) -> Callable[..., object]:
        def tried(*args: str) -> object:
            try:
                return call(*args)
            except OSError as error:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
                if stream is output and not isinstance(error, BrokenPipeError):
                    lost.append(error)
                    print(f"error: cannot write to the standard output: {error.strerror}", file=sys.stderr)
                return len("".join(args))

        return tried

    if sys.stdout is None:  # closed by `>&-`, but some libraries call its methods
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115 - it stays open as long as the process
    output = sys.stdout
    for stream in (sys.stdout, sys.stderr):
        for name in ("write", "flush") if stream is not None else ():
            setattr(stream, name, guarded(getattr(stream, name), stream))


def end() -> None:
    """Exempt all objects from garbage collection, because Python would search them for 0.4 s when it exits.

    Flush files that are still open: without garbage collection, a file in a reference cycle is not closed, and its
    buffer would be lost."""
    for one in gc.get_objects():
        if type(one) in (io.TextIOWrapper, io.BufferedWriter, io.BufferedRandom):
            with suppress(Exception):  # it is closed, or not a file
                if stat.S_ISREG(os.fstat(one.fileno()).st_mode):  # a pipe may block
                    one.flush()
    gc.freeze()


def leave_imports(number: int, frame: object) -> None:
    """End a command that Ctrl-C interrupts during its imports. They take seconds, a traceback of them does not help,
    and some libraries discard the exception."""
    os._exit(130)


def exit_with(main: Callable[[], int]) -> NoReturn:
    """Exit with the status that main returns, or 130 after Ctrl-C. Exit with 1 instead of 0 if stdout was lost, with 2
    if an argument is empty: as a path it would be the current folder."""
    try:
        try:
            if signal.getsignal(signal.SIGINT) is leave_imports:
                signal.signal(signal.SIGINT, signal.default_int_handler)
            from h5rows.integration import keep_interrupts

            keep_interrupts()
            if "" in sys.argv[1:] and "--empty" not in sys.argv:  # ./run h5 pack --empty TEXT
                print(
                    "error: an argument is empty, as of a shell's variable that is not set - remove it", file=sys.stderr
                )
                sys.exit(2)
            sys.exit(main())
        except KeyboardInterrupt:
            sys.exit(130)
    except SystemExit as end:
        if sys.stdout is not None and not sys.stdout.closed:
            sys.stdout.flush()
        end.code = end.code or int(bool(lost))
        raise


# not in a test or a notebook that imports a command; a background job of a shell ignores Ctrl-C
if Path(getattr(sys.modules["__main__"], "__file__", None) or "").parent == Path(__file__).parent and (
    signal.getsignal(signal.SIGINT) is signal.default_int_handler
):
    signal.signal(signal.SIGINT, leave_imports)
try:
    os.getcwd()
except FileNotFoundError:
    print("error: the current folder has been deleted; change to another one", file=sys.stderr)
    sys.exit(2)
# imports create 240,000 objects and hardly any garbage; with Python's 700 objects per collection, they take 0.2 s more
gc.set_threshold(5000)
guard_output()
atexit.register(end)  # registered first, so called last
# before installed packages, so that a copy of the project with another .venv runs its own code, which a run records
sys.path[1:1] = [str(path) for path in sorted(ROOT.glob("packages/*/src"))]
find()
