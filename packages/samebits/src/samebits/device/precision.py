"""hardware.precision=bf16-weights: the model computes with bf16 copies of its weights, which stay fp32 themselves.

    fp32 weights  -- cast -->  bf16 copies  -- forward, under autocast -->  losses (fp32)
    fp32 gradients  <-- cast --  bf16 gradients  <-- backward --

The cast is a part of the autograd graph. So micro-batches are summed, averaged over the ranks, clipped and applied in
fp32; the optimizer, the moving average, checkpoints and evaluations see fp32 weights only, and no update is too small.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.func import functional_call


class WithBf16Weights(nn.Module):
    """Calls `model` with bf16 copies of its parameters of two dimensions or more: matrices, kernels, embeddings.

    Biases and norms stay fp32: they are small, autocast casts them where needed, and BatchNorm's weights must have the
    type of its statistics.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, *args: Any) -> Any:
        large = ((name, p) for name, p in self.model.named_parameters() if p.dim() > 1)
        copies = {name: p.to(torch.bfloat16) for name, p in large if p.dtype == torch.float32}
        return functional_call(self.model, copies, args)
