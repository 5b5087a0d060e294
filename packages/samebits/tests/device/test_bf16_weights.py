"""bf16 copies of weights."""

from __future__ import annotations

import torch
from torch import nn

from samebits.device import WithBf16Weights


class Spy(nn.Module):
    """Embedding, BatchNorm, Linear: records the types that it computes with."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.norm, self.head = nn.Embedding(5, 8), nn.BatchNorm1d(8), nn.Linear(8, 5)
        self.seen: list[torch.dtype] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.embed(x)
        self.seen += [h.dtype, self.head.weight.dtype, self.head.bias.dtype, self.norm.weight.dtype]
        return self.head(self.norm(h))


def test_copies_are_bf16_and_gradients_fp32() -> None:
    model = Spy()
    net = WithBf16Weights(model)
    with torch.autocast("cpu", torch.bfloat16):
        output = net(torch.arange(5))
    assert model.seen == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32]
    output.float().square().sum().backward()
    assert {p.dtype for p in model.parameters()} == {torch.float32}
    assert all(p.grad is not None and p.grad.dtype == torch.float32 for p in model.parameters())
