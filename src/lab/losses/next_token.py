"""Cross-entropy of the next token, the loss of a language model."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from samebits.errors import ConfigError

PIECES = 16  # number of pieces in which logits are computed


class Unprojected(NamedTuple):
    """A model's output in place of the logits (B, T, V) = hidden @ weight.T + bias.

    NextToken computes the logits in PIECES pieces, frees them, and recomputes each piece in the backward pass. This
    needs a fraction of the memory and about the same time.
    """

    hidden: Tensor  # (B, T, D)
    weight: Tensor  # (V, D)
    bias: Tensor | None  # (V,)


class NextToken:
    """(output, batch) -> (B,): losses in nats per token, the mean over each sample's tokens.

    output: (B, T, V) logits, or Unprojected. batch["y"]: (B, T) integer token ids, -100 for padding. Samples have equal
    weight here, also if their lengths differ; task=language weights them by their number of tokens.

    compiled: compile the training loss, also if hardware.compile is false. On a GPU this avoids a float32 copy of bf16
    logits in both passes; the loss is computed in float32 in any case.
    """

    def __init__(self, compiled: bool = False) -> None:
        self.compiled = compiled

    def __call__(self, output: Tensor | Unprojected, batch: Mapping[str, Tensor]) -> Tensor:
        """Return the losses, (B,). Raise ConfigError if the shapes do not fit."""
        inputs = output.hidden if isinstance(output, Unprojected) else output
        target = batch.get("y")
        if target is None or target.is_floating_point() or inputs.dim() != 3 or target.shape != inputs.shape[:2]:
            found = None if target is None else f"{target.dtype} of shape {tuple(target.shape)}"
            raise ConfigError(
                f"NextToken: expected logits (B, T, V) and integers batch['y'] (B, T), got {tuple(inputs.shape)} and "
                f"{found}: use task=next_token with data=tokens, task=language with data=sequences, with model=gpt"
            )
        fused = self.compiled and torch.is_grad_enabled()
        losses = (compiled_losses() if fused else token_losses)(output, target.long().flatten()).view(target.shape)
        return losses.sum(1) / (target != -100).sum(1).clamp(min=1)


def token_losses(output: Tensor | Unprojected, target: Tensor) -> Tensor:
    """Return the losses in float32, (B * T,); 0 if the target is -100. output: as in NextToken. target: (B * T,)."""
    if not isinstance(output, Unprojected):
        return _losses_of_rows(output.flatten(0, 1), target)
    rows, weight, bias = output.hidden.flatten(0, 1), output.weight, output.bias
    if rows.is_meta:  # FLOP are counted on the meta device, and recomputation does not count
        return _losses_of_rows(F.linear(rows, weight, bias), target)
    kind = rows.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else weight.dtype
    with torch.autocast(kind, enabled=False):
        return _InPieces.apply(rows.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype), target)


class _InPieces(torch.autograd.Function):
    """hidden (N, D), weight (V, D), bias (V,) or None, target (N,) -> losses (N,). The gradient of a loss with respect
    to its logits is softmax - one_hot(target). Both passes keep the logits of only one piece in memory."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, bias: Tensor | None, target: Tensor) -> Tensor:
        ctx.save_for_backward(hidden, weight, bias, target)
        return torch.cat([_losses_of_rows(F.linear(h, weight, bias), t) for h, t in _in_pieces(hidden, target)])

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph=True: the in-place operations below have no gradient
            raise ConfigError(
                "model.chunked_logits=true: has no second derivative (create_graph=True) - set it to false"
            )
        hidden, weight, bias, target = ctx.saved_tensors
        of_hidden, of_weight = [], torch.zeros_like(weight, dtype=grad.dtype)
        of_bias = torch.zeros_like(bias, dtype=grad.dtype) if ctx.needs_input_grad[2] else None
        for h, t, g in _in_pieces(hidden, target, grad):
            wanted = t.clamp(min=0)[:, None]  # rows of -100 are set to 0 below
            by_logits = F.softmax(F.linear(h, weight, bias), 1, dtype=grad.dtype)
            by_logits.scatter_(1, wanted, by_logits.gather(1, wanted) - 1).mul_((g * (t != -100))[:, None])
            if of_bias is not None:
                of_bias += by_logits.sum(0)
            by_logits = by_logits.to(weight.dtype)
            of_hidden.append(by_logits @ weight)
            of_weight += by_logits.T @ h
        of_bias = None if of_bias is None else of_bias.to(bias.dtype)
        return torch.cat(of_hidden), of_weight.to(weight.dtype), of_bias, None


def _in_pieces(*tensors: Tensor) -> Iterable[tuple[Tensor, ...]]:
    size = -(-len(tensors[0]) // PIECES)
    return zip(*(tensor.split(size) for tensor in tensors))


def _losses_of_rows(logits: Tensor, target: Tensor) -> Tensor:
    """Return the losses (N,). logits: (N, V); target: (N,)."""
    # (B * T, V) is a view, and faster than (B, V, T). With `dtype`, CUDA reads fp16 and writes float32 in one kernel,
    # but copies bf16 first (3 GB for 16 x 1024 tokens of 50,304). F.cross_entropy of bf16 logits is faster on CUDA, but
    # it rounds each log-probability to bf16, and with it the gradient: at -10 the error is 3 %
    wide = torch.promote_types(logits.dtype, torch.float32)
    return F.nll_loss(F.log_softmax(logits, 1, dtype=wide), target, reduction="none", ignore_index=-100)


@cache
def compiled_losses() -> Callable[[Tensor | Unprojected, Tensor], Tensor]:
    """Return token_losses, compiled. It is cached here, because criterions are copied."""
    return torch.compile(token_losses)
