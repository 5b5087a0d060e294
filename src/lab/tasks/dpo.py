"""Direct preference optimization (DPO, Rafailov et al. 2023): a language model learns which of two answers is
better."""

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
    """model: (B, T) token ids -> (B, T, V) logits of the next token. Metrics are called with the margins (B,).

    batch: `chosen` and `rejected`, (B, T) token ids of prompt and answer; `chosen_mask` and `rejected_mask`, (B, T),
    nonzero at the tokens of the answer. weights: path of a run, checkpoint or state dict to start from; None: the
    initial model. The reference is a copy of the model at the start of the run. "margin": beta times the difference to
    the reference in log p(chosen) - log p(rejected). "accuracy": 1 if the margin is positive, otherwise 0.
    """

    loss_names = ("margin", "accuracy")

    def __init__(self, weights: str | None, beta: Positive, metrics: Mapping[str, Metric]) -> None:
        super().__init__()
        self.source, self.beta, self.metrics = weights, beta, metrics
        self.frozen_networks = {"reference": None}

    def initialize(self, model: nn.Module, batches: Iterator[Batch]) -> str | None:
        """Load `weights` into the model. Raise ConfigError if a weight does not fit."""
        if self.source is None:
            return None
        file, state = find_weights(Path(self.source))
        mine = model.state_dict()
        if unfit := [name for name, value in state.items() if name not in mine or mine[name].shape != value.shape]:
            raise ConfigError(
                f"task.weights={self.source}: {format_keys(unfit)} do not fit the model - set data.input_shape, "
                "data.num_outputs and model.model to the sizes of these weights"
            )
        return load_fitting(model, state, file)

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss, margin and accuracy, (B,) each."""
        margin = self.predict(model, batch)
        return {"loss": -F.logsigmoid(margin), "margin": margin, "accuracy": (margin > 0).float()}, margin

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the margins, (B,)."""
        with torch.no_grad():
            before = preferred(self.frozen_networks["reference"], batch)
        return self.beta * (preferred(model, batch) - before)


def preferred(model: nn.Module, batch: Batch) -> Tensor:
    """Return log p(chosen) - log p(rejected), (B,)."""
    tokens = torch.cat([batch["chosen"], batch["rejected"]]).long()
    counted = torch.cat([batch["chosen_mask"], batch["rejected_mask"]])[:, 1:] != 0
    target = tokens[:, 1:].masked_fill(~counted, -100)
    losses = token_losses(model(tokens[:, :-1]), target.flatten()).view(target.shape)
    chosen, rejected = losses.sum(1).neg().chunk(2)
    return chosen - rejected
