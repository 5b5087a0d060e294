"""Batches that cross to a GPU beside its work arrive as they were: on one that runs as late as it may."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch
from fake_cuda import FakeCuda
from torch import Tensor

from samebits.data.loading import ring, waits
from samebits.data.loading.loader import Loader
from samebits.data.loading.side_stream import SideStream
from samebits.data.order import TrainPlan, shuffled

CPU = torch.device("cpu")


class Table:
    """x[i] = i, 6 times; many samples, or one that is a lot of memory."""

    spec: Any = {"x": ((6,), torch.int64)}  # noqa: RUF012

    def __len__(self) -> int:
        return 50

    def gather(self, rows: np.ndarray, out: Any) -> Any:
        out["x"].copy_(torch.from_numpy(rows)[:, None].expand(-1, 6))
        return out


class Ragged(Table):
    spec: Any = {"x": ((-1,), torch.int64)}  # noqa: RUF012

    def gather(self, rows: np.ndarray, out: Any) -> Any:
        return {"x": torch.from_numpy(rows.copy()).repeat_interleave(6).view(-1, 6), "names": [str(r) for r in rows]}


class Items:
    def __len__(self) -> int:
        return 50

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"x": torch.full((6,), i)}


class Collated(Items):
    def collate(self, samples: list[dict[str, Tensor]]) -> dict[str, Any]:
        return {"x": torch.stack([sample["x"] for sample in samples]), "names": [len(samples)]}


@pytest.fixture
def gpu(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> FakeCuda:
    fake = FakeCuda(seed=getattr(request, "param", 0))
    monkeypatch.setattr(SideStream, "of", classmethod(lambda cls, device: cls(fake)))
    return fake


def numbered(batch: dict[str, Any], numbers: Tensor) -> dict[str, Any]:
    return {**batch, "numbers": numbers}


CASES = {
    "threads": (Table(), "threads", 2),
    "threads, ragged": (Ragged(), "threads", 2),
    "in this process": (Items(), "auto", 0),
    "in this process, gathered": (Table(), "workers", 0),
    "in this process, collated": (Collated(), "auto", 0),
    "workers": (Items(), "auto", 2),
    "workers, collated": (Collated(), "auto", 2),
}


@pytest.mark.one_quick
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("gpu", range(1), indirect=True)
def test_every_batch_arrives_whole(case: str, gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """However far the GPU is behind: no memory is written before it was copied, nothing is read before it has come."""
    monkeypatch.setattr(ring, "GROUP_BYTES", 300)
    dataset, kind, num_workers = CASES[case]
    plan = TrainPlan(shuffled(range(50), seed=0), 8, [5, 3], 0, 1, 0)
    seen = []
    with Loader(dataset, plan, CPU, numbered, kind, num_workers, seed=0) as loader:
        pick = random.Random(0)
        for k, batch in zip(range(60), loader):
            computed = {name: value for name, value in batch.items() if isinstance(value, Tensor)}
            address = batch["x"].untyped_storage().data_ptr()
            assert (address, id(gpu.main)) in gpu.recorded, "torch may give its memory out before it was read"
            seen.append((gpu.read(computed), plan(k)))
            if pick.random() < 0.1:
                gpu.finish()
            del batch, computed
    assert gpu.registered == []  # a worker's slots are unlocked again
    gpu.finish()
    for values, part in seen:
        assert part is not None
        assert values["numbers"].tolist() == part[0].tolist()
        assert values["x"].tolist() == [[row] * 6 for row in part[1].tolist()]
    if "ragged" not in case and case != "workers, collated":  # whose memory PyTorch's own thread locks
        assert gpu.unlocked == 0, "a copy that the host waits for"


class Windowed(TrainPlan):
    """All that is asked for is one window."""

    def window(self, k: int) -> int | None:
        return k // 1000


def test_page_locked_memory_is_bounded(gpu: FakeCuda, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch locks powers of two; of large windows only few are gathered ahead."""
    limit, rows = 1 << 20, 100
    monkeypatch.setattr(ring, "_WINDOW_BYTES", limit // 4)
    monkeypatch.setattr(ring, "_LOCKED_BYTES", limit)
    plan = Windowed(shuffled(range(50), seed=0), rows, [rows], 0, 1, 0)
    with Loader(Table(), plan, CPU, None, "threads", 8, seed=0) as loader:
        for k, batch in zip(range(400), loader):
            del batch
            if k % 50 == 0:
                gpu.finish()
        slots = loader._source._filler.slots
        locked = sum(1 << (t.nbytes - 1).bit_length() for slot in slots._slots for t in slot.tensors.values())
    assert locked <= limit + 2 * limit // 4  # and the one in use, and one whose copy is under way


# ---- what counts as waiting


class Gpu:
    """A device's clock. now_s: of the host. busy_until: what the GPU has been given is done then. A mark lies there."""

    now_s = busy_until = 0.0

    def now(self) -> float:
        self.busy_until = max(self.busy_until, self.now_s)
        return self.busy_until

    def passed(self, mark: float) -> bool:
        return mark <= self.now_s

    def seconds(self, start: float, end: float) -> float:
        assert self.passed(end), "the host waits for nothing"
        return end - start

    def kernel(self, seconds: float) -> None:
        self.busy_until = max(self.busy_until, self.now_s) + seconds


@pytest.mark.parametrize("seed", range(2))
def test_only_an_idle_gpu_waits_for_data(seed: int) -> None:
    """Random steps: host work, kernels, a loader that blocks, a copy that ends later; against the sum of the gaps."""
    pick, gpu = random.Random(seed), Gpu()
    clock = waits.DeviceWaits(lambda: gpu)
    idle: list[float] = []

    def batches() -> Iterator[None]:
        while True:
            asked, free = gpu.now_s, gpu.busy_until
            gpu.now_s += pick.choice([0.0, 0.0, 0.005, 0.1])  # no batch yet
            arrives = gpu.now_s + pick.choice([0.0, 0.0, 0.03])  # its copy
            gpu.busy_until = max(gpu.busy_until, arrives)
            idle.append(max(0.0, gpu.busy_until - max(asked, free)))
            yield

    given = batches()
    for _ in range(300):
        gpu.now_s += pick.choice([0.0, 0.001, 0.02])  # the host launches the step
        gpu.kernel(pick.choice([0.001, 0.01, 0.05]))
        clock.next(given)
    gpu.now_s = gpu.busy_until
    assert clock.seconds() == pytest.approx(sum(idle))
