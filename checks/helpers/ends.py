"""Runs of `python src/train.py` that end in one way or another, each forked from one process that has imported torch.

    python ends.py FILE    FILE: [case, ...] in JSON; printed: the result of each, one line of JSON

A case: folder, overrides, kind (of loader), end (what happens in step 3: "", "callback", "data"), signals (sent at step
3 to the process group, and again every 10 ms until the process is gone where there is more than one). Its result: code,
shown (what the screen showed), left (processes and files in shared memory that are there afterwards).
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

import lab.builders
import lab.run
import train
from lab.callbacks.base import Callback
from samebits import early_signals
from samebits.data import Stream

ROOT = Path(__file__).resolve().parents[1]
SIZE, HELD_AT = 64, 3
DATA = ("data=synthetic", "data.shape=[8]", "data.num_classes=3", f"data.size={SIZE}", "trainer.global_batch_size=8")


class Items:
    """Sample by sample. fails: raise in row 33."""

    def __init__(self, fails: bool) -> None:
        self.fails = fails

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> dict[str, Any]:
        if self.fails and i == 33:
            raise OSError("cannot be read")
        return {"x": torch.rand(8) + i % 3, "y": i % 3}


class Collated(Items):
    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        return {"x": torch.stack([s["x"] for s in samples]), "y": torch.tensor([s["y"] for s in samples])}


class Table(Items):
    """Whole batches at once, read from threads."""

    def __init__(self, fails: bool) -> None:
        super().__init__(fails)
        self.spec = {"x": ((8,), torch.float32), "y": ((), torch.int64)}

    def gather(self, rows: np.ndarray, out: dict[str, Tensor]) -> dict[str, Tensor]:
        if self.fails and 33 in rows:
            raise OSError("cannot be read")
        labels = torch.from_numpy(rows) % 3
        out["x"].copy_(labels[:, None] + torch.linspace(0, 1, 8)), out["y"].copy_(labels)
        return out


class Source:
    """An endless stream."""

    def __init__(self, fails: bool) -> None:
        self._items = Items(fails)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        while True:
            yield from (self._items[i] for i in range(SIZE))


KINDS: dict[str, tuple[Any, tuple[str, ...]]] = {
    "in process": (Items, ("data.num_workers=0",)),
    "workers": (Items, ("data.num_workers=1",)),
    "collate": (Collated, ("data.num_workers=1",)),
    "threads": (Table, ("data.loader=threads", "data.num_workers=1")),
    "stream": (Source, ("data.order._target_=samebits.data.order.sequential",)),
}


class Ends(Callback):
    def __init__(self, folder: Path, end: str, held: bool) -> None:
        self.folder, self.end, self.held = folder, end, held

    def on_step(self, state: Any) -> None:
        if state.step == 1 and self.end == "callback" and self.run.world.size == 1:  # somebody's own process, for ever
            multiprocessing.get_context("fork").Process(target=time.sleep, args=(1e6,), daemon=True).start()
        if state.step == HELD_AT and self.end == "callback":
            raise ZeroDivisionError("in a callback")
        if state.step == HELD_AT and self.held:
            (self.folder / "held").touch()
            # a pool passes a signal on to its job: perhaps late
            while not ((self.folder / "go").exists() and self.run.stop.requested):
                time.sleep(0.005)


def begin(case: dict[str, Any]) -> None:
    """In a process of its own, as the command."""
    folder = Path(case["folder"])
    os.setsid()
    os.chdir(folder)
    output = os.open("shown", os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(output, 1), os.dup2(output, 2)
    overrides = list(case["overrides"])
    if case.get("kind"):
        make, more = KINDS[case["kind"]]

        def make_datasets(config: Any, shared: Any) -> dict[str, Any]:
            sets = {"train": make(case["end"] == "data"), "val": make(False)}
            if case["kind"] == "stream":
                return {split: Stream(source, None if split == "train" else 8) for split, source in sets.items()}
            return sets

        lab.run.make_datasets = make_datasets
        if not any(override.startswith("resume=") for override in overrides):
            overrides += [*DATA, *more]
    callbacks = lab.builders.make_callbacks
    ends = Ends(folder, case["end"], bool(case["signals"]))
    lab.run.make_callbacks = lambda config: [*callbacks(config), ends]
    sys.argv = [str(ROOT / "src/train.py"), *overrides]
    signal.signal(signal.SIGINT, signal.default_int_handler)
    early_signals.prepare()


def members(session: int) -> list[int]:
    """Processes of a session."""
    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = stat.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[3]) == session and fields[0] not in "ZX":
            found.append(int(stat.parent.name))
    return found


def in_shared_memory() -> set[str]:
    return {file.name for file in Path("/dev/shm").glob("*")}


def outcome(case: dict[str, Any], pid: int, before: set[str]) -> dict[str, Any]:
    """Let the command end as the case says. before: the files in shared memory before it began; another program's file
    may be named after a process that has ended, whose number the kernel gave to one of this command."""
    folder, seen = Path(case["folder"]), {pid}
    signals, code, sent = [signal.Signals[name] for name in case["signals"]], None, 0
    limit = time.monotonic() + case["limit_s"]
    while code is None and time.monotonic() < limit:
        seen.update(members(pid) if not sent else ())
        if signals and (folder / "held").exists() and (sent == 0 or len(signals) > 1):
            for _ in range(3 if len(signals) > 1 and not sent else 1):  # some before it can end, however slow this is
                os.killpg(pid, signals[sent % len(signals)])
                sent += 1
                time.sleep(0.01)
            (folder / "go").touch()
        time.sleep(0.01)
        ended, status = os.waitpid(pid, os.WNOHANG)
        code = os.waitstatus_to_exitcode(status) if ended else None
    until = time.monotonic() + case["limit_s"] / 4
    while code is not None and members(pid) and time.monotonic() < until:  # killed by the kernel, not yet gone
        time.sleep(0.01)
    left: list[Any] = members(pid)
    left += [name for name in in_shared_memory() - before if any(str(p) in name.split("_") for p in seen)]
    for process in members(pid):
        os.kill(process, signal.SIGKILL)
    if code is None:
        os.waitpid(pid, 0)
    return {"code": code, "shown": (folder / "shown").read_text(), "left": left, "sent": sent}


def main() -> None:
    torch.set_num_threads(1)
    for case in json.loads(Path(sys.argv[1]).read_text()):
        Path(case["folder"]).mkdir(parents=True, exist_ok=True)
        sys.stdout.flush()
        before = in_shared_memory()
        if (pid := os.fork()) == 0:
            begin(case)
            try:
                train.leave(train.main())
            finally:
                early_signals.ignore_signals()
        print(json.dumps(outcome(case, pid, before)), flush=True)


if __name__ == "__main__":
    main()
