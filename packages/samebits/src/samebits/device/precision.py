"""Train with hardware.precision=bf16-weights: the model computes with bf16 copies of its weights, which stay in fp32.

    fp32 weights  -- cast -->  bf16 copies  -- forward, under autocast -->  losses (fp32)
    fp32 gradients  <-- cast --  bf16 gradients  <-- backward --

The cast is part of the autograd graph. Therefore gradients of micro-batches are summed, averaged over the ranks,
clipped and applied in fp32; the optimizer, the weight average, checkpoints and evaluations use only fp32 weights, and
small updates are not lost.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call


class WithBf16Weights(nn.Module):
    """Call `model` with bf16 copies of its parameters of two or more dimensions: matrices, kernels, embeddings.

    Biases and norms stay in fp32: they are small, autocast casts them if needed, and BatchNorm's weights must have the
    dtype of its statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        """Call the model with the copies."""
        large = ((name, p) for name, p in self.model.named_parameters() if p.dim() > 1)
        copies = {name: p.to(torch.bfloat16) for name, p in large if p.dtype == torch.float32}
        return functional_call(self.model, copies, args)
