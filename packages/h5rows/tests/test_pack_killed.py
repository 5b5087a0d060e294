"""Whatever write a pack is killed at, the same command makes the file that it would have made."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5_deep
import numpy as np
import pytest
from running import run_python, sample_of
from test_pack_write import Numbers, arrays, options
from writes import attempt

import h5rows
from h5rows.locks import Busy, Lock
from h5rows.packing.write import pack
from h5rows.source import ArraySource

COMMANDS: dict[str, Callable[[Path], Any]] = {
    "blocks": lambda out: pack(ArraySource({"": arrays(8)}), out, options(workers=1), {"command": "c"}),
    "without what cannot be read": lambda out: pack(
        Numbers(6, [2, 5], np.array([1, 4, 2] * 2)), out, options(workers=2, on_error="skip"), {}
    ),
    "repack": lambda out: h5rows.repack(out.parents[1] / "source.h5", out, quiet=True),
    "repack, gzip": lambda out: h5rows.repack(out.parents[1] / "source.h5", out, codec="gzip", quiet=True),
    "replaced": lambda out: pack(ArraySource({"": arrays(4)}), out, options(workers=1, overwrite=True), {}),
}


@pytest.mark.one_quick
@pytest.mark.parametrize("name", COMMANDS)
@pytest.mark.timeout(600)
def test_killed_at_any_write_the_same_command_makes_the_same_file(tmp_path: Path, monkeypatch: Any, name: str) -> None:
    """A command that finds the file made may say so: nothing else stays in the folder either way."""
    monkeypatch.setattr("h5rows.packing.plan.BLOCK_BYTES", 150)
    before = b"an older one" * (name == "replaced")

    def folder(of: str) -> Path:
        (tmp_path / of).mkdir()
        if before:
            (tmp_path / of / "a.h5").write_bytes(before)
        return tmp_path / of

    pack(ArraySource({"": arrays(300)}), tmp_path / "source.h5", options(), {})
    straight = folder("straight")
    done = attempt(lambda: COMMANDS[name](straight / "a.h5"), straight)
    assert done.status == 0, done.shown
    assert [path.name for path in straight.iterdir()] == ["a.h5"]
    assert len(done.writes) > (3 if "repack" in name else 8)  # HDF5's own are not seen
    for write, what in list(enumerate(done.writes))[:: 1 if "repack" in name else sample_of(3, 1)]:
        here = folder(str(write))
        killed = attempt(lambda here=here: COMMANDS[name](here / "a.h5"), here, write)
        assert killed.status < 0, (what, killed.shown)
        whole = (here / "a.h5").exists() and (here / "a.h5").read_bytes() != before
        again = attempt(lambda here=here: COMMANDS[name](here / "a.h5"), here)
        assert again.status == (2 if whole and name != "replaced" else 0), (write, what, again.shown)
        assert [path.name for path in here.iterdir()] == ["a.h5"], (write, what)
        assert h5_deep.compare(here / "a.h5", straight / "a.h5").differences == []


def test_one_at_a_time_holds_a_lock_whose_holder_deletes_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a pack does at its end: who has opened the file by then, and locks it after, would hold a lock of nothing."""
    path, real = tmp_path / ".lock", os.open
    holder = Lock(path)

    def late(*given: Any) -> int:
        fd = real(*given)
        monkeypatch.setattr(os, "open", real)
        path.unlink()
        holder.close()
        return fd

    monkeypatch.setattr(os, "open", late)
    with Lock(path), pytest.raises(Busy):
        Lock(path)
    path.unlink()
    Lock(path).close()


# h5py calls a callback of a weak reference after each write; a Ctrl-C that arrived during the write is raised in it
IN_A_CALLBACK = """
import signal, sys, time, weakref
from h5rows import command
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background job ignores SIGINT
def main(argv):
    for _ in range(100):
        held = type("Held", (), {})()
        known = weakref.ref(held, lambda _: signal.raise_signal(signal.SIGINT))
        del held
        time.sleep(0.05)
    return 0
command.main = main
sys.exit(command.run())
"""


def test_ctrl_c_that_python_discards_ends_the_command() -> None:
    done = run_python("-c", IN_A_CALLBACK)
    assert (done.returncode, done.stderr) == (130, "stopped; nothing was written\n")


AT_EXIT = """
import atexit, signal, time
from h5rows.interrupts import keep_interrupts
def clean_up():
    time.sleep(0.1)
    print("cleaned up")
atexit.register(clean_up)
atexit.register(signal.raise_signal, signal.SIGINT)
keep_interrupts()
"""


def test_ctrl_c_at_the_exit_interrupts_one_cleanup_only() -> None:
    assert run_python("-c", AT_EXIT).stdout == "cleaned up\n"
