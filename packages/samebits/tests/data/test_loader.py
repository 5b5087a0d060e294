"""What every way of delivering promises: the plan's samples in order, no buffer overwritten while somebody reads it."""

from __future__ import annotations

import gc
import sys
import threading
import time
import weakref
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.data.loading import choose, loader as loader_module, slots
from samebits.data.loading.loader import Loader, remedy, starvation
from samebits.data.order import EvalPlan, TrainPlan, sequential, shuffled
from samebits.data.spec import empty_batch, sample_bytes
from samebits.data.stream import Stream, digest
from samebits.data.windows import chunk_windows
from samebits.errors import ConfigError, DataFailed
from samebits.testing.processes import called, slow, wait_for
from samebits.world import dist_env

CPU = torch.device("cpu")


class Table:
    """x[i] is filled with i, y[i] = i; backed by a file when a path is given."""

    def __init__(self, size: int, shape: tuple[int, ...] = (3, 2), path: Path | None = None) -> None:
        values = np.broadcast_to(np.arange(size, dtype=np.int64).reshape(-1, *[1] * len(shape)), (size, *shape))
        if path is not None:
            mapped = np.memmap(path, dtype=np.int64, mode="w+", shape=(size, *shape))
            mapped[:] = values
            values = mapped
        self.x = torch.from_numpy(np.asarray(values) if path else values.copy())
        self.y = torch.arange(size)
        self.spec = {"x": (shape, torch.int64), "y": ((), torch.int64)}
        self.calls: list[np.ndarray] = []

    def __len__(self) -> int:
        return len(self.y)

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
        assert out is not None
        self.calls.append(rows)
        index = torch.from_numpy(rows)
        torch.index_select(self.x, 0, index, out=out["x"])
        torch.index_select(self.y, 0, index, out=out["y"])
        return out


class Broken(Table):
    works = 4  # calls

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
        if len(self.calls) >= self.works:
            raise OSError("the disk is gone")
        return super().gather(rows, out)


class Ragged:
    """Sample i has i % 4 values."""

    spec: ClassVar = {"values": ((-1,), torch.int64), "offsets": ((), torch.int64)}

    def __len__(self) -> int:
        return 50

    def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
        assert out is None
        lengths = torch.from_numpy(rows % 4)
        return {
            "values": torch.repeat_interleave(torch.from_numpy(rows), lengths),
            "offsets": torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)]),
        }


def endless(size: int, batch: int, micro: list[int] | None = None, start: int = 0):
    return TrainPlan(shuffled(range(size), seed=0), batch, micro or [batch], 0, 1, start)


@pytest.fixture(params=["threads", "device"])
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


def check(batch: dict[str, Tensor], rows: np.ndarray) -> None:
    assert batch["y"].tolist() == rows.tolist()
    assert torch.equal(batch["x"], batch["y"].reshape(-1, *[1] * (batch["x"].ndim - 1)).expand_as(batch["x"]))


def test_train_stream_is_the_plan_over_epochs(kind: str, tmp_path: Path) -> None:
    plan, began = endless(101, 10, [6, 4], start=30), time.perf_counter()
    with Loader(Table(101, path=tmp_path / "x.bin"), plan, CPU, kind=kind, seed=0) as loader:
        for k, batch in zip(range(200), loader, strict=False):
            check(batch, plan(k)[1])
    assert 0 < loader.wait_s < time.perf_counter() - began


@pytest.mark.parametrize("size", [0, 1, 7, 4096, 5000])
def test_evaluation_starts_anew_each_time(kind: str, size: int) -> None:
    with Loader(Table(size), EvalPlan(size, 8, 0, 1), CPU, kind=kind, seed=0) as loader:
        for stop in (None, 3, 1, None, 0, None):
            seen = []
            for i, batch in enumerate(loader):
                if i == stop:
                    break
                seen += batch["y"].tolist()
            assert seen == list(range(size if stop is None else min(size, 8 * stop)))


