"""Map-style datasets: the same numbers from any number of workers and any way of starting them; every end is clean."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.children import offsets
from samebits.data import EvalPlan, Loader, Stream, TrainPlan, shuffled
from samebits.data.loading import choose, open_workers
from samebits.data.loading.samples import seed_sample
from samebits.data.order import sequential
from samebits.errors import ConfigError, DataFailed
from samebits.status import read_failure, record_failure
from samebits.testing.processes import limit, slow, wait_for, warm

CPU = torch.device("cpu")


class Noisy:
    """Fields of every kind, drawn from all three generators."""

    def __init__(self, size: int = 40, sleep: float = 0.0) -> None:
        self.size, self.sleep = size, sleep

    def __len__(self) -> int:
        return self.size

    def __getitem__(self, i: int) -> dict[str, Any]:
        time.sleep(self.sleep)
        return {
            "torch": torch.rand(3, 2),
            "numpy": np.random.rand(2).astype(np.float16),
            "python": random.random(),
            "row": i,
            "flag": bool(i % 2),
            "half": torch.full((2,), i, dtype=torch.bfloat16),
            "scalar": np.int16(i),
        }


class Varying(Noisy):
    def __getitem__(self, i: int) -> dict[str, Any]:
        return {"x": torch.rand(i % 3 + 1), "row": i}

    def collate(self, samples: list[dict[str, Any]]) -> dict[str, Tensor]:
        lengths = torch.tensor([len(sample["x"]) for sample in samples])
        return {
            "x": torch.cat([s["x"] for s in samples]),
            "n": lengths,
            "row": torch.tensor([s["row"] for s in samples]),
        }


class Holding:
    """Each row is read from a file that `__init__` has opened, in the way that `how` names."""

    def __init__(self, folder: Path, how: str) -> None:
        names, self.how = [f"{i:03}" for i in range(40)], how
        (folder / "rows").write_text("".join(names) * 200)  # more than a buffer holds
        for name in names:
            (folder / name).write_text(name * 3000)
        if how == "tar":
            with tarfile.open(folder / "x.tar", "w") as out:
                for name in names:
                    out.add(folder / name, name)
            self.tar = tarfile.open(folder / "x.tar")  # noqa: SIM115 - held open is what is tried
        elif how == "zip":
            with zipfile.ZipFile(folder / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
                for name in names:
                    archive.write(folder / name, name)
            self.zip = zipfile.ZipFile(folder / "x.zip")
        else:
            mode = {"read and write": "r+b", "deleted": "rb"}.get(how, "rb")
            self.file = open(folder / "rows", mode, buffering=-(how != "descriptor"))  # noqa: SIM115
            self.file.seek(60)
            self.file.read(3)  # what is in the buffer, and where, is inherited too
            if how == "deleted":
                (folder / "rows").unlink()

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        time.sleep(0.0005)
        if self.how == "tar":
            text = self.tar.extractfile(f"{i:03}").read()  # type: ignore[union-attr]
        elif self.how == "zip":
            text = self.zip.read(f"{i:03}")
        elif self.how == "descriptor":
            os.lseek(self.file.fileno(), 3 * i, os.SEEK_SET)
            time.sleep(0.0005)
            text = os.read(self.file.fileno(), 3)
        else:
            self.file.seek(3 * (i + 40 * (i % 150)))
            text = self.file.read(3)
        return {"row": i, "read": int(text[:3]), "length": len(text)}


class Failing(Noisy):
    def __getitem__(self, i: int) -> dict[str, Any]:
        if i == 33:
            raise OSError(f"sample {i} cannot be read")
        return super().__getitem__(i)


class Unpicklable(Noisy):
    def __init__(self) -> None:
        super().__init__()
        self.open = lambda: None


class Blocks:
    """A dataset that gathers whole batches, in workers because it holds the GIL."""

    def __init__(self) -> None:
        self.spec = {"row": ((2,), torch.int64)}

    def __len__(self) -> int:
        return 40

    def gather(self, rows: np.ndarray, out: dict[str, Tensor]) -> dict[str, Tensor]:
        out["row"][:] = torch.from_numpy(rows)[:, None]
        return out


def plan_of(size: int = 40, batch: int = 6, micro: list[int] | None = None):
    return TrainPlan(shuffled(range(size), seed=1), batch, micro or [batch], 0, 1, 0)


def take(dataset: Any, count: int, num_workers: int, plan: Any = None, **options: Any) -> list[dict[str, Tensor]]:
    with Loader(dataset, plan or plan_of(), CPU, kind="workers", num_workers=num_workers, seed=7, **options) as loader:
        return [{k: v.clone() for k, v in batch.items()} for _, batch in zip(range(count), loader, strict=False)]


def same(a: list[dict[str, Tensor]], b: list[dict[str, Tensor]]) -> bool:
    return len(a) == len(b) and all(
        x.keys() == y.keys() and all(torch.equal(x[k], y[k]) and x[k].dtype == y[k].dtype for k in x)
        for x, y in zip(a, b, strict=True)
    )


@pytest.mark.parametrize("dataset", [Noisy(), Varying()], ids=["slots", "collate"])
def test_numbers_depend_on_the_sample_only(dataset: Any) -> None:
    reference = take(dataset, 20, 0)
    seed_sample(7, 0)
    first = torch.rand(3, 2) if not isinstance(dataset, Varying) else torch.rand(int(reference[0]["n"][0]))
    assert torch.equal(
        reference[0]["torch" if "torch" in reference[0] else "x"][: len(first)].reshape(-1)[: first.numel()],
        first.reshape(-1),
    )
    for num_workers in (1, 3):
        assert same(take(dataset, 20, num_workers), reference)
    cut = take(dataset, 40, 2, plan_of(micro=[4, 2]))
    assert torch.equal(torch.cat([b["row"] for b in cut]), torch.cat([b["row"] for b in reference]))
    field = "torch" if "torch" in cut[0] else "x"
    assert torch.equal(torch.cat([b[field] for b in cut]), torch.cat([b[field] for b in reference]))
    assert len(torch.unique(torch.cat([b[field].reshape(-1) for b in reference]))) > 200  # and no two samples alike


@pytest.mark.parametrize("stream", [False, True])
def test_each_sample_is_read_and_seeded_once(stream: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    read, seeded = list[int](), list[int]()

    class Counted(Noisy):
        def __getitem__(self, i: int) -> dict[str, Any]:
            read.append(i)
            return super().__getitem__(i)

    dataset = Counted()
    source = Stream(dataset[i] for i in range(40)) if stream else dataset
    monkeypatch.setattr("samebits.data.loading.samples.seed_sample", lambda seed, number: seeded.append(number))
    take(source, 6, 0, TrainPlan(sequential(source, seed=0), 2, [1, 1], 0, 1, 0))
    assert len(read) == 6
    assert len(seeded) == 6 * (1 + stream)  # a stream seeds what it reads, too


@pytest.mark.parametrize("how", ["buffered", "descriptor", "read and write", "deleted", "tar", "zip"])
def test_each_worker_has_its_own_position_in_an_open_file(how: str, tmp_path: Path) -> None:
    data = Holding(tmp_path, how)
    batches = take(data, 40, 3, start_method="fork")
    read = [row for b in batches for row in zip(*(b[f].tolist() for f in ("row", "read", "length")), strict=True)]
    assert len(read) == 240
    assert all(row == value and length in (3, 9000) for row, value, length in read)


def test_a_file_that_cannot_be_opened_again_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(path: Any, *rest: Any) -> int:
        raise PermissionError(13, "Permission denied", path)

    data = Holding(tmp_path, "buffered")
    monkeypatch.setattr("samebits.children.offsets.os.open", refused)
    loader = Loader(data, plan_of(), CPU, kind="workers", num_workers=1, seed=0, start_method="fork")
    with loader, pytest.raises(DataFailed, match=r"Permission denied.*open files in __getitem__, or give data.num_w"):
        next(iter(loader))


@pytest.mark.parametrize("start_method", ["fork", slow("spawn")])
def test_positions_that_stay_shared_are_told_once(
    start_method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on macOS, if workers are forked there."""
    said: list[str] = []
    monkeypatch.setattr(offsets, "_OPEN", tmp_path / "proc/self/fd")
    monkeypatch.setattr(offsets.log, "warning", said.append)
    offsets._tell_shared.cache_clear()
    for _ in range(2):
        take(Noisy(), 2, 2, start_method=start_method)
    assert len(said) == (start_method == "fork")
    assert all("forked processes share the positions of open files" in line for line in said)


