"""The stage of benchmarks/gpu.py that breaks runs: killed, hung, out of memory, restarted."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

from gpu_common import Setting, cifar_file, command, memory_used, ours, processes_of, read

STARTED: list[subprocess.Popen[str]] = []  # sessions of their own, ended by end_all
FREED_MB = 64.0  # the driver's own memory may differ by so much


def overrides(setting: Setting, steps: int) -> list[str]:
    """A run of small steps with a save each 5; two ranks where there are several devices."""
    ranks = num_ranks(setting)
    several = ["trainer=ddp", f"hardware.num_procs={ranks}"] if ranks > 1 else []
    return [
        "experiment=cifar10", f"data.path={cifar_file(setting)}", "model.width=8", "trainer.max_epochs=null",
        f"trainer.max_steps={steps}", "trainer.log_every=1", "trainer.save_every=5", "trainer.eval_every=null",
        "trainer.global_batch_size=32", "trainer.max_eval_batches=1", *several,
    ]  # fmt: skip


def num_ranks(setting: Setting) -> int:
    if not setting.cuda:
        return 2
    found = subprocess.run(["nvidia-smi", "--list-gpus"], capture_output=True, text=True).stdout
    return min(2, len(found.splitlines()))


def faults(setting: Setting) -> None:
    """kill -9, a hang, full memory, a restart: is anything left after a second, is the right rank named?"""
    times = min(3, setting.rounds)
    before = memory_used(setting)
    last = num_ranks(setting) - 1
    for name, break_it in (("kill -9", killed), ("hang", hung), ("out of memory", starved), ("restart", restarted)):
        good, left = 0, 0.0
        for _ in range(times):
            right, folder = break_it(setting, last)
            time.sleep(1.0)
            over = memory_used(setting) - before
            stayed = processes_of(folder)
            left = max(left, over)
            good += right and over <= FREED_MB and not stayed
        setting.add(f"{name}: as it should be, of {times}", good, "", (">=", times))
        if setting.cuda:
            setting.add(f"{name}: GPU memory left after 1 s", left, "MB", ("<=", FREED_MB))


def started(setting: Setting, name: str, *more: str) -> tuple[subprocess.Popen[str], Path]:
    """A long run, once it has trained some steps."""
    folder = setting.work / f"fault-{name}-{time.time_ns() % 10**9}"
    given = command(setting, folder, *overrides(setting, 10**6), *more)
    with open(folder.with_suffix(".log"), "w") as log:
        process = subprocess.Popen(given, stdout=log, stderr=log, text=True, start_new_session=True)
    STARTED.append(process)
    wait_for(lambda: any((folder / "checkpoints").glob("last_*")), process, folder)
    return process, folder


def end_all() -> None:
    for process in STARTED:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


def wait_for(condition: Any, process: subprocess.Popen[str], folder: Path) -> None:
    end = time.monotonic() + 180
    while not condition():
        if process.poll() is not None or time.monotonic() > end:
            os.killpg(process.pid, signal.SIGKILL)
            raise SystemExit(f"{folder}: {folder.with_suffix('.log').read_text()[-4000:]}")
        time.sleep(0.02)


def killed(setting: Setting, last: int) -> tuple[bool, Path]:
    """SIGKILL to the command, with worker processes at work: its ranks and workers end too."""
    process, folder = started(setting, "kill", "data.loader=workers", "data.num_workers=2")
    process.kill()
    process.wait()
    return True, folder


def hung(setting: Setting, last: int) -> tuple[bool, Path]:
    """The last rank sleeps: it is named, with the line where it stands."""
    ran = ours(setting, "hang", *overrides(setting, 40), "process.timeout=5", fault=f"hang:{last}:8", wanted=1)
    return f"rank {last} hung" in ran.stderr and "time.sleep" in ran.stderr, ran.folder


def starved(setting: Setting, last: int) -> tuple[bool, Path]:
    """The last rank fills the memory: the run ends with the key to change."""
    ran = ours(setting, "memory", *overrides(setting, 40), fault=f"memory:{last}:8", wanted=1)
    record: dict[str, Any] = read(ran.folder / "status.json")
    return record.get("rank") == last and "hardware.micro_batch_size=" in ran.stderr, ran.folder


def restarted(setting: Setting, last: int) -> tuple[bool, Path]:
    """SIGKILL to a rank: process.max_restarts starts all again from the last checkpoint, and it is the lost one that is
    named."""
    process, folder = started(setting, "restart", "process.max_restarts=1")
    rank = sorted(pid for pid in processes_of(folder) if pid != process.pid and parent_of(pid) == process.pid)[last]
    before = steps_of(folder)[-1]
    os.kill(rank, signal.SIGKILL)
    kept = folder / "failures.jsonl"
    wait_for(lambda: kept.exists() or "restart 1 of 1" in folder.with_suffix(".log").read_text(), process, folder)
    wait_for(lambda: max(steps_of(folder), default=0) > before, process, folder)
    named = f"rank {last} " in folder.with_suffix(".log").read_text()
    process.terminate()
    process.wait(120)
    return named and process.returncode == 75, folder  # SIGTERM: saved, to be resumed


def parent_of(pid: int) -> int:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])
    except OSError:
        return 0


def steps_of(folder: Path) -> list[int]:
    """That were logged. What follows the last line's end is being written."""
    lines = (folder / "metrics.jsonl").read_text().split("\n")[:-1]
    return [json.loads(line)["step"] for line in lines]
