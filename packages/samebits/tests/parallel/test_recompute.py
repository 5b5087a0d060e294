"""hardware.activation_checkpointing recomputes what it does not keep, to the same bits."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

from samebits.parallel.blocks import _policy, checkpoint_activations, find_blocks


class Attention(nn.Module):
    """(B, T, 8) -> (B, T, 8). What it draws comes behind the attention, too."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.inner, self.outer, self.dropout = nn.Linear(8, 24), nn.Linear(8, 8), dropout

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.inner(x).unflatten(2, (3, 2, 4)).permute(2, 0, 3, 1, 4)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed = F.gelu(self.outer(mixed.transpose(1, 2).flatten(2)))
        return x + F.dropout(mixed, self.dropout, self.training)


class Convolution(nn.Module):
    """(B, 8, T) -> (B, 8, T), with running statistics."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.conv, self.norm, self.dropout = nn.Conv1d(8, 8, 3, padding=1), nn.BatchNorm1d(8), nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.dropout(F.gelu(self.norm(self.conv(x))))


class Net(nn.Module):
    def __init__(self, block: Callable[[float], nn.Module], dropout: float) -> None:
        super().__init__()
        self.blocks = nn.Sequential(*(block(dropout) for _ in range(3)))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(x)


def net(block: Any, dropout: float, keeps: str | None) -> Net:
    torch.manual_seed(0)
    model = Net(block, dropout)
    if keeps is not None:
        checkpoint_activations(find_blocks(model, "auto", "key").values(), compiled=False, keeps=keeps)
    return model


def trained(block: Any, dropout: float, keeps: str | None) -> tuple[dict[str, Tensor], int, int]:
    """(weights and buffers after three steps, floating-point operations of them, numbers kept for the backward)."""
    model, kept = net(block, dropout, keeps), []

    def pack(value: Tensor) -> Tensor:
        kept.append(value.numel())
        return value

    torch.manual_seed(1)
    with FlopCounterMode(display=False) as flops:
        for _ in range(3):
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda value: value):
                loss = model(torch.randn(4, 8, 8)).square().mean()
            loss.backward()
            with torch.no_grad():
                for p in model.parameters():
                    assert p.grad is not None
                    p -= 0.1 * p.grad
                    p.grad = None
    return model.state_dict(), flops.get_total_flops(), sum(kept)


@pytest.mark.one_quick
@pytest.mark.parametrize("dropout", [0.0, 0.3])
@pytest.mark.parametrize("block", [Attention, Convolution])
def test_same_bits_with_any_keeping(block: Any, dropout: float) -> None:
    """And only keeps=inputs computes matrix products again. Less is kept."""
    expected, operations, numbers = trained(block, dropout, None)
    for keeps, more in (("inputs", True), ("matmuls", False)):
        state, counted, kept = trained(block, dropout, keeps)
        assert kept < numbers / 3, keeps
        for name, value in expected.items():
            assert torch.equal(value, state[name]), (keeps, name)
        assert (counted > operations) is more, keeps


def test_a_block_may_begin_to_draw_later() -> None:
    """As where dropout begins with a later step."""
    gradients = []
    for keeps in (None, "inputs"):
        model, x = net(Attention, 0.0, keeps), torch.ones(2, 8, 8)
        model(x)
        model.blocks[1].dropout = 0.3
        torch.manual_seed(1)
        model(x).square().mean().backward()
        gradients.append([p.grad for p in model.parameters()])
    for expected, found in zip(*gradients):
        assert torch.equal(expected, found)


def test_attention_with_dropout_is_not_kept() -> None:
    """Left out of the recomputation it would draw nothing, and what comes behind it other numbers."""
    from torch.utils.checkpoint import CheckpointPolicy

    x = torch.randn(1, 2, 4, 8)
    aten: Any = torch.ops.aten
    for operation, before in (
        (aten._scaled_dot_product_flash_attention.default, (x, x, x)),
        (aten._scaled_dot_product_efficient_attention.default, (x, x, x, None, True)),
        (aten._scaled_dot_product_cudnn_attention.default, (x, x, x, None, True)),
        (aten._scaled_dot_product_flash_attention_for_cpu.default, (x, x, x)),
    ):
        for dropout, kept in ((0.0, "MUST_SAVE"), (0.1, "PREFER_RECOMPUTE")):
            assert _policy(None, operation, *before, dropout, True) is CheckpointPolicy[kept]
        assert _policy(None, operation, *before) is CheckpointPolicy.MUST_SAVE