@pytest.mark.parametrize("start_method", ["fork", slow("spawn")])
def test_start_methods(start_method: str) -> None:
    assert same(take(Noisy(), 8, 2, start_method=start_method), take(Noisy(), 8, 0))


def test_batch_datasets_in_workers() -> None:
    batches = take(Blocks(), 20, 2)
    assert (
        torch.cat([b["row"][:, 1] for b in batches]).tolist()
        == np.concatenate([plan_of()(k)[1] for k in range(20)]).tolist()
    )


@pytest.mark.parametrize("dataset", [Noisy(), Varying(), Blocks()], ids=["slots", "collate", "gather"])
def test_no_loader_draws_from_the_loops_random_numbers(dataset: Any) -> None:
    """Else a run would not go on as it was: after a resume the loaders are made once more."""
    for num_workers in (0, 1, "auto"):
        states = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state()
        with Loader(dataset, EvalPlan(40, 7, 0, 1), CPU, kind="workers", num_workers=num_workers, seed=7) as loader:
            for _ in range(2):
                assert len(list(loader)) == 6
        assert random.getstate() == states[0]
        assert np.random.get_state()[1].tolist() == states[1]
        assert torch.equal(torch.get_rng_state(), states[2])


@pytest.mark.one_quick
@pytest.mark.parametrize("dataset", [Noisy(), Varying()], ids=["slots", "collate"])
def test_evaluation_starts_anew_with_the_same_workers(dataset: Any) -> None:
    with Loader(dataset, EvalPlan(40, 7, 0, 1), CPU, kind="workers", num_workers=2, seed=0) as loader:
        pids = set()
        for stop in (None, 2, 0, None):
            seen = []
            for i, batch in enumerate(loader):
                if i == stop:
                    break
                seen += batch["row"].tolist()
            assert seen == list(range(40 if stop is None else 7 * stop))
            pids.add(frozenset(process.pid for process in multiprocessing.active_children()))
        assert len(pids) == 1


