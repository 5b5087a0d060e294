"""Build the plan of a loader: which rows each rank reads, in training and in an evaluation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from samebits.data.lanes import LanePlan
from samebits.data.order import EvalPlan, Plan, Repeated, TrainPlan
from samebits.data.stateful import StatefulOrder, has_state

Mark = Callable[[Any, Any], Any]  # adds the lane of each row to a batch


def training_plan(
    make_order: Callable[[], Any], saved: dict[str, Any] | None, overfit: int | None, batch_size: int,
    micro_batch_sizes: list[int], rank: int, ranks: int, start: int,
) -> tuple[TrainPlan, Mark | None]:  # fmt: skip
    """Return the training plan, and `mark` if the order has lanes (otherwise None).

    make_order: returns a new order. saved: if a run is resumed, the state of an order with a state, otherwise None.
    overfit: repeat this number of samples; None: use all. start: first global sample id."""
    order = make_order()
    repeated = Repeated(make_order(), overfit) if overfit else None
    mark = getattr(repeated or order, "mark", None) if hasattr(order, "mark") else None
    order = StatefulOrder(make_order, saved, repeated) if has_state(order) else repeated or order
    return TrainPlan(order, batch_size, micro_batch_sizes, rank, ranks, start), mark


def evaluation_plan(
    size: int, batch_size: int, rank: int, ranks: int, in_step: bool, count: int | None, full: bool,
    rows: np.ndarray | None = None, whole: bool = False, lanes: int | None = None,
) -> tuple[Plan, Mark | None]:  # fmt: skip
    """Return the evaluation plan, and `mark` if lanes are given (otherwise None).

    rows: (N,) int64, the rows to evaluate; None: all `size` rows. See EvalPlan for the other arguments.
    """
    common = (batch_size, rank, ranks, in_step, count, full)
    if lanes is not None:
        plan = LanePlan(size, lanes, *common)
        return plan, plan.mark
    return EvalPlan(size if rows is None else len(rows), *common, rows, whole=whole), None
