"""Shared by the checks: modules of tools/, and a Ctrl-C that comes twice."""

from __future__ import annotations

import contextlib
import importlib
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

from common import ROOT

from samebits.signals import SAME_SIGNAL_S
from samebits.testing.processes import limit


def import_tool(name: str) -> Any:
    """A module of tools/."""
    sys.path.insert(0, str(ROOT / "tools"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "tools"))


def ctrl_c_twice(process: subprocess.Popen[str], answer: str, send: Callable[[int], object]) -> str:
    """Returns what it says. The second comes when the first was heard; again where both were taken for one."""
    assert process.stderr is not None
    send(signal.SIGINT)
    heard = ""
    while answer not in heard:
        heard += (line := process.stderr.readline())
        assert line, heard
    time.sleep(2 * SAME_SIGNAL_S)
    assert process.poll() is None, heard
    for _ in range(3):
        send(signal.SIGINT)
        with contextlib.suppress(subprocess.TimeoutExpired):
            return heard + process.communicate(timeout=limit(10))[1]
    raise AssertionError(f"it goes on: {heard}")
