"""What rank 0 of 8, 128 and 1,024 ranks says to the others, and what that costs its processor.

    ./run python benchmarks/scale_ranks.py [--rounds 5] [--quick]

One process takes itself for rank 0 and does a whole run (the digits, an MLP, DDP on the CPU) in a process group without
others: nothing is sent, and all are thought to say what rank 0 says. Counted: the collectives of a step, a log, an
evaluation and a save, and the bytes that rank 0 sends or receives in them, gradients included. The times are of rank
0's own code; the network is not in them.

Beside it: the store of the rendezvous with as many clients, on this machine - the meeting, what the hang watchdogs ask
of it, and what they ask once all ranks stand still; and small collectives of 2, 8 and 32 real ranks by gloo.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, redirect_stderr
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor
from torch._C._distributed_c10d import _create_work_from_future
from torch.multiprocessing import start_processes

import lab.loop
from lab.notebook import compose
from lab.program import start
from samebits.world import StopRequest, World, group, store
from samebits.world.watchdog import Report

RANKS = (8, 128, 1024)
RUN = (
    "logger=none", "hardware=cpu", "hardware.num_threads=1", "trainer=ddp", "trainer.max_epochs=null",
    "trainer.max_steps=4", "trainer.log_every=2", "trainer.eval_every=4", "trainer.save_every=2",
    "process.save_async=false", "model.hidden=[16]",
)  # fmt: skip
Message = tuple[str, int]  # the collective, bytes


@dataclass
class Part:
    """One step, log, evaluation, save, or what lies between."""

    messages: list[Message] = field(default_factory=list)
    seconds: float = 0.0


class Alone(dist.ProcessGroup):
    """Rank 0's group without the others, who are thought to say what it says. (torch's own fake group answers nothing,
    and DDP cannot use it.)"""

    note: Callable[[str, int], None]  # (collective, bytes)

    def allreduce(self, tensors: Any, opts: Any = None) -> Any:
        return self._said("all-reduce", tensors, tensors)

    def broadcast(self, tensors: Any, opts: Any = None) -> Any:
        return self._said("broadcast", tensors, tensors)

    def allgather(self, answers: Any, own: Any, opts: Any = None) -> Any:
        return self._said("all-gather", answers[0], own)

    def gather(self, answers: Any, own: Any, opts: Any = None) -> Any:
        return self._said("gather", answers[0], own)

    def _said(self, collective: str, answers: list[Tensor], own: list[Tensor]) -> Any:
        for answer in answers:
            answer.copy_(own[0])
        self.note(collective, sum(one.nbytes for one in answers))
        done = torch.futures.Future()  # type: ignore[var-annotated]
        done.set_result(answers)
        return _create_work_from_future(done)


dist.Backend.register_backend("alone", lambda store, rank, size, timeout: Alone(rank, size), devices=["cpu"])


class Listener:
    """Notes each collective in the part of the run in which it is."""

    def __init__(self) -> None:
        self.parts: dict[str, list[Part]] = defaultdict(list, other=[Part()])
        self._open = [self.parts["other"][0]]

    def note(self, collective: str, size: int) -> None:
        self._open[-1].messages.append((collective, size))

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        part, began = Part(), time.perf_counter()
        self.parts[name].append(part)
        self._open.append(part)
        try:
            yield
        finally:
            self._open.pop()
            part.seconds = time.perf_counter() - began

    def wrapped(self, name: str, call: Callable[..., Any]) -> Callable[..., Any]:
        def within(*args: Any, **kwargs: Any) -> Any:
            with self.part(name):
                return call(*args, **kwargs)

        return within


def listened(run_dir: Path, ranks: int, start: Callable[..., Any]) -> dict[str, list[Part]]:
    """{part: each of its kind, in order} of a run of rank 0 of so many. start(run_dir, *overrides) runs it."""
    place = {"RANK": 0, "WORLD_SIZE": ranks, "LOCAL_RANK": 0, "LOCAL_WORLD_SIZE": 1, "MASTER_PORT": 1}
    env = {"MASTER_ADDR": "127.0.0.1", "LAB_STORE": f"{run_dir}.store", **{k: str(v) for k, v in place.items()}}
    listener = Listener()
    with (
        mock.patch.dict(os.environ, env),
        mock.patch.dict(store._stores, clear=True),
        mock.patch.object(group, "backend", return_value="alone"),
        mock.patch.object(Alone, "note", staticmethod(listener.note), create=True),
        mock.patch.object(StopRequest, "agree", listener.wrapped("stop", StopRequest.agree)),
    ):
        parts = {"train_step": "step", "log_train": "log", "validate_and_save_best": "evaluation", "save": "save"}
        with mock.patch.multiple(lab.loop, **{n: listener.wrapped(p, getattr(lab.loop, n)) for n, p in parts.items()}):
            began = time.perf_counter()
            start(run_dir, *RUN, f"trainer.global_batch_size={ranks}")
            listener.parts["other"][0].seconds = time.perf_counter() - began
    return dict(listener.parts)


def table_of(ranks: int, rounds: int) -> list[str]:
    """Rows: the last part of each kind of a run of so many, with its shortest time. other: its start and end, with the
    time of the whole run."""
    rows, runs = [], []
    for _ in range(rounds):
        with tempfile.TemporaryDirectory() as folder, open(os.devnull, "w") as nothing, redirect_stderr(nothing):
            runs.append(listened(Path(folder) / "run", ranks, start_composed))
    for name in ("step", "log", "save", "other"):
        messages = runs[0][name][-1].messages
        names = ", ".join(f"{count} {kind}" for kind, count in Counter(kind for kind, _ in messages).items())
        took = min(run[name][-1].seconds for run in runs) * 1e3
        rows.append(f"| {ranks:,} | {name} | {names} | {sum(size for _, size in messages):,} | {took:.1f} |")
    return rows


def start_composed(run_dir: Path, *overrides: str) -> None:
    start(compose(overrides), run_dir, list(overrides), False)


def _hold(pipe: Any) -> None:
    """A store in a process of its own, which says how much processor time it has used."""
    held = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    pipe.send(held.port)
    while pipe.recv():
        pipe.send(time.process_time())


def store_costs(ranks: int) -> list[str]:
    """Rows: what the store's process does for so many clients, and how long that takes."""
    ours, theirs = mp.get_context("fork").Pipe()
    holder = mp.get_context("fork").Process(target=_hold, args=(theirs,), daemon=True)
    holder.start()
    port, clients = ours.recv(), [None] * ranks

    def used() -> float:
        ours.send(True)
        return float(ours.recv())

    def each(call: Callable[[int], Any], threads: int) -> tuple[float, float]:
        """(seconds, processor seconds of the store) of call(rank) for all ranks, from so many threads at once."""
        cpu, began = used(), time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(call, range(ranks)))
        return time.perf_counter() - began, used() - cpu

    def connect(rank: int) -> None:
        clients[rank] = dist.TCPStore("127.0.0.1", port, None, False, wait_for_workers=False)  # type: ignore[call-overload]

    def say(rank: int) -> None:
        clients[rank].set(f"stack/{rank}", "x" * 3000)  # type: ignore[attr-defined]
        clients[rank].append("stuck/0", json.dumps(asdict(report)) + "\n")  # type: ignore[attr-defined]

    report = Report(1000, 1800.5, 1800.0, 123456, "training, at step 123456", True, True)
    asks: list[tuple[str, Callable[[int], Any], int]] = [
        ("all connect at once", connect, ranks),
        ("each asks for an alarm once, as twice a second", lambda rank: clients[rank].check(["alarm"]), 8),
        ("all stand still: each says where", say, 8),
        ("each asks for what all have said", lambda rank: clients[rank].get("stuck/0"), 8),
    ]  # fmt: skip
    rows = []
    for what, call, threads in asks:
        seconds, cpu = each(call, threads)
        rows.append(f"| {ranks:,} | {what} | {seconds * 1e3:,.0f} | {cpu * 1e3:,.1f} |")
    ours.send(False)
    holder.join()
    return rows


