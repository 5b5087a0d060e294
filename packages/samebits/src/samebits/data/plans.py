"""The plan of a loader: which rows each rank reads, in training and in an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samebits.data.lanes import LanePlan
from samebits.data.order import EvalPlan, Plan, Repeated, TrainPlan
from samebits.data.stateful import StatefulOrder, has_state

Mark = Callable[[Any, Any], Any]  # says which lane each row of a batch is of


def training_plan(
    make_order: Callable[[], Any], saved: dict[str, Any] | None, overfit: int | None, batch_size: int,
    micro_batch_sizes: list[int], rank: int, ranks: int, start: int,
) -> tuple[TrainPlan, Mark | None]:  # fmt: skip
    """Return the plan, and the mark of an order that is in lanes.

    saved: the state of an order that has one, at a resume. overfit: the first so many samples, again and again. start:
    global sample number to begin with.
    """
    order = make_order()
    repeated = Repeated(make_order(), overfit) if overfit else None
    mark = getattr(repeated or order, "mark", None) if hasattr(order, "mark") else None
    order = StatefulOrder(make_order, saved, repeated) if has_state(order) else repeated or order
    return TrainPlan(order, batch_size, micro_batch_sizes, rank, ranks, start), mark


def evaluation_plan(
    size: int, batch_size: int, rank: int, ranks: int, in_step: bool, count: int | None, full: bool,
    rows: np.ndarray | None = None, whole: bool = False, lanes: int | None = None,
) -> tuple[Plan, Mark | None]:  # fmt: skip
    """Return the plan, and the mark of one in `lanes`. rows: (N,) int64, those that are meant; None: all `size`. The
    others: see EvalPlan."""
    common = (batch_size, rank, ranks, in_step, count, full)
    if lanes is not None:
        plan = LanePlan(size, lanes, *common)
        return plan, plan.mark
    return EvalPlan(size if rows is None else len(rows), *common, rows, whole=whole), None
