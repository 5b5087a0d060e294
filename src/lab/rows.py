"""A value of each row of the training set, by the present weights: what an order with a state is changed by."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from lab.average import evaluation_mode
from lab.state import RunContext, TrainState, averaged_model
from lab.tasks.base import Batch


@torch.no_grad()
def by_row(state: TrainState, run: RunContext, rows: Any, value: Callable[[nn.Module, Batch], Tensor]) -> Tensor:
    """value(model, batch) -> (B,) of each of these rows, (N,) int64, by the weights that are scored, in evaluation
    mode. Returns (N,) float32 on the CPU, equal on all ranks, which share the work: all of them call this."""
    rows = np.asarray(rows, dtype=np.int64)
    if not len(rows):
        return torch.zeros(0)
    model, task = averaged_model(state), state.task
    run.world.broadcast_buffers(nn.ModuleList([model, task]))
    autocast = run.hardware.autocast
    table = torch.zeros(int(rows.max()) + 2, device=run.world.device)  # the last place is for padding: row -1
    with evaluation_mode(model, task), run.iterate_rows(np.unique(rows)) as batches:
        for batch in batches:
            with autocast():
                values = value(model, batch)
            table[batch["row"]] = values.float()
    return run.world.all_reduce_sum(table).cpu()[rows]
