"""Direct preference optimization (DPO, Rafailov et al. 2023): a language model learns which answers are better."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.losses.next_token import token_losses
from lab.tasks.base import Batch, Losses, Metric, Task
from samebits.checkpoints import find_weights, format_keys, load_fitting
from samebits.errors import ConfigError
from samebits.schema import Positive


class DPO(Task):
    """model: (B, T) token ids -> (B, T, V) logits of the next; metrics get the margins (B,).

    batch: `chosen` and `rejected`, (B, T) prompt and answer, and `chosen_mask`, `rejected_mask`, (B, T), not 0 where a
    token is the answer's. weights: a run, checkpoint or state dict to begin with; None: the model as it is built. The
    model as the run begins with it is the reference. "margin": by how much more than the reference the model prefers
    the chosen answer, times beta; "accuracy": whether it does.
    """

    loss_names = ("margin", "accuracy")

    def __init__(self, weights: str | None, beta: Positive, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self.source, self.beta, self.metrics = weights, beta, metrics
        self.frozen = {"reference": None}

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str | None:
        if self.source is None:
            return None
        file, state = find_weights(Path(self.source))
        mine = model.state_dict()
        if unfit := [name for name, value in state.items() if name not in mine or mine[name].shape != value.shape]:
            raise ConfigError(
                f"task.weights={self.source}: {format_keys(unfit)} do not fit the model - give data.input_shape, "
                "data.num_outputs and model.model its sizes"
            )
        return load_fitting(model, state, file)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        margin = self.predict(model, batch)
        return {"loss": -F.logsigmoid(margin), "margin": margin, "accuracy": (margin > 0).float()}, margin

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        with torch.no_grad():
            before = preferred(self.frozen["reference"], batch)
        return self.beta * (preferred(model, batch) - before)


def preferred(model: nn.Module, batch: Batch) -> Tensor:
    """(B,): the logarithm of how much more probable the chosen answer is than the rejected one."""
    tokens = torch.cat([batch["chosen"], batch["rejected"]]).long()
    counted = torch.cat([batch["chosen_mask"], batch["rejected_mask"]])[:, 1:] != 0
    target = tokens[:, 1:].masked_fill(~counted, -100)
    losses = token_losses(model(tokens[:, :-1]), target.flatten()).view(target.shape)
    chosen, rejected = losses.sum(1).neg().chunk(2)
    return chosen - rejected
