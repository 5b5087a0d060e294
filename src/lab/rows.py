"""Compute a value of each training row with the present weights, so that a data.order with a state can reorder them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.average import evaluation_mode
from lab.state import RunContext, TrainState, model_or_average
from lab.tasks.base import Batch


@torch.no_grad()
def by_row(state: TrainState, run: RunContext, rows: Any, value: Callable[[nn.Module, Batch], Tensor]) -> Tensor:
    """Return value(model, batch) -> (B,) for these training rows: (N,) float32 on the CPU, equal on all ranks.

    rows: (N,) int64. model: the weight average, if there is one, in evaluation mode. All ranks call this and share the
    work."""
    rows = np.asarray(rows, dtype=np.int64)
    if not len(rows):
        return torch.zeros(0)
    model, task = model_or_average(state), state.task
    run.world.broadcast_buffers(nn.ModuleList([model, task]))
    autocast = run.hardware.autocast
    table = torch.zeros(int(rows.max()) + 2, device=run.world.device)  # the last entry is for padding, whose row is -1
    with evaluation_mode(model, task), run.iterate_rows(np.unique(rows)) as batches:
        for batch in batches:
            with autocast():
                values = value(model, batch)
            table[batch["row"]] = values.float()
    return run.world.all_reduce_sum(table).cpu()[rows]
