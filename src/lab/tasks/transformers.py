"""Supervised training of models of Hugging Face's transformers; see docs/hugging_face.md."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.tasks.base import Batch
from lab.tasks.supervised import Supervised


class Transformers(Supervised):
    """batch["x"]: (B, L) token ids, padded on the right if the batch has the lengths of texts, "x_length" (B,).

    The criterion and the metrics are called with the model's logits: (B, C) with labels "y" (B,), or (B, L, V) with
    labels "y" (B, L) that are -100 at positions without a target. If "y" is (B, L), samples are weighted by their
    number of targets.
    """

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        """Return the logits."""
        ids, lengths = batch["x"].long(), batch.get("x_length")
        mask = None
        if lengths is not None:
            mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        return model(input_ids=ids, attention_mask=mask).logits

    def sample_weights(self, batch: Batch) -> Tensor | None:
        """Return the number of targets of each sample, (B,); None if each sample has one label."""
        return (batch["y"] != -100).sum(1) if batch["y"].dim() == 2 else None
