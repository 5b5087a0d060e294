"""Cross-entropy of the next token."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.errors import ConfigError


class Unprojected(NamedTuple):
    """What a model returns instead of logits (B, T, V), which are hidden @ weight.T + bias: NextToken computes them in
    chunks and keeps none. For a batch of 8 x 512 tokens of 50,257 that is 0.1 instead of 3 GB.

    On a GPU under bf16 torch's operation returns bf16: losses, and the scale of all gradients, are true to 0.4 %."""

    hidden: Tensor  # (B, T, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)


class NextToken:
    """(output, batch) -> (B,) losses in nats per token: the mean over each sample's own tokens.

    output: (B, T, V) logits, or Unprojected. batch["y"]: (B, T) int64 token ids, -100 for padding. With windows of
    equal length the mean over samples is the mean over tokens; samples of different length count alike here, and
    task=language weights them by their tokens.
    compiled: torch compiles the loss of training, where hardware.compile does not compile all: on a GPU bf16 logits are
    then read as they are, and no copy of them in float32 is written and read, in either pass. The loss is float32's.
    """

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled

    def __call__(self, output: Tensor | Unprojected, batch: Mapping[str, Tensor]) -> Tensor:
        given = output.hidden if isinstance(output, Unprojected) else output
        target = batch.get("y")
        if target is None or given.dim() != 3 or target.shape != given.shape[:2]:
            shape = None if target is None else tuple(target.shape)
            raise ConfigError(
                f"NextToken needs logits (B, T, V) and batch['y'] (B, T), not {tuple(given.shape)} and {shape}: "
                "task=next_token goes with data=tokens, task=language with data=sequences, and both with model=gpt"
            )
        fused = self.compiled and torch.is_grad_enabled()
        losses = (compiled_losses() if fused else token_losses)(output, target.flatten()).view(target.shape)
        return losses.sum(1) / (target != -100).sum(1).clamp(min=1)


def token_losses(output: Tensor | Unprojected, target: Tensor) -> Tensor:
    """output: as above. target: (B * T,) -> (B * T,) losses in float32; 0 where the target is -100."""
    if isinstance(output, Unprojected):
        hidden, weight, bias = output
        # torch 2.13 has it; on meta FLOP are counted, and torch's counter sees only two of its three products
        if hasattr(F, "linear_cross_entropy") and not hidden.is_meta:
            kind = hidden.device.type
            # the operation does not know autocast; a CPU multiplies bf16 matrices in it ten times slower than fp32 ones
            half = kind == "cuda" and torch.is_autocast_enabled(kind)
            dtype = torch.get_autocast_dtype(kind) if half else torch.float32
            with torch.autocast(kind, enabled=False):
                return F.linear_cross_entropy(
                    hidden.flatten(0, 1).to(dtype), weight.to(dtype), target, linear_bias=bias, reduction="none",
                    options=nn.LinearCrossEntropyOptions(),
                ).float()  # fmt: skip
        output = F.linear(hidden, weight, bias)
    # (B * T, V), a view; transposed to (B, V, T) this is slower. CUDA reads fp16 and writes float32 in one kernel if it
    # is told the type; bf16 it copies first, 3 GB for 16 x 1024 tokens of 50,304. F.cross_entropy of bf16 logits is
    # faster on CUDA, but rounds each log-probability to bf16, and so the gradient: at -10 it is wrong by 3 %
    wide = torch.promote_types(output.dtype, torch.float32)
    logs = F.log_softmax(output.flatten(0, 1), 1, dtype=wide)
    return F.nll_loss(logs, target, reduction="none", ignore_index=-100)


@cache
def compiled_losses() -> Callable[[Tensor | Unprojected, Tensor], Tensor]:
    """Not kept in the criterion, of which copies are made."""
    return torch.compile(token_losses)