def test_two_iterations_at_once_are_refused() -> None:
    with Loader(Noisy(), plan_of(), CPU, kind="workers", num_workers=1, seed=0) as loader:
        one, two = iter(loader), iter(loader)
        next(one)
        next(two)
        with pytest.raises(RuntimeError, match="a new iteration of this loader has started"):
            next(one)


@pytest.mark.slow
@pytest.mark.parametrize("keep", [lambda v: v, lambda v: v[2:], lambda v: v.numpy()], ids=["batch", "view", "numpy"])
def test_a_slot_is_not_overwritten_while_held(keep: Any) -> None:
    held = []
    with Loader(Noisy(), plan_of(), CPU, kind="workers", num_workers=2, seed=0) as loader:
        for k, batch in zip(range(60), loader, strict=False):
            if k % 3 == 0:
                held.append((keep(batch["row"]), keep(torch.from_numpy(plan_of()(k)[1]))))
            del batch
    assert all(np.array_equal(np.asarray(a), np.asarray(b)) for a, b in held)


def test_an_error_in_a_sample_arrives_with_its_traceback_and_the_loader_goes_on() -> None:
    with Loader(Failing(), EvalPlan(40, 4, 0, 1), CPU, kind="workers", num_workers=2, seed=0) as loader:
        for _ in range(2):
            stream = iter(loader)
            assert [next(stream)["row"].tolist() for _ in range(8)] == np.arange(32).reshape(8, 4).tolist()
            with pytest.raises(DataFailed, match=r"data: OSError: sample 33 cannot be read \(Failing, row") as caught:
                next(stream)
            assert "in __getitem__" in str(caught.value.__cause__)
            assert "in worker" in str(caught.value.__cause__)


