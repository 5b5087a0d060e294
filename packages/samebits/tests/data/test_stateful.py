"""Orders with a state: after a reorder the loader goes on by the new one, whatever was made ahead."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from samebits.data import Loader, StatefulOrder, Stream, TrainPlan
from samebits.data.order import EvalPlan, sequential
from samebits.data.stateful import has_state
from samebits.errors import ConfigError

CPU, SIZE, BATCH = torch.device("cpu"), 1000, 10
GIVEN: Any = {"seed": 0, "rows": True, "transform": lambda batch, numbers: {**batch, "number": numbers}}
KINDS = ("threads", "device", "in this process", "workers", "collate")


class Table:
    """Field y of row i is i."""

    spec = {"y": ((), torch.int64)}  # noqa: RUF012

    def __len__(self) -> int:
        return SIZE

    def gather(self, rows: np.ndarray, out: dict[str, Tensor]) -> dict[str, Tensor]:
        out["y"].copy_(torch.from_numpy(rows))
        return out


class Items:
    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, i: int) -> dict[str, Tensor]:
        return {"y": torch.tensor(i)}


class Collated(Items):
    def collate(self, samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
        return {"y": torch.stack([sample["y"] for sample in samples])}


class Shifted:
    """number -> number + shift."""

    def __init__(self) -> None:
        self.shift = torch.tensor(0)

    def __call__(self, numbers: np.ndarray) -> np.ndarray:
        return (numbers + int(self.shift)) % SIZE

    def state_dict(self) -> dict[str, Any]:
        return {"shift": self.shift}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shift = state["shift"]


def rows_at(numbers: Any, shift: int) -> list[int]:
    return [(int(number) + shift) % SIZE for number in numbers]


def loader_of(kind: str, order: Any, micro: list[int], rank: int = 0, ranks: int = 1, start: int = 0) -> Loader:
    plan = TrainPlan(order, BATCH, micro, rank, ranks, start)
    if kind in ("threads", "device"):
        return Loader(Table(), plan, CPU, kind=kind, num_workers=2, **GIVEN)
    workers = 0 if kind == "in this process" else 2
    return Loader((Collated if kind == "collate" else Items)(), plan, CPU, num_workers=workers, **GIVEN)


def shift(order: StatefulOrder, loader: Loader, to: int) -> None:
    order.order.shift.fill_(to)  # in place: what is in use must not see it
    order.take()
    loader.reorder(order.use)
    order.order.shift.fill_(-1)


@pytest.mark.one_quick
@pytest.mark.parametrize("kind", KINDS)
def test_batches_follow_the_order_from_the_next_step_on(kind: str) -> None:
    order = StatefulOrder(Shifted)
    with loader_of(kind, order, [6, 4], start=30) as loader:
        loader.first()  # of the order before: it is drawn anew
        shift(order, loader, 100)
        now, later, batches = 100, 100, iter(loader)
        for k in range(60):
            step, micro = divmod(k, 2)
            if micro == 0:
                now = later
                if step in (3, 4, 17):  # between two steps, twice in a row
                    shift(order, loader, step)
                    now = later = step
            batch, begin = next(batches), 30 + BATCH * step
            wanted = list(range(begin, begin + 6) if micro == 0 else range(begin + 6, begin + BATCH))
            assert batch["number"].tolist() == wanted
            assert batch["y"].tolist() == batch["row"].tolist() == rows_at(wanted, now)
            if k == 40:  # within a step: its other micro-batch is of the order with which it began
                shift(order, loader, 500)
                later = 500


@pytest.mark.one_quick
@pytest.mark.parametrize("kind", ["threads", "workers"])
def test_ranks_share_the_samples_of_each_order(kind: str) -> None:
    def seen(rank: int, ranks: int) -> list[list[int]]:
        order, batches = StatefulOrder(Shifted), []
        with loader_of(kind, order, [BATCH // ranks], rank, ranks) as loader:
            for step, batch in zip(range(12), loader):
                batches.append(batch["y"].tolist())
                if step % 5 == 2:
                    shift(order, loader, 100 * step)
        return batches

    assert [a + b for a, b in zip(seen(0, 2), seen(1, 2))] == seen(0, 1)


@pytest.mark.slow
def test_many_reorders_leave_nothing_behind() -> None:
    for kind in ("threads", "workers"):
        order, threads = StatefulOrder(Shifted), 0
        with loader_of(kind, order, [BATCH]) as loader:
            batches = iter(loader)
            for step in range(100):
                shift(order, loader, step)
                assert next(batches)["row"].tolist() == rows_at(range(BATCH * step, BATCH * (step + 1)), step)
                threads = threads or threading.active_count()
            assert threading.active_count() == threads
            if kind == "threads":
                assert loader._source._filler.slots.allocated <= 10


def test_what_was_saved_goes_on_by_both_states() -> None:
    """The one in use, and the one that a later reorder will take."""
    order = StatefulOrder(Shifted)
    order.order.shift.fill_(3)
    order.take()
    order.order.shift.fill_(8)
    again = StatefulOrder(Shifted, saved=order.state_dict())
    again.use()
    assert again(np.arange(2)).tolist() == [3, 4]
    again.take()
    again.use()
    assert again(np.arange(2)).tolist() == [8, 9]
    assert order(np.arange(2)).tolist() == [0, 1]  # until `use`


def test_rows_in_evaluations_and_of_streams() -> None:
    with Loader(Table(), EvalPlan(5, 4, 1, 2, True, None, True, np.array([7, 3, 9, 2, 4])), CPU, **GIVEN) as loader:
        (batch,) = list(loader)
    assert batch["y"].tolist() == [3, 2, 3, 3]
    assert batch["row"].tolist() == batch["number"].tolist() == [3, 2, -1, -1]

    class Endless:
        def __iter__(self) -> Iterator[dict[str, Tensor]]:
            return ({"y": torch.tensor(i)} for i in range(100))

    stream = Stream(Endless())
    with Loader(stream, TrainPlan(sequential(stream, 0), 4, [4], 0, 1, 0), CPU, **GIVEN) as loader:
        assert next(iter(loader)).keys() == {"y", "number"}


class Half(Shifted):
    state_dict = None  # type: ignore[assignment]


class Arrays(Shifted):
    def state_dict(self) -> dict[str, Any]:
        return {"weights": [np.ones(3)]}


class Lacking(Shifted):
    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shift = state["weights"]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: has_state(Half()), "data.order: Half has no state_dict; an order with a state needs both"),
        (lambda: StatefulOrder(Arrays), r"Arrays.state_dict\(\)\['weights'\]\[0\] is a ndarray.*torch.from_numpy"),
        (lambda: StatefulOrder(Lacking), "Lacking.load_state_dict failed: KeyError: 'weights'"),
    ],
)
def test_mistakes_are_one_line(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        make()
