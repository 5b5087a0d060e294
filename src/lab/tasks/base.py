"""The base class of methods: losses, metrics, and parameters beside the model's."""

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
    Random numbers: torch's generators differ by rank in `losses`, and draw the same on all ranks in `updated`, and in
    `train_step` after a descend; they are restored at a resume. engine.data.Draws(seed,
    stream), indexed by batch["number"], gives the same for any number of ranks and micro-batches (set `numbered`).
    """

    terms: tuple[str, ...] = ()  # what `losses` returns beside "loss": logged, and scored in evaluations
    # True: batches have "number", (B,) int64, the sample's global number; in an evaluation its row, or -1: not counted
    numbered = False
    # True: the loss compares samples over all ranks: one micro-batch per step, as many evaluation batches on each rank
    across_samples = False
    not_compiled: tuple[str, ...] = ()  # names of methods that hardware.compile does not compile
    metrics: Mapping[str, Metric] = {}

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses | Tensor, Any]:
        """Returns ({"loss": (B,), term: (B,), ...}, output). "loss" is minimised; a tensor (B,) means {"loss": it}.

        Losses are per sample: the loop takes their mean over the global batch. output: passed to metrics and callbacks.
        Evaluations call this too, without gradients and with other batch sizes.
        """
        raise NotImplementedError

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Returns what predict.py writes: a tensor (B, ...) or {name: tensor}. As it stands the output of `losses`,
        which needs the labels; write it where the model does without."""
        return self.losses(model, batch)[1]

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any] | None:
        """Returns {name: picture, figure, text, table, ...} of the first `count` samples: callback=pictures logs it at
        each evaluation, from rank 0's first batch. None, as it stands: the callback shows images with their classes."""
        return None

    def weights(self, batch: Batch) -> Tensor | None:
        """Returns (B,) weights of the samples in means of losses and metrics, such as token counts; None: all 1."""
        return None

    def attach(self, model: nn.Module) -> None:
        """Called once, on all ranks, after the model is built and before a checkpoint is loaded: freeze parts of the
        model, build modules that depend on it (a teacher)."""

    def initialize(self, model: nn.Module) -> str | None:
        """Called before `attach` in a new run, not at a resume: load other weights. Returns a line to log, if any."""
        return None

    def trained(self, model: nn.Module) -> dict[str, list[nn.Module]]:
        """Returns {objective: modules that it trains}; each has its own optimizer. Most tasks have one, named "". With
        named ones, `losses` is for evaluations, and each minimises <objective>_losses(model, batch)."""
        return {"": [model, self]}

    def train_step(self, step: int, batches: Iterator[Batch], descend: Descend) -> dict[str, Tensor]:
        """One step of the loop: descend(objective, batches) for each objective to update. Returns all their values.

        step: from 0. batches: iterator of this step's micro-batches; to use them for several objectives, list(batches).
        """
        return descend("", batches)

    def updated(self, model: nn.Module) -> None:
        """Called after each optimizer update, under no_grad: update a teacher's EMA, a queue."""


# (objective, micro-batches) -> {name: 0-d tensor}: forward, backward, clip and update, see lab.loop.descend
Descend = Callable[[str, Any], dict[str, Tensor]]
