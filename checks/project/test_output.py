"""Commands whose output cannot be written: no process reads the pipe, the disk is full, it is closed."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from common import ROOT

# what a run prints is less than the work that it does: 20,000 characters are more than a buffer
COMMAND = """
import sys
sys.path.insert(0, {src!r})
import _python
def main():
    for _ in range(3):
        print({text!r}, file=sys.{stream})
    open({done!r}, "w").close()
    sys.exit({status})
_python.exit_with(main)
"""


@pytest.mark.parametrize(
    ("stream", "target", "code", "says"),
    [
        ("stdout", "| true", 0, ""),
        ("stdout", ">/dev/full", 1, "error: cannot write to the standard output: No space left on device\n"),
        ("stdout", ">/dev/full 2>&1", 1, ""),  # a log on a full disk has both
        ("stdout", ">&-", 0, ""),
        ("stderr", "2>/dev/full", 0, ""),
        ("stderr", "2>&1 | true", 0, ""),
        ("stderr", "2>&-", 0, ""),
    ],
)
@pytest.mark.parametrize(("length", "status"), [(1, 0), (20_000, 0), (1, 75)])
def test_a_command_ends_its_work_if_its_output_is_lost(
    stream: str, target: str, code: int, says: str, length: int, status: int, tmp_path: Path
) -> None:
    done = tmp_path / "done"
    script = tmp_path / "command.py"
    values = {"src": str(ROOT / "src"), "text": "x" * length, "done": str(done), "stream": stream, "status": status}
    script.write_text(COMMAND.format(**values))
    ended = subprocess.run(
        ["bash", "-o", "pipefail", "-c", f"{shlex.join([sys.executable, str(script)])} {target}"],
        capture_output=True,
        text=True,
    )
    assert (ended.returncode, ended.stderr) == (status or code, says)
    assert done.exists()


@pytest.mark.parametrize("close", ["sys.stdout.close()", "sys.stdout = None"])
def test_a_command_may_close_its_output(close: str) -> None:
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import _python; {close}"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_ctrl_c_ends_a_command_without_a_traceback() -> None:
    code = f"import signal, sys; sys.path.insert(0, {str(ROOT / 'src')!r}); import _python\n"
    code += "_python.exit_with(lambda: signal.raise_signal(signal.SIGINT))"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (130, "")


# sends Ctrl-C at the first import within a large library
AT_AN_IMPORT = """
import signal, sys
class Interrupts:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("omegaconf.", "numpy.", "h5py.", "torch.")):
            sys.meta_path.remove(self)
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""


@pytest.mark.parametrize("command", sorted(p.stem for p in (ROOT / "src").glob("[!_]*.py")))
def test_ctrl_c_during_the_imports_too(command: str, tmp_path: Path) -> None:
    (tmp_path / "sitecustomize.py").write_text(AT_AN_IMPORT)
    arguments = {"h5": ["inspect", "no.h5"], "predict": ["no", "--out", "no.h5"], "export": ["no", "no.pt"]}
    given = arguments.get(command, ["no"] if command in ("evaluate", "verify") else [])
    ended = subprocess.run(
        [sys.executable, str(ROOT / "src" / f"{command}.py"), *given], capture_output=True, text=True, cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (130, "")


# a signal arrives in a callback of a weak reference, as h5py calls one after each write
IN_A_CALLBACK = """
import signal, sys, time, weakref
from pathlib import Path
from h5rows.integration import keep_interrupts
from samebits import early_signals
from samebits.signals import temporary_folder

def signalled(number):
    held = type("Held", (), {})()
    known = weakref.ref(held, lambda _: signal.raise_signal(number))
    del held
    for _ in range(100):
        time.sleep(0.05)

"""
SIGTERM_IN_A_BLOCK = """
keep_interrupts()
with temporary_folder("work-", Path(sys.argv[1])):
    signalled(signal.SIGTERM)
"""
CTRL_C_BEFORE_A_RUN = """
early_signals.prepare()
early_signals.imported()
keep_interrupts()
signalled(signal.SIGINT)
"""


@pytest.mark.parametrize(("code", "status"), [(SIGTERM_IN_A_BLOCK, 143), (CTRL_C_BEFORE_A_RUN, 130)])
def test_a_signal_that_python_discards_ends_a_command(code: str, status: int, tmp_path: Path) -> None:
    """With a temporary folder; before a run, which then ignores further signals."""
    command = [sys.executable, "-c", IN_A_CALLBACK + code, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True)
    assert (ended.returncode, ended.stderr) == (status, "")
    assert not list(tmp_path.iterdir())


def test_a_deleted_folder_is_named(tmp_path: Path) -> None:
    (tmp_path / "gone").mkdir()
    ended = subprocess.run(
        ["bash", "-c", f"cd gone && rmdir ../gone && {sys.executable} {ROOT}/src/env.py"],
        capture_output=True, text=True, cwd=tmp_path,
    )  # fmt: skip
    assert (ended.returncode, ended.stderr) == (
        2,
        "error: the current folder has been deleted; change to another one\n",
    )


@pytest.mark.parametrize("command", ["evaluate", "sync", "report", "h5"])
def test_an_empty_argument_is_not_the_current_folder(command: str, tmp_path: Path) -> None:
    """As in ./run sync "$RUN" where RUN is not set."""
    line = "error: an argument is empty, as of a shell's variable that is not set - remove it\n"
    ended = subprocess.run(
        [sys.executable, ROOT / "src" / f"{command}.py", ""], capture_output=True, text=True, cwd=tmp_path
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (2, "", line)