OWN = """class Own:
    def __len__(self):
        return 40

    def __getitem__(self, i):
        if i == 33:
            raise OSError("cannot be read")
        return {"row": i}
"""


@pytest.mark.parametrize("num_workers", [0, 2])
def test_what_is_printed_of_an_error_in_a_sample_is_the_place_in_the_users_code(
    num_workers: int, tmp_path: Path
) -> None:
    """The same in a worker; the record has the whole traceback."""
    (tmp_path / "own.py").write_text(OWN)
    names: dict[str, Any] = {}
    exec(compile(OWN, str(tmp_path / "own.py"), "exec"), names)
    loader = Loader(names["Own"](), EvalPlan(40, 4, 0, 1), CPU, kind="workers", num_workers=num_workers, seed=0)
    with loader, pytest.raises(DataFailed) as caught:
        list(loader)
    record_failure(tmp_path, 0, caught.value)
    record = read_failure(tmp_path)
    assert record is not None
    assert record["short"].splitlines()[0] == f'  File "{tmp_path}/own.py", line 7, in __getitem__'
    assert record["short"].splitlines()[-1] == "OSError: cannot be read"
    assert "in fill" not in record["short"]
    assert "in fill" in record["traceback"]


class Faulty:
    """`fault` happens in row 33 of 40."""

    def __init__(self, fault: str) -> None:
        self.fault = fault

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> Any:
        return FAULTS[self.fault][0]() if i == 33 else {"x": torch.zeros(3)}


class FaultyCollate(Faulty):
    def collate(self, samples: list[Any]) -> Any:
        return {"x": torch.stack([sample["x"] for sample in samples])}


class FaultyStream(Faulty):
    """Its samples in order; a stream has no rows."""

    __getitem__ = None  # type: ignore[assignment]

    def __iter__(self) -> Any:
        return (Faulty.__getitem__(self, i) for i in range(40))


class FaultyGather(Faulty):
    spec = {"x": ((3,), torch.float32)}  # noqa: RUF012

    def gather(self, rows: np.ndarray, out: dict[str, Tensor]) -> dict[str, Tensor]:
        if 33 in rows:
            FAULTS[self.fault][0]()
        out["x"].zero_()
        return out


def fails() -> None:
    raise OSError("cannot be read")


# what happens -> what the message says of it; of a data set with collate; in worker processes alone?
FAULTS: dict[str, tuple[Any, str, str, bool]] = {
    "raise": (fails, "OSError: cannot be read", "OSError: cannot be read", False),
    "None": (lambda: None, "returned a NoneType", "of samples that are None: TypeError", False),
    "a list": (lambda: [torch.zeros(3)], "returned a list", "TypeError", False),
    "shape": (lambda: {"x": torch.zeros(1)}, "samples differ in field 'x'", "stack expects each tensor", False),
    "dtype": (lambda: {"x": torch.zeros(3).double()}, "samples differ in field 'x'", "", False),
    "keys": (lambda: {"y": torch.zeros(3)}, "samples differ in their fields", "KeyError: 'x'", False),
    "sys.exit": (lambda: sys.exit(3), r"sys\.exit\(3\)", r"sys\.exit\(3\)", False),
    "text": (lambda: {"x": "text"}, "is a str; return tensors", "TypeError", False),
    "os._exit": (lambda: os._exit(0), r"exit code 0 \(its code ended", r"exit code 0 \(its code ended", True),
    "SIGKILL": (lambda: os.kill(os.getpid(), signal.SIGKILL), "-9 .*memory runs out", "-9 .*memory", True),
    "SIGSEGV": (lambda: os.kill(os.getpid(), signal.SIGSEGV), "-11 .*native code", "-11 .*native", True),
}
BATCH = "rows 28, 29, 30, 31, 32, 33, 34 of split val"
KINDS = {"sample": Faulty, "collate": FaultyCollate, "stream": FaultyStream, "gather": FaultyGather}
HERE = [fault for fault, (*_, of_processes) in FAULTS.items() if not of_processes]
CASES = [  # the kind of data set; data.loader and data.num_workers; the fault
    *(("sample", ("workers", 0), fault) for fault in HERE),
    *(("sample", ("workers", 2), fault) for fault in FAULTS),
    *(("collate", ("workers", 0), fault) for fault in ("raise", "text", "keys")),
    *(("collate", ("workers", 2), fault) for fault in ("shape", "SIGKILL")),
    ("stream", ("auto", 0), "raise"),
    ("stream", ("auto", 0), "keys"),
    *(("gather", reader, "raise") for reader in (("threads", 1), ("device", 0), ("workers", 0), ("workers", 2))),
    ("gather", ("threads", 1), "sys.exit"),
]


