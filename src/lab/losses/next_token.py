"""Cross-entropy of the next token."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor
from torch.nn import functional as F

from engine.errors import ConfigError


class NextToken:
    """(output, batch) -> (B,) losses in nats per token: the mean over each sample's own tokens.

    output: (B, T, V) logits. batch["y"]: (B, T) int64 token ids, -100 for padding. With windows of equal length the
    mean over samples is the mean over tokens; samples of different length count alike here, and task=language weights
    them by their tokens.
    """

    def __call__(self, output: Tensor, batch: Mapping[str, Tensor]) -> Tensor:
        target = batch.get("y")
        if target is None or output.dim() != 3 or target.shape != output.shape[:2]:
            found = None if target is None else tuple(target.shape)
            raise ConfigError(
                f"NextToken needs logits (B, T, V) and batch['y'] (B, T), not {tuple(output.shape)} and {found}: "
                "task=next_token goes with data=tokens, task=language with data=sequences, and both with model=gpt"
            )
        # (B * T, V), a view; transposed to (B, V, T), cross_entropy is slower
        logits = output.float().flatten(0, 1)
        losses = F.cross_entropy(logits, target.flatten(), reduction="none", ignore_index=-100).view(target.shape)
        return losses.sum(1) / (target != -100).sum(1).clamp(min=1)
