"""Which process sends the lines of a run."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from samebits.errors import RunFailed
from samebits.locks import Lock
from samebits.loggers import wandb_upload
from samebits.loggers.wandb_upload import sending
from samebits.runs.directory import write_json
from samebits.testing.processes import wait_for


def test_only_a_run_s_own_sender_is_asked_to_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number a file of the run's directory names; and only once."""
    monkeypatch.setattr(wandb_upload, "PATIENCE_S", 0.3)
    (tmp_path / "wandb").mkdir()
    holder, code = tmp_path / "wandb/.sending.json", "import time; time.sleep(60)  # samebits.loggers.wandb_upload"
    with contextlib.ExitStack() as stack:
        stack.enter_context(Lock(tmp_path / "wandb/.sending"))

        def start(*command: str) -> int:
            process = subprocess.Popen(command)
            stack.callback(process.wait)
            stack.callback(process.kill)
            wait_for(lambda: wandb_upload.command_line(process.pid) == " ".join(command))
            return process.pid

        def signals(pid: object) -> list[tuple[int, int]]:
            sent: list[tuple[int, int]] = []
            write_json(holder, {"pid": pid, "host": os.uname().nodename, "live": True})
            with monkeypatch.context() as patch:
                patch.setattr(os, "kill", lambda *signal: sent.append(signal))
                with pytest.raises(RunFailed, match="another process is sending it"), sending(tmp_path, 0.0):
                    pass
            return sent

        others = [start(sys.executable, "-c", code, *words) for words in (("/x", "live"), (str(tmp_path), "sync"))]
        for pid in (-1, 0, 1, None, True, "7", 10**30, os.getpid(), start("sleep", "60"), *others):
            assert signals(pid) == []
        own = start(sys.executable, "-c", code, str(tmp_path), "live", "7")
        assert signals(own) == [(own, signal.SIGTERM)]
