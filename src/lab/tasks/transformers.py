"""Models of Hugging Face's transformers: their arguments and outputs. docs/hugging_face.md"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from lab.tasks.base import Batch
from lab.tasks.supervised import Supervised


class Transformers(Supervised):
    """batch["x"]: (B, L) token ids, padded on the right where there is "x_length", (B,). The criterion and the metrics
    are given the model's logits: (B, C) with "y" (B,), or (B, L, V) with "y" (B, L), -100 where there is no target.

    Where "y" is (B, L), samples are weighted by their targets, as in task=language.
    """

    def predict(self, model: nn.Module, batch: Batch) -> Tensor:
        ids, lengths = batch["x"].long(), batch.get("x_length")
        mask = None
        if lengths is not None:
            mask = (torch.arange(ids.shape[1], device=ids.device) < lengths[:, None]).long()
        return model(input_ids=ids, attention_mask=mask).logits

    def weights(self, batch: Batch) -> Tensor | None:
        return (batch["y"] != -100).sum(1) if batch["y"].dim() == 2 else None
