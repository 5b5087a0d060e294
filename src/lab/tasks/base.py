"""What a method is: its losses, its scores, and what it holds beside the model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from torch import Tensor, nn

Batch = dict[str, Tensor]
Losses = Mapping[str, Tensor]  # name -> (B,), one value for each sample
Metric = Any  # a function (output, batch) -> (B,), or an object with reset, update and compute: lab.metrics.base


class Task(nn.Module):
    """What one batch means. A method is a subclass in lab/tasks and a yaml in conf/task; see supervised.py.

    A task is a module: the parameters and buffers that it holds (a teacher, a temperature, a critic, a queue) are on
    the device, trained where they require a gradient, averaged over the ranks, saved and restored with the model.
    Random numbers: torch's own are each rank's and go on at a resume; those of engine.data.counter.Draws(seed, stream),
    asked with batch["number"], are the same for any number of ranks and micro-batches (set `numbered`).
    """

    terms: tuple[str, ...] = ()  # what `losses` returns beside "loss": logged, and scored in evaluations
    numbered = False  # True: batches have "number", (B,) int64, the sample's global number (in an evaluation: its row)
    # True: the loss compares samples with each other, over all ranks: one micro-batch a step, evaluations in step
    across_samples = False
    not_compiled: tuple[str, ...] = ()  # methods that hardware.compile leaves alone: what the compiler cannot do
    metrics: Mapping[str, Metric] = {}

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """({"loss": (B,), term: (B,), ...}, output): "loss" is what is minimised; a tensor stands for {"loss": ...}.

        Losses are per sample: their mean over all samples of the global batch is taken by the loop. output: what
        metrics and callbacks get. Evaluations call this too, without gradients and in batches of other sizes.
        """
        raise NotImplementedError

    def weights(self, batch: Batch) -> Tensor | None:
        """(B,) how much each sample counts in means, such as its number of tokens; None: one each."""
        return None

    def attach(self, model: nn.Module) -> None:
        """Once, on all ranks, after the model was built, and before a checkpoint is loaded: freeze parts of the model,
        make what has the model's shape (a teacher)."""

    def initialize(self, model: nn.Module) -> str | None:
        """Only where a run begins, before `attach`: other weights for the model -> a line about them."""
        return None

    def trained(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        """{objective: modules that it trains}, an optimizer each. The one objective of most tasks is named ""; with
        others, `losses` is for evaluations, and <objective>_losses(model, batch) is what that objective minimises."""
        return {"": [model, self]}

    def train_step(self, step: int, batches: Iterator[Batch], descend: Descend) -> dict[str, Tensor]:
        """One step of the loop: descend(objective, batches) for each objective that is due -> all their values.

        step: from 0. batches: the micro-batches of this step; for several objectives keep them, list(batches).
        """
        return descend("", batches)

    def updated(self, model: nn.Module) -> None:
        """After each update of the weights, without gradients: move a teacher, a queue."""


# (objective, micro-batches) -> values: forward, backward, clip and update, see lab.loop.descend
Descend = Callable[[str, Any], dict[str, Tensor]]
