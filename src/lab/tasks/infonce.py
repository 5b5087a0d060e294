"""InfoNCE (van den Oord et al. 2018): identify each sample's partner among the partners of the whole global batch.

contrastive.py compares two views of each sample, clip.py an image and its text.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Losses, OptimizerStep, Task
from samebits.errors import ConfigError
from samebits.schema import Positive
from samebits.world import gather_rows

COMPUTED = "InfoNCE."  # prefix of the batch fields that train_step adds for its second pass over the micro-batches


class InfoNCE(Task):
    """The base class of tasks with this loss. A subclass defines `pairs`, which returns two embeddings of each sample.

    The loss is the cross-entropy of identifying a sample's other embedding among those of all samples of all ranks,
    averaged over both directions. The temperature starts at `temperature`, is learned, and stays above 0.01, as in CLIP
    (Radford et al. 2021). With several micro-batches a step computes the embeddings twice (GradCache, Gao et al. 2021),
    with the same result as with one. The scores of an evaluation depend on how many samples all ranks evaluate at once:
    hardware.eval_batch_size.
    """

    loss_names = ("top1", "temperature")
    needs_sample_ids = needs_global_batch = allows_micro_batches = True
    uses_rng = False  # no random numbers outside of the losses
    not_compiled = ("gathered",)

    def __init__(self, temperature: Positive) -> None:
        super().__init__()
        self.log_scale = nn.Parameter(torch.tensor(-math.log(temperature)))

    def pairs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Any]:
        """Return two embeddings of each sample, (B, E) each, and the output for metrics."""
        raise NotImplementedError

    def losses(self, model: nn.Module, batch: Batch) -> tuple[Losses, Any]:
        """Return the loss, "top1" (1 if the partner is found, (B,)) and the temperature."""
        rows, output = self.rows(model, batch)
        if f"{COMPUTED}gradient" not in batch:
            return self.losses_of_rows(rows, batch["sample_id"]), output
        computed = {name: batch[COMPUTED + name] for name in ("loss", *self.loss_names)}
        linear = (rows * batch[f"{COMPUTED}gradient"]).sum(1)
        # the value of the loss, with the gradient that train_step has computed
        return computed | {"loss": computed["loss"] + (linear - linear.detach())}, output

    def train_step(self, step: int, batches: Iterator[Batch], optimizer_step: OptimizerStep) -> dict[str, Tensor]:
        """Compute the gradients of all embeddings of the step first, if it has several micro-batches."""
        micro_batches = list(batches)
        if len(micro_batches) == 1:
            return optimizer_step("", micro_batches)
        outputs = optimizer_step.outputs(lambda batch: self.rows(optimizer_step.model, batch)[0], micro_batches)
        rows, ids = torch.cat(outputs).requires_grad_(), torch.cat([batch["sample_id"] for batch in micro_batches])
        with torch.enable_grad():
            losses = self.losses_of_rows(rows, ids)
            (gradient,) = torch.autograd.grad((losses["loss"] * (ids >= 0)).sum(), rows)
        sizes = [len(output) for output in outputs]
        values = {name: value.detach().split(sizes) for name, value in (losses | {"gradient": gradient}).items()}
        added = [{COMPUTED + name: parts[k] for name, parts in values.items()} for k in range(len(sizes))]
        return optimizer_step("", [batch | fields for batch, fields in zip(micro_batches, added)])

    def rows(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Any]:
        """Return both embeddings with length 1 and the logarithm of the scale in one tensor, (B, 2 * E + 1), and the
        output. The scale is in each row, so that the gradient of the rows contains its gradient too."""
        first, second, output = self.pairs(model, batch)
        if first.shape != second.shape:
            raise ConfigError(
                f"task: {type(self).__name__} cannot compare embeddings of shapes {tuple(first.shape)} and "
                f"{tuple(second.shape)}: both encoders need the same num_outputs"
            )
        unit = [F.normalize(embeddings.float(), dim=1) for embeddings in (first, second)]
        return torch.cat([*unit, self.log_scale.expand(len(first), 1)], 1), output

    def losses_of_rows(self, rows: Tensor, sample_ids: Tensor) -> dict[str, Tensor]:
        """Return the losses of this rank's rows, (B,) each."""
        counts = (sample_ids >= 0).float()[:, None]  # padding is not a negative
        size = rows.shape[1] // 2
        gathered, begin = self.gathered(torch.cat([rows[:, : 2 * size], counts], 1))
        all_first, all_second, counts = gathered.split([size, size, 1], 1)
        (first, second), scale = rows[:, : 2 * size].split(size, 1), rows[:, 2 * size :].exp()
        target = begin + torch.arange(len(rows), device=rows.device)
        # a padding row keeps its own partner, so that its loss is finite: 0 * inf in the mean would be NaN
        absent = (counts.T == 0).expand(len(rows), -1).scatter(1, target[:, None], False)
        with torch.autocast(rows.device.type, enabled=False):  # values up to 100 would have two digits in bf16
            pairs = [(first, all_second), (second, all_first)]
            logits = [(scale * own @ others.T).masked_fill(absent, -torch.inf) for own, others in pairs]
            losses = torch.stack([F.cross_entropy(x, target, reduction="none") for x in logits]).mean(0)
        hits = torch.stack([x.argmax(1) == target for x in logits]).float().mean(0)
        return {"loss": losses, "top1": hits, "temperature": (1 / scale[:, 0]).detach()}

    def on_step_end(self, model: nn.Module) -> None:
        """Limit the scale to 100, i.e. the temperature to 0.01."""
        self.log_scale.clamp_(max=math.log(100))

    def gathered(self, local: Tensor) -> tuple[Tensor, int]:
        """Return the rows of all ranks, and the index of this rank's first row in them."""
        return gather_rows(local)