@pytest.mark.one_quick
@pytest.mark.parametrize("shape", [(3, 2), (4000, 40)], ids=["grouped", "single"])
@pytest.mark.parametrize("hold", ["view", "numpy", "saved", "storage", "dlpack"])
def test_what_somebody_holds_is_never_overwritten(kind: str, shape: tuple[int, ...], hold: str) -> None:
    keep = {
        "view": lambda x: x[1:, 0].t(),
        "numpy": lambda x: x.numpy()[::2],
        "saved": lambda x: torch.ones((), requires_grad=True) * x.view(torch.float64),  # x is saved for backward
        "storage": lambda x: x.untyped_storage(),
        "dlpack": lambda x: torch.from_dlpack(x),
    }[hold]
    plan = endless(64, 4)
    held = []
    with Loader(Table(64, shape), plan, CPU, kind=kind, seed=0) as loader:
        for k, batch in zip(range(150), loader, strict=False):
            if k % 5 == 0:
                rows = torch.from_numpy(plan(k)[1])
                expected = rows.view(-1, *[1] * len(shape)).expand(-1, *shape)
                held.append((keep(batch["x"]), expected.contiguous()))
            del batch
    for kept, expected in held:
        if hold == "saved":
            kept.sum().backward()  # torch checks the version of what was saved
        elif hold == "storage":
            found = torch.empty(0, dtype=torch.int64).set_(kept)
            assert any(
                torch.equal(found[i : i + expected.numel()], expected.ravel()) for i in range(0, len(found), shape[0])
            )
        elif hold == "numpy":
            assert np.array_equal(kept, expected.numpy()[::2])
        else:
            assert torch.equal(kept, expected[1:, 0].t() if hold == "view" else expected)


def test_buffers_are_reused_unless_hoarded() -> None:
    with Loader(Table(64, (4500, 30)), endless(64, 4), CPU, kind="threads", num_workers=2, seed=0) as loader:
        for _, _batch in zip(range(200), loader, strict=False):
            pass
        few = loader._source._filler.slots.allocated
        assert few <= 8
        hoard = [batch["x"] for _, batch in zip(range(40), loader, strict=False)]
        assert loader._source._filler.slots.allocated >= 40
        references = [weakref.ref(x) for x in hoard]
        assert len({x.data_ptr() for x in hoard}) == 40
        del hoard
        assert not any(ref() is not None for ref in references)


def test_without_the_use_count_each_batch_is_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slots, "CAN_REUSE", False)
    plan = endless(64, 4)
    with Loader(Table(64, (4500, 30)), plan, CPU, kind="threads", seed=0) as loader:
        hoard = [batch for _, batch in zip(range(30), loader, strict=False)]
        assert loader._source._filler.slots.allocated >= 30
    for k, batch in enumerate(hoard):
        check(batch, plan(k)[1])


def test_ragged_samples() -> None:
    with Loader(Ragged(), EvalPlan(50, 7, 0, 1), CPU, seed=0) as loader:
        assert loader.why.startswith("threads: samples vary")
        values = torch.cat([batch["values"] for batch in loader])
    assert values.tolist() == [i for i in range(50) for _ in range(i % 4)]
    for kind in ("device", "workers"):
        with pytest.raises(ConfigError, match=rf"^data\.loader={kind} needs samples of .*data\.loader=threads$"):
            Loader(Ragged(), EvalPlan(50, 7, 0, 1), CPU, kind=kind, seed=0)


def test_so_many_workers_that_the_machine_would_stand_still_are_refused() -> None:
    """None is started here, as none is before the first batch."""
    Loader(Table(64), endless(64, 4), CPU, kind="workers", num_workers=64, cores=2, seed=0).close()
    with pytest.raises(ConfigError, match=r"data\.num_workers=65: more than 32 for each of 2 cores"):
        Loader(Table(64), endless(64, 4), CPU, kind="workers", num_workers=65, cores=2, seed=0)