@pytest.mark.one_quick
@pytest.mark.parametrize(("kind", "reader", "fault"), CASES)
def test_a_data_set_that_fails_is_named_with_row_and_split(kind: str, reader: tuple[str, int], fault: str) -> None:
    """In whatever way it fails, and whoever reads it: here, a thread or a worker process."""
    _, says, collate_says, dies = FAULTS[fault]
    of_batch = kind == "gather" or (kind == "collate" and fault in ("text", "shape", "keys"))
    where = "sample 33 of split val" if kind == "stream" else BATCH if of_batch else "row 33 of split val"
    if reader[0] in ("device", "threads"):  # several batches are read at once: all, or the first, then 2, then 4
        first = 21 if reader[0] == "threads" else 0
        where = f"rows {', '.join(map(str, range(first, first + 8)))}, ... of split val"
    data: Any = KINDS[kind](fault)
    seen_by = rf"\({type(data).__name__}, {where}\)(; see docs/troubleshooting\.md#data-worker-died)?$"
    message = rf"(?s)^data: .*{collate_says if kind == 'collate' else says}.*{seen_by}"
    with (
        pytest.raises((DataFailed, ConfigError), match=message) as raised,
        Loader(
            Stream(data, 40) if kind == "stream" else data, EvalPlan(40, 7, 0, 1), CPU, kind=reader[0],
            num_workers=reader[1], seed=0, split="val",
        ) as batches,
    ):  # fmt: skip
        list(batches)
    assert not dies or raised.value.short == "a data worker died\n"  # the ranks print this in place of a traceback


def test_what_cannot_be_pickled_is_named() -> None:
    take(Unpicklable(), 2, 1, start_method="fork")
    with pytest.raises(ConfigError, match="Unpicklable cannot be sent to a worker started by spawn"):
        take(Unpicklable(), 2, 1, start_method="spawn")


def test_too_little_shared_memory_is_said_before_it_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    stats = os.statvfs("/")
    monkeypatch.setattr(os, "statvfs", lambda path: os.statvfs_result((stats.f_bsize, 512, 9, 9, 9, *stats[5:10])))
    with pytest.raises(ConfigError, match=r"/dev/shm has 4.61 KB free.*--shm-size"):
        take(Noisy(), 1, 2, plan_of(batch=3000))


def test_without_shared_memory_one_line_names_the_key_and_the_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(tensor: torch.Tensor) -> torch.Tensor:
        raise RuntimeError("unable to open shared memory object </torch_1>: No such file or directory (2)")

    monkeypatch.setattr(torch.Tensor, "share_memory_", refused)
    with pytest.raises(ConfigError, match=r"^data.num_workers=2: .*No such file.*/dev/shm.*data.loader=threads"):
        take(Noisy(), 2, 2)


@pytest.mark.slow
def test_auto_measures_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_workers, "_HAND_OVER_S", 1000.0)
    quick = Loader(Noisy(), plan_of(batch=1), CPU, seed=0)
    assert quick.kind == "workers"
    assert "in this process: a batch takes only" in quick.why
    monkeypatch.setattr(open_workers, "_HAND_OVER_S", 0.0)
    with Loader(Noisy(sleep=0.002), plan_of(), CPU, seed=7) as loader:
        assert "measured samples/s: 1 worker" in loader.why
        batches = [{k: v.clone() for k, v in b.items()} for _, b in zip(range(3), loader, strict=False)]
    assert same(batches, take(Noisy(), 3, 0))
    with Loader(Varying(), plan_of(), CPU, num_workers=2, seed=0) as loader:
        assert "whole batches, for the dataset's own collate" in loader.why


