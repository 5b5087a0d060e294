"""What reaches a command before its run begins, and what its terminal does to it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from common import QUICK, ROOT, TRAIN

from samebits.signals import heeded_signals
from samebits.testing import last_checkpoint, metrics, status
from samebits.testing.processes import called, in_a_terminal, limit, processes_with, slowdown, wait_for

ENDLESS = (*QUICK, "trainer.max_steps=1000000", "trainer.eval_every=null", "trainer.save_every=20")


def catches(pid: int, number: signal.Signals) -> bool:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    caught = next(int(line.split()[1], 16) for line in lines if line.startswith("SigCgt"))
    return bool(caught >> (number - 1) & 1)


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="looks into /proc")
def test_a_signal_before_the_run_ends_with_75_and_leaves_nothing(tmp_path: Path) -> None:
    """Sent as soon as the command can take it: it imports and composes for a second or two after that."""
    cases = {
        "plain": (signal.SIGTERM, f"hydra.run.dir={tmp_path}/plain"),
        "ranks": (signal.SIGHUP, "trainer=ddp", f"hydra.run.dir={tmp_path}/ranks"),
        "sweep": (signal.SIGUSR1, "-m", "seed=0,1", "hydra/launcher=pool", f"hydra.sweep.dir={tmp_path}/sweep"),
    }
    started = {}
    for name, (number, *more) in cases.items():
        process = subprocess.Popen([*TRAIN, *ENDLESS, *more], stderr=subprocess.PIPE, text=True, cwd=tmp_path)
        wait_for(lambda p=process, n=number: catches(p.pid, n), process)
        process.send_signal(number)
        started[name] = process
    for name, process in started.items():
        _, shown = process.communicate(timeout=limit(60))
        assert process.returncode == 75, (name, shown)
        assert "Traceback" not in shown
        assert f"{cases[name][0].name}: stopped before the run began" in shown
        assert not list((tmp_path / name).rglob("*.json"))
    assert not (tmp_path / "plain").exists()
    assert not (tmp_path / "ranks").exists()


@pytest.mark.slow
def test_streams_that_are_closed_change_nothing(tmp_path: Path) -> None:
    """Not even the files: the first that are opened must not get their numbers."""
    command = [*TRAIN, *QUICK, "trainer=ddp", "trainer.max_steps=4", "trainer.log_every=2", "hydra.run.dir=run"]
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" 0<&- 1>&- 2>&-', "sh", *command], cwd=tmp_path, timeout=limit(90),
        env={**os.environ, "PYTHONWARNINGS": "always"},
    )  # fmt: skip
    assert done.returncode == 0
    assert status(tmp_path / "run")["status"] == "finished"
    assert [line["step"] for line in metrics(tmp_path / "run") if "train/loss" in line] == [2, 4]


@pytest.mark.slow
def test_a_terminal_that_goes_away_stops_the_run_with_a_checkpoint(tmp_path: Path) -> None:
    run = tmp_path / "run"
    process, terminal = in_a_terminal(*TRAIN, *ENDLESS, "trainer=ddp", "hardware.num_procs=2", f"hydra.run.dir={run}")
    wait_for(lambda: list((run / "checkpoints").glob("last_*.pt")), process)
    os.close(terminal)
    assert process.wait(limit(60)) == 75
    assert (status(run)["status"], status(run)["signal"]) == ("preempted", "SIGHUP")
    assert last_checkpoint(run)["step"] >= 20
    assert not processes_with(str(run))


def test_nohup_is_respected() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert signal.SIGHUP not in heeded_signals()
    finally:
        signal.signal(signal.SIGHUP, before)
    assert signal.SIGHUP in heeded_signals()


def test_the_module_that_comes_first_is_light() -> None:
    heavy = "('torch', 'hydra', 'omegaconf', 'numpy')"
    code = f"import sys, samebits.early_signals; print([m for m in {heavy} if m in sys.modules])"
    env = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    assert subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True).stdout == "[]\n"


ENDS = """
import signal, sys, train
from samebits.loggers import RunLogger
result = RunLogger.result
def signalled(*given):
    result(*given)
    signal.raise_signal(signal.SIGTERM)
RunLogger.result = signalled
sys.exit(train.main())
"""


def test_a_signal_after_the_end_says_that_nothing_is_saved(tmp_path: Path) -> None:
    """W&B may take some seconds then."""
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n" + ENDS
    done = called([sys.executable, "-c", code, *QUICK, "trainer.max_steps=2", f"hydra.run.dir={tmp_path}/run"])
    assert "SIGTERM: the run has ended, its loggers finish; Ctrl-C again: now\n" in done.stderr
    assert "saving" not in done.stderr
    assert status(tmp_path / "run")["status"] == "finished"


BREAKS = """
import sys, lab.run, train
from lab.callbacks.base import Callback
class Breaks(Callback):
    def on_log(self, state, values):
        if state.step == 2:
            breakpoint()
            print("went on", flush=True)
lab.run.make_callbacks = lambda config: [Breaks()]
sys.exit(train.main())
"""


@pytest.mark.slow
def test_a_breakpoint_in_rank_0_has_the_terminal(tmp_path: Path) -> None:
    """And stays open for longer than process.timeout, while the others wait."""
    timeout_s = round(2 * slowdown())
    more = (
        "trainer=ddp", "hardware.num_procs=2", "trainer.max_steps=4", "trainer.log_every=2",
        f"process.timeout={timeout_s}",
    )  # fmt: skip
    code = f"import sys; sys.path.insert(0, {str(ROOT / 'src')!r})\n" + BREAKS
    process, terminal = in_a_terminal(sys.executable, "-c", code, *QUICK, *more, f"hydra.run.dir={tmp_path}/run")
    shown, typed = b"", False
    with contextlib.suppress(OSError):  # EIO: its other end is closed
        while part := os.read(terminal, 1 << 16):
            shown += part
            if b"(Pdb)" in shown and not typed:
                time.sleep(2.5 * timeout_s)
                os.write(terminal, b"p state.step + 40\nc\n")
                typed = True
    os.close(terminal)
    assert process.wait(limit(60)) == 0, shown.decode()
    assert status(tmp_path / "run")["status"] == "finished"
    assert b"\n42\r" in shown
    assert shown.count(b"went on") == 2
    assert b"rank 1: breakpoint at <string>" in shown