def test_windows_are_gathered_together() -> None:
    table = Table(1000)
    order = chunk_windows(table, 0, 5, 8, 10)
    plan = TrainPlan(order, 10, [10], 0, 1, 0)
    with Loader(table, plan, CPU, kind="threads", num_workers=1, seed=0) as loader:
        for k, batch in zip(range(100), loader, strict=False):
            check(batch, plan(k)[1])
        assert "windows of 5 chunks (50 samples)" in loader.why
    reads = [len(set((rows // 10).tolist())) for rows in table.calls[:20]]
    assert reads == [5] * 20


@pytest.mark.parametrize("num_workers", [1, "auto"])
def test_all_rows_are_advised_before_they_are_read(num_workers: int | str) -> None:
    """Also those of the trial that finds the number of threads, and of the first jobs."""

    class Advised(Table):
        advised: set[int]

        def advise(self, rows: np.ndarray) -> None:
            self.advised.update(rows.tolist())

        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            self.unadvised.extend(set(rows.tolist()) - self.advised)
            return super().gather(rows, out)

    table = Advised(2000, (1000, 8))
    table.advised, table.unadvised = set(), []
    plan = TrainPlan(sequential(table, 0), 20, [20], 0, 1, 0)
    with Loader(table, plan, CPU, kind="threads", num_workers=num_workers, cores=1, seed=0) as loader:
        for _, _batch in zip(range(100), loader, strict=False):
            pass
    assert not table.unadvised
    assert sum(map(len, table.calls)) >= 100 * 20


class Clock:
    """The time that a trial measures: a moment for each look, and what a data set adds. A busy machine adds nothing."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.now_s, self.lock = 0.0, threading.Lock()
        patch.setattr(choose, "time", self)

    def perf_counter(self) -> float:
        return self.after(1e-6)

    def after(self, seconds: float) -> float:
        with self.lock:
            self.now_s += seconds
            return self.now_s


@pytest.mark.parametrize("consumed", [1, 2, 10, 2000])
def test_the_first_batches_do_not_wait_for_thousands_of_samples(consumed: int) -> None:
    """What is read or requested ahead grows with what was consumed: a run of two steps on a cold file reads little."""

    class Asked(Table):
        def advise(self, rows: np.ndarray) -> None:
            self.asked.update(rows.tolist())

    table = Asked(1 << 20, ())
    table.asked = set()  # type: ignore[attr-defined]
    plan = TrainPlan(sequential(table, 0), 8, [8], 0, 1, 0)
    with Loader(table, plan, CPU, kind="threads", num_workers=16, cores=2, seed=0) as loader:
        batches = iter(loader)
        for _ in range(consumed):
            next(batches)
        wait_for(loader._source._filler.tasks.empty)  # all jobs have begun; closing the loader waits for their end
    read = {row for rows in table.calls for row in rows.tolist()} | table.asked  # type: ignore[attr-defined]
    assert 8 * consumed <= len(read) <= 8 * 64 * consumed
    assert consumed < 2000 or max(map(len, table.calls)) == 8 * 64  # by then a job has the full size


def test_a_trial_reads_few_rows_of_a_set_that_is_read_slowly(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a file that is not in memory, or whose chunks take long to decode. An evaluation makes no trial."""

    class Slow(Table):
        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            clock.after(0.002 * len(rows))
            return super().gather(rows, out)

    clock, table, batch = Clock(monkeypatch), Slow(4096), 1024
    with Loader(table, endless(4096, batch), CPU, kind="threads", cores=1, seed=0) as loader:
        assert max(map(len, table.calls)) <= 16
        assert "measured: 1 thread" in loader.why
        evaluated = Slow(4096)
        with Loader(evaluated, EvalPlan(4096, batch, 0, 1), CPU, kind="threads", cores=1, like=loader, seed=0) as same:
            assert same.why.endswith("as many threads as in training")
            assert same._source.num_threads == loader._source.num_threads
        assert not evaluated.calls
        monkeypatch.setattr(choose, "free_memory", lambda device: 10 * 5 * batch * sample_bytes(evaluated.spec))
        count, why = choose.num_threads(evaluated, EvalPlan(4096, batch, 0, 1), "auto", 1, like=16)
        assert (count, why) == (5, "5 threads, as memory allows")  # each has a batch
        assert choose.num_threads(evaluated, EvalPlan(0, batch, 0, 1), "auto", 1, like=16)[0] == 1
    monkeypatch.setattr(choose, "_PIECE_S", 60)
    quick = Table(4096)
    Loader(quick, endless(4096, 64), CPU, kind="threads", cores=1, seed=0).close()
    assert max(map(len, quick.calls)) == 64


def test_a_trial_gathers_whole_batches_if_each_call_takes_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """As of a data set that asks a server once per call: small parts would show a wrong speed."""

    class PerCall(Table):
        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            clock.after(0.03)
            return super().gather(rows, out)

    clock, table = Clock(monkeypatch), PerCall(4096)
    Loader(table, endless(4096, 64), CPU, kind="threads", cores=1, seed=0).close()
    assert [*map(len, table.calls)][:7] == [1, 2, 4, 8, 16, 32, 1]
    assert set(map(len, table.calls[7:])) == {64}


def test_threads_that_take_turns_do_not_count_as_if_they_ran_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a busy machine, where one thread may end its trial before another one begins."""

    class Timed(Table):
        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            clock.after(1e-3)
            return super().gather(rows, out)

    class AtOnce:
        def __init__(self, target: Callable[[int], None], args: tuple[int], daemon: bool) -> None:
            self.start, self.join = partial(target, *args), lambda: None

    clock = Clock(monkeypatch)
    monkeypatch.setattr(choose, "threading", SimpleNamespace(Thread=AtOnce))
    count, why = choose.num_threads(Timed(4096), endless(4096, 64), "auto", 2)
    assert (count, why.partition(" measured")[0]) == (2, "2 threads; more are not faster;")


@pytest.mark.parametrize("kind", ["threads", "device", "workers"])
def test_a_data_set_that_does_not_write_to_its_buffers_is_refused(kind: str) -> None:
    class Ignores(Table):
        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            return super().gather(rows, empty_batch(self.spec, len(rows)))

    with (
        pytest.raises((ConfigError, DataFailed), match=r"Ignores\.gather\(rows, out\) returned other memory for 'x'"),
        Loader(Ignores(64), endless(64, 4), CPU, kind=kind, seed=0) as loader,
    ):
        next(iter(loader))


def test_a_large_set_is_not_loaded_for_an_evaluation_of_a_few_of_its_samples() -> None:
    class Large(Table):
        def __len__(self) -> int:
            return size

    size = 1 << 21  # 117 MB, which auto would keep in RAM
    large = Large(8)
    few = EvalPlan(size, 64, 0, 1, count=128)
    kind, why = choose.kind_of(large, few, CPU, "auto")
    assert (kind, why) == ("threads", "threads: an evaluation reads 128 of 2,097,152 samples")
    assert choose.kind_of(large, EvalPlan(size, 64, 0, 1), CPU, "auto")[0] == "device"
    large.chunk_rows = 2048  # each evaluation would decode a chunk for each of these samples
    assert choose.kind_of(large, few, CPU, "auto")[0] == "device"
    assert choose.kind_of(Table(1000), EvalPlan(1000, 64, 0, 1, count=10), CPU, "auto")[0] == "device"


def numbered(batch: dict[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
    return {**batch, "numbers": numbers}


def test_the_first_batch_can_be_looked_at_before(kind: str) -> None:
    """The iteration that follows begins with it, the one after that anew; a transform gets the samples' numbers."""
    plan = endless(30, 4, start=8)
    with Loader(Table(30), plan, CPU, numbered, kind=kind, seed=0) as loader:
        check(loader.first(), plan(0)[1])
        assert loader.first() is loader.first()
        for _ in range(2):
            for k, batch in zip(range(20), loader, strict=False):
                check(batch, plan(k)[1])
                assert batch["numbers"].tolist() == list(range(8 + 4 * k, 12 + 4 * k))
        loader.first()


def failing_transform(batch: dict[str, Tensor], numbers: Tensor) -> dict[str, Tensor]:
    raise RuntimeError("transform")


def test_errors_arrive_with_their_traceback_and_the_loader_goes_on() -> None:
    table = Broken(50, (4500, 30))
    with Loader(table, endless(50, 5), CPU, kind="threads", num_workers=2, seed=0) as loader:
        with pytest.raises(DataFailed, match=r"OSError: the disk is gone \(Broken, rows ") as caught:
            for _ in loader:
                pass
        batches = [", ".join(map(str, endless(50, 5)(k)[1].tolist())) for k in range(20)]
        assert any(f"rows {rows})" in str(caught.value) for rows in batches)  # which is read last two threads decide
        assert "gather" in [entry.name for entry in caught.traceback]
        table.works = 10**6
        check(next(iter(loader)), endless(50, 5)(0)[1])
    with (
        Loader(Table(9), endless(9, 3), CPU, failing_transform, seed=0) as loader,
        pytest.raises(DataFailed, match=r"RuntimeError: transform \(Table, sample numbers 0, 1, 2\)"),
    ):
        next(iter(loader))


@pytest.mark.slow
def test_close_and_forgetting_end_the_threads() -> None:
    before = set(threading.enumerate())

    def count() -> int:
        return len(set(threading.enumerate()) - before)

    loader = Loader(Table(50), endless(50, 5), CPU, kind="threads", num_workers=2, seed=0)
    stream = iter(loader)
    next(stream)
    assert count() == 2
    loader.close()
    loader.close()
    wait_for(lambda: count() == 0)
    loader = Loader(Table(50), endless(50, 5), CPU, kind="threads", num_workers=2, seed=0)
    stream = iter(loader)
    next(stream)
    del loader, stream
    gc.collect()
    wait_for(lambda: count() == 0)


SCRIPT = """
import numpy, os, signal, sys, threading, time, torch
sys.path[:0] = {tests!r}
from test_loader import CPU, Table, endless
from samebits.data.loading.loader import Loader
from samebits.world import dist_env
class Slow(Table):
    def gather(self, rows, out):
        time.sleep({sleep})
        return super().gather(rows, out)
loader = Loader(Slow(50), endless(50, 5), CPU, kind="threads", num_workers=2, seed=0)
{body}
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sleep", "body", "code"),
    [
        slow(0.5, "threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()\nfor b in loader: pass", -2),
        slow(0, "next(iter(loader)); pid = os.fork()\nn = next(iter(loader))['y'].tolist()\n"
            "if pid: sys.exit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) or n != endless(50, 5)(0)[1].tolist())\n"
            "sys.exit(n != endless(50, 5)(0)[1].tolist())", 0),
    ],
    ids=["interrupt", "fork"],
)  # fmt: skip
def test_a_process_with_a_ring_always_ends(sleep: float, body: str, code: int) -> None:
    script = SCRIPT.format(tests=[str(Path(__file__).parent), *sys.path], sleep=sleep, body=body)
    command = [sys.executable, "-c", script]
    done = called(command, code=None, fresh=True)
    assert done.returncode in (code, 128 - code if code < 0 else code), done.stderr
    assert "Fatal" not in done.stderr


def test_choice_and_its_reason() -> None:
    small = Loader(Table(100), endless(100, 8), CPU, seed=0)
    assert small.kind == "device"
    assert "the whole set, 5.6 KB, is kept in RAM" in small.why
    large = Loader(Table(100, (1 << 17,)), endless(100, 8), CPU, seed=0, cores=1)
    assert large.kind == "threads"
    assert "8.39 MB are gathered in the background" in large.why
    assert "measured: 1 thread" in large.why
    given = Loader(Table(100), endless(100, 8), CPU, kind="threads", num_workers=3, seed=0)
    assert given.why == "threads: set by data.loader; 3 threads, set by data.num_workers"
    for bad in ({"kind": "thread"}, {"num_workers": -1}, {"num_workers": "many"}):
        with pytest.raises(ConfigError, match=r"data\.(loader|num_workers)="):
            Loader(Table(10), endless(10, 5), CPU, seed=0, **bad)


def test_what_an_order_notes_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = endless(100, 8)
    assert not Loader(Table(100), plan, CPU, kind="device", seed=0).why.endswith("; ")
    plan.note = "windows of 3"
    assert Loader(Table(100), plan, CPU, kind="device", seed=0).why == "device: set by data.loader; windows of 3"
    monkeypatch.setattr(loader_module, "CAN_REUSE", False)
    said = Loader(Table(100), plan, CPU, kind="threads", num_workers=2, seed=0).why
    assert said.endswith("2 threads, set by data.num_workers; this torch cannot reuse buffers; windows of 3")


def test_starvation_says_how_much() -> None:
    for waited, seconds in ((0.3, 10), (0, 0), (-1, -1)):
        assert starvation(waited, seconds, "threads: x") is None
    said = "of the time was spent waiting for data"
    assert starvation(0.31, 10, "else: x") == f"3% {said} (0.31 of 10 s; else: x): see data.loader"
    assert (starvation(0.31, 0.5, "threads: x") or "").startswith(f"62% {said} (0.31 of 0.5 s; threads: x): ")
    assert "raise data.num_workers, or pack" in (starvation(1, 2, "workers: x: y") or "")
    assert starvation(1, 2, "workers: x: y", said=0.3) is None
    assert starvation(1.4, 2, "workers: x: y", said=0.3) == f"70% {said}"


def test_what_helps_against_waiting_is_none_of_what_was_tried_or_refused() -> None:
    plan = endless(100, 4)
    given = {kind: Loader(Table(100), plan, CPU, kind=kind, num_workers=1, seed=0) for kind in ("threads", "workers")}
    for loader in given.values():
        loader.close()
        assert "raise data.num_workers" in remedy(loader.why)
    assert "data.loader=device" in remedy(given["threads"].why)
    assert "data.loader=device" not in remedy(
        "threads: the whole set is 2 TB, and auto keeps at most 1 GB on cuda:0; x"
    )
    for more, count in ((1, 2), (2, 2)):
        tried = remedy(f"workers: {count} workers{choose.enough(more, {1: 9.0, count: 10.0})}; measured")
        assert ("raise data.num_workers" in tried) == (more == count)
    stream = Stream(iter([{"x": 1}]))
    with Loader(stream, endless(100, 4), CPU, seed=0) as loader:
        assert "data.num_workers" not in remedy(loader.why)
    with Loader(Table(100), plan, CPU, kind="device", seed=0) as loader:
        assert "global_batch_size" not in remedy(loader.why)


def test_workers_that_a_loader_has_none_of_are_said_to_have_no_effect() -> None:
    for kind in ("auto", "device"):
        with Loader(Table(100), endless(100, 4), CPU, kind=kind, num_workers=4, seed=0) as loader:
            assert "data.num_workers=4 has no effect: only data.loader=workers and threads use it" in loader.why


@pytest.mark.parametrize(("windows", "ranks"), [(True, 1), (False, 1), (False, 5)])
def test_what_is_remote_is_told_of_in_the_order_of_its_use(
    monkeypatch: pytest.MonkeyPatch, windows: bool, ranks: int
) -> None:
    """All but the first batch, which nothing shall delay, once, in steps, and `ahead_bytes` before it is needed: of all
    ranks of a host together, which share what is kept."""
    monkeypatch.setattr(type(dist_env), "local_size", ranks)

    class Remote(Table):
        ahead_bytes, kept_bytes, nbytes = 50 * 56, 100 * 56, 1000 * 56  # of 50 samples
        told, most = 10, 0

        def advise(self, rows: np.ndarray) -> None:
            assert rows.tolist() == every[self.told :][: len(rows)].tolist()
            self.told += len(rows)

        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            begin = 10 * len(self.calls)
            assert rows.tolist() == every[begin : begin + 10].tolist()  # not a window at once
            assert begin == 0 or self.told >= begin + (min(40, begin + 10) if ranks == 1 else 10)  # more and more
            self.most = max(self.most, self.told - begin)
            return super().gather(rows, out)

    table = Remote(1000)
    order = chunk_windows(table, 0, 5, 10, 5) if windows else sequential(table, 0)
    every = order(np.arange(2000))
    with Loader(table, TrainPlan(order, 10, [10], 0, 1, 0), CPU, num_workers=1, seed=0) as loader:
        assert loader.why.startswith("remote: rows are fetched in the background")
        for _ in zip(range(100), loader, strict=False):
            pass
    assert not windows or "windows of 5 chunks" in loader.why
    jobs_ahead = 3 * 10
    assert table.most <= 10 + jobs_ahead + 10 + 50 // ranks


def test_of_a_small_remote_set_an_epoch_is_told_ahead() -> None:
    """And not all epochs that `ahead_bytes` would hold, whose rows take seconds to find."""

    class Remote(Table):
        ahead_bytes, kept_bytes, nbytes = 20_000 * 56, 40_000 * 56, 1000 * 56
        told, most = 10, 0

        def advise(self, rows: np.ndarray) -> None:
            self.told += len(rows)

        def gather(self, rows: np.ndarray, out: dict[str, Tensor] | None) -> dict[str, Tensor]:
            self.most = max(self.most, self.told - 10 * len(self.calls))
            return super().gather(rows, out)

    table = Remote(1000)
    plan = TrainPlan(sequential(table, 0), 10, [10], 0, 1, 0)
    with Loader(table, plan, CPU, num_workers=1, seed=0) as loader:
        for _ in zip(range(300), loader, strict=False):
            pass
    jobs_ahead = 3 * 10
    assert 500 < table.most <= 1000 + 10 + jobs_ahead


@pytest.mark.parametrize("make", [
    lambda x: torch.nested.nested_tensor([x, x[:1]]),
    lambda x: torch.nested.nested_tensor([x, x[:1]], layout=torch.jagged),
    lambda x: torch.complex(x, x).conj(),
    lambda x: torch.complex(x, x).conj().imag,
])  # fmt: skip
def test_samples_that_torch_does_not_store_plainly_are_compared(make: Callable[[Tensor], Tensor]) -> None:
    """Row 0 of each data set is read twice and compared, also if only its `collate` can make a batch of it."""
    assert digest(make(torch.ones(3))) == digest(make(torch.ones(3))) != digest(make(torch.zeros(3)))
