"""All ranks stop after the same step, whoever was signalled and however far the ranks are apart."""

from __future__ import annotations

import itertools
import random
import signal
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.testing.processes import limit, on_ranks
from samebits.world import stop
from samebits.world.collectives import World
from samebits.world.stop import CAUSES, Messages, StopRequest


class Net(Messages):
    """The messages of many ranks in one process. delay: called before one arrives."""

    def __init__(self, delay: Callable[[], None] = lambda: None) -> None:
        self.notes: set[str] = set()
        self.told: list[list[int]] = []  # by rank 0
        self.got: dict[int, int] = {}  # {rank: broadcasts that it has taken part in}
        self.looks = self.asks = self.received = 0
        self.delay, self.changed = delay, threading.Condition()

    def ask(self, cause: str) -> None:
        self.delay()
        with self.changed:
            self.asks += 1
            self.notes.add(cause)

    def asked(self) -> str:
        with self.changed:
            self.looks += 1
            return max(self.notes, key=CAUSES.index, default="")

    def announce(self, values: list[int], world: World) -> Callable[[], list[int]]:
        with self.changed:
            number = self.got[world.rank] = self.got.get(world.rank, 0) + 1
            if world.is_main:
                self.told.append(values)
                self.changed.notify_all()

        def receive() -> list[int]:
            self.delay()
            with self.changed:
                self.received += not world.is_main
                assert self.changed.wait_for(lambda: len(self.told) >= number, timeout=limit(60)), "nobody tells it"
                return self.told[number - 1]

        return receive


def clock_of(step_s: float, calls: Callable[[], int]) -> Any:
    return SimpleNamespace(monotonic=lambda: step_s * calls())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("step_s", [0.0005, 0.03, 5.0])
def test_all_ranks_stop_after_the_same_step(seed: int, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ranks as threads, each at its own pace, up to 200 steps apart: a real step joins them sooner."""
    pick = random.Random(seed)
    size, own = 12, threading.local()
    monkeypatch.setattr(stop, "time", clock_of(step_s, lambda: getattr(own, "step", 0)))
    net = Net(lambda: time.sleep(0.0005 * random.random()))
    at = {pick.randrange(size): (pick.choice(CAUSES[2:]), pick.randrange(150)) for _ in range(pick.choice([1, 3, 12]))}
    stops: dict[int, tuple[int, str]] = {}
    reached = [0] * size

    def rank(number: int) -> None:
        request, world = StopRequest(0.0, net), World(number, size, number, None)  # type: ignore[arg-type]
        for step in range(1000):
            own.step = reached[number] = step
            while step > min(reached) + 200:
                time.sleep(0.001)
            if number in at and at[number][1] == step:
                request.requested = at[number][0]
            if request.agree(world):
                stops[number] = step, request.cause
                return

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in range(size)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(limit(60))
    assert len(stops) == size
    assert len(set(stops.values())) == 1, stops
    step, cause = stops[0]
    assert cause in {cause for cause, _ in at.values()}
    assert step >= min(when for _, when in at.values())


@pytest.mark.parametrize(("first", "second"), [*itertools.permutations(["SIGUSR2", "SIGUSR1", "SIGTERM", "SIGINT"], 2)])
def test_of_two_signals_the_stronger_is_the_cause(first: str, second: str) -> None:
    """Whichever comes first: it decides whether the run was preempted or interrupted."""
    with stop.stop_on_signals(0.0) as request:
        for name in (first, second):
            signal.raise_signal(getattr(signal, name))
        assert request.agree(World(0, 1, 0, None))  # type: ignore[arg-type]
        assert request.cause == max(first, second, key=CAUSES.index)


@pytest.mark.parametrize("launcher", ["parent", "torchrun"])
def test_a_ctrl_c_that_a_busy_parent_passes_on_late_is_no_second_one(
    monkeypatch: pytest.MonkeyPatch, launcher: str
) -> None:
    """Ranks of torchrun have no parent of this project, which would end them after the second."""
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", *["LAB_PARENT"] * (launcher == "parent")):
        monkeypatch.setenv(name, "1")
    now = [0.0]
    monkeypatch.setattr(stop, "time", clock_of(1.0, lambda: now[0]))
    with stop.stop_on_signals(0.0) as request:
        signal.raise_signal(signal.SIGINT)
        signal.raise_signal(signal.SIGINT)
        now[0] = 1000.0
        with pytest.raises(KeyboardInterrupt) if launcher == "torchrun" else nullcontext():
            signal.raise_signal(signal.SIGINT)
        assert request.requested == "SIGINT"


@pytest.mark.one_quick
@pytest.mark.parametrize("size", [2, 1024])
@pytest.mark.parametrize("step_s", [0.001, 0.05, 20.0])
def test_how_many_messages(size: int, step_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """For each broadcast one to each other rank, and one look into the store; a broadcast each TELL_S, or each step."""
    now = [0]
    monkeypatch.setattr(stop, "time", clock_of(step_s, lambda: now[0]))
    net = Net()
    ranks = [(StopRequest(0.0, net), World(r, size, r, None)) for r in range(size)]  # type: ignore[arg-type]
    steps, signalled = 300, size - 1
    for step in range(steps):
        now[0] = step
        if step == 200:
            ranks[signalled][0].requested = "SIGTERM"
        stopped = [request.agree(world) for request, world in ranks]
        if any(stopped):
            break
    assert all(stopped)
    assert net.asks == 1
    assert net.looks == len(net.told)
    assert net.received == (size - 1) * len(net.told)
    assert len(net.told) <= 8 + min(step, step * step_s / stop.TELL_S * 1.6)  # 8: 1, 2, 4, ... 64 steps apart
    # long steps: the one in which rank 0 hears of it is the last
    assert (step - 200) * step_s <= max(2 * stop.TELL_S, step_s)


def stop_at(world: World, folder: Path, who: int, when: int) -> None:
    import torch

    request = StopRequest(time.monotonic())
    for step in range(10_000):
        if world.rank == who and step == when:
            request.requested = "SIGUSR1"
        if request.agree(world):
            break
        if world.size > 1 and step % 100 == 0:  # as a step does: nobody runs far ahead
            torch.distributed.all_reduce(torch.ones(1))
    request.receive_broadcast()
    (folder / f"{world.rank}").write_text(f"{step} {request.cause}")


@pytest.mark.parametrize(("ranks", "who"), [(1, 0), (2, 0), (2, 1), (3, 1)])
def test_on_real_ranks(tmp_path: Path, ranks: int, who: int) -> None:
    if ranks == 1:
        stop_at(World(0, 1, 0, None), tmp_path, who, 50)  # type: ignore[arg-type]
    else:
        on_ranks(lambda world, folder: stop_at(world, folder, who, 50), tmp_path / "run", ranks)
    found = {file.read_text() for rank in range(ranks) for file in tmp_path.rglob(f"{rank}")}
    assert len(found) == 1, found
    step, cause = found.pop().split()
    assert cause == "SIGUSR1"
    assert 50 <= int(step) < 9_999
