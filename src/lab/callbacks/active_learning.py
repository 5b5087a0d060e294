"""Pool-based active learning (Settles 2009): train on labeled rows, then label the rows with the least certain
predictions."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.callbacks.base import Callback
from lab.rows import by_row
from lab.tasks.base import Batch
from samebits.data import SampleRNG
from samebits.errors import ConfigError
from samebits.schema import Count


class Labelled:
    """A data.order that samples from the labeled rows, uniformly and with replacement. begin: number of labeled rows at
    the start of the run, chosen at random by the seed. Raise ConfigError if the training split has fewer rows."""

    def __init__(self, dataset: Sized, seed: int, begin: Count) -> None:
        if begin > len(dataset):
            raise ConfigError(f"data.order.begin={begin}: the training split has only {len(dataset)} samples")
        self.size, self.draws = len(dataset), SampleRNG(seed, "Labelled")
        self.rows = self.draws.uniform(torch.arange(self.size), 1)[:, 0].argsort(stable=True)[:begin]

    def __call__(self, sample_ids: np.ndarray) -> np.ndarray:
        """Return the rows of these sample ids, (B,) int64 -> (B,) int64."""
        return self.rows[self.draws.below(torch.tensor(sample_ids), (len(self.rows),))[:, 0]].numpy()

    def state_dict(self) -> dict[str, Tensor]:
        """Return the labeled rows."""
        return {"rows": self.rows}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the labeled rows."""
        self.rows = state["rows"]


class ActiveLearning(Callback):
    """Label `count` more rows after each evaluation, until `most` rows are labeled: the rows with the largest entropy
    of the class probabilities. task.predict must return logits (B, C)."""

    def __init__(self, count: Count, most: Count) -> None:
        self.count, self.most = count, most

    def on_start(self, state: Any) -> None:
        """Raise ConfigError if data.order is not Labelled."""
        if not isinstance(order := self.run.order, Labelled):
            raise ConfigError(
                f"callback.active_learning: data.order is {type(order).__name__}, but must be "
                f"{Labelled.__module__}.Labelled - see experiment=active_learning"
            )

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Log the number of labeled rows."""
        values["train/labelled"] = float(len(self.run.order.rows))

    def on_eval(self, state: Any, scores: dict[str, float]) -> None:
        """Label more rows."""
        order = self.run.order
        pool = np.setdiff1d(np.arange(order.size), order.rows.numpy())
        count = min(self.count, self.most - len(order.rows), len(pool))
        if count <= 0:
            return

        def entropy(model: nn.Module, batch: Batch) -> Tensor:
            logits = state.task.predict(model, batch).float()
            return -(logits.softmax(1) * F.log_softmax(logits, 1)).sum(1)

        least_sure = by_row(state, self.run, pool, entropy).argsort(descending=True, stable=True)[:count]
        order.rows = torch.cat([order.rows, torch.from_numpy(pool)[least_sure]])
        self.run.reorder()