def _say_little(rank: int, size: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", store=dist.FileStore(f"{folder}/store", size), rank=rank, world_size=size)
    world, took = World(rank, size, rank, torch.device("cpu")), []
    for call in (world.barrier, lambda: world.gather_object("x" * 40), lambda: world.broadcast_object(True)):
        call()
        world.barrier()
        began = time.perf_counter()
        for _ in range(30):
            call()
        took.append((time.perf_counter() - began) / 30 * 1e3)
    if rank == 0:
        Path(folder, "took").write_text(json.dumps(took))
    dist.destroy_process_group()


def little(size: int) -> list[float]:
    """Milliseconds of a barrier, World.gather_object and World.broadcast_object, of so many ranks on these cores."""
    with tempfile.TemporaryDirectory() as folder:
        start_processes(_say_little, (size, folder), nprocs=size, start_method="fork")
        return list(json.loads(Path(folder, "took").read_text()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="one round of few ranks: whether it works")
    args = parser.parse_args()
    rounds, sizes, counts = (1, (2,), RANKS[:1]) if args.quick else (args.rounds, (2, 8, 32), RANKS)
    os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")  # of c10d, which asks DNS for the names of the clients
    print("| real ranks | barrier, ms | gather of 40 bytes, ms | broadcast, ms |\n|---|---|---|---|")
    for size in sizes:  # first: forked before anything has started a thread
        print(f"| {size} | {' | '.join(f'{ms:.1f}' for ms in little(size))} |", flush=True)
    print("\n| clients of the store | what | all of them, ms | of the store's processor, ms |\n|---|---|---|---|")
    for ranks in counts:
        print("\n".join(store_costs(ranks)), flush=True)
    print("\n| ranks | part | collectives | bytes in them | rank 0's code, ms |\n|---|---|---|---|---|")
    for ranks in counts:
        print("\n".join(table_of(ranks, rounds)), flush=True)


if __name__ == "__main__":
    main()