def test_auto_takes_more_workers_than_cores_where_samples_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    rate = open_workers._rate

    def idle(source: Any, plan: Any, skip: int) -> float:
        """The speed on a machine that does nothing else: skip is twice the number of workers."""
        assert rate(source, plan, skip) > 0
        return skip / 2 / 0.02

    monkeypatch.setattr(open_workers, "_rate", idle)
    with Loader(Noisy(size=4000, sleep=0.02), plan_of(4000), CPU, seed=7, cores=1) as loader:
        assert loader.num_workers == 8, loader.why


def test_the_search_ends_where_more_gain_nothing_or_cannot_be_started() -> None:
    def rate(count: int) -> float:
        tried.append(count)
        if count > most:
            raise OSError(24, "Too many open files")
        return min(count, gains) * 100.0

    cases = [
        (1, 99, 99, [1, 2, 4, 8]),
        (2, 3, 99, [1, 2, 4, 8]),
        (6, 6, 99, [1, 2, 4, 6, 12]),
        (9, 99, 20, [1, 2, 4, 9, 18, 36]),
        (4, 1, 99, [1, 2]),
        (100, 999, 999, [1, 2, 4, 8, 16, 32, 64, 100]),
    ]
    for cores, gains, most, wanted in cases:  # noqa: B007 - rate() reads it
        tried: list[int] = []
        rates = choose.doubling(rate, choose.counts(cores))
        assert tried == wanted
        assert list(rates) == [count for count in tried if count <= most]


class Hanging:
    """Each worker makes its first batch and never another. variable: with a collate of its own."""

    def __init__(self, variable: bool) -> None:
        self.calls = 0
        if variable:
            self.collate = torch.utils.data.default_collate

    def __len__(self) -> int:
        return 40

    def __getitem__(self, i: int) -> dict[str, Any]:
        self.calls += 1
        while self.calls > 10:  # a batch has 6, and the loader looks at one sample
            pass
        return {"row": i}


SCRIPT = """
import multiprocessing, os, signal, sys, threading, time
sys.path[:0] = {tests!r}
from test_workers import CPU, Hanging, Noisy, plan_of
from samebits.data import Loader

def begin(dataset, method=None):
    global loader, stream
    loader = Loader(dataset, plan_of(), CPU, kind="workers", num_workers=2, seed=0, start_method=method)
    stream = iter(loader)
    next(stream)

{begin}
print(*[p.pid for p in multiprocessing.active_children()], flush=True)
{body}
"""
HANG = "time.sleep(0.5); os._exit(4)"


def alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().split(")")[-1].split()[0] not in "ZX"
    except OSError:
        return False


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks into /proc")
@pytest.mark.parametrize(
    ("begin", "body", "code"),
    [
        ("begin(Noisy(sleep=0.01))", "os.kill(os.getpid(), signal.SIGKILL)", -9),
        ("begin(Noisy(sleep=0.01))",
         "for p in loader._source._processes: [os.kill(p.pid, n) for n in (1, 2, 10, 15)]\n"
         "for _ in range(5): next(stream)\nloader.close(); loader.close()", 0),
        ("begin(Hanging(True))", HANG, 4),
        # the thread that has started the workers ends before they do
        ("one = threading.Thread(target=begin, args=(Hanging(False),)); one.start(); one.join()",
         "time.sleep(1.5); next(stream); " + HANG, 4),
        ("begin(Hanging(False), 'spawn')", HANG, 4),
    ],
    ids=["killed", "signals to workers", "hang with collate", "hang, thread", "hang, spawn"],
)  # fmt: skip
def test_workers_end_with_their_parent(begin: str, body: str, code: int) -> None:
    script = SCRIPT.format(tests=[str(Path(__file__).parent), *sys.path], begin=begin, body=body)
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "start_new_session": True}
    with warm.Popen([sys.executable, "-c", script], **pipes) as process:
        out, err = process.communicate(timeout=limit(60))
    assert process.returncode == code, err
    pids = [int(pid) for pid in out.split()]
    assert len(pids) == 2
    wait_for(lambda: not any(alive(pid) for pid in pids), seconds=60)
