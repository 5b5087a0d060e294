"""Recall of a retrieval by embeddings, among all samples of the split (not of a batch)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from samebits.schema import Count
from samebits.world import World, to_cpu


class Recall:
    """recall@k in both directions: the share of samples whose partner is among the k most similar ones of all samples.

    output: (image, text), two embeddings (B, E) of each sample. Ties count as if they were broken at random. Memory:
    `compute` stores the embeddings of the samples of all ranks on each rank.
    """

    higher_is_better = True

    def __init__(self, k: Count) -> None:
        self.k = k
        self.reset()

    def reset(self) -> None:
        """Remove all samples."""
        self.seen: list[Tensor] = []

    def update(self, output: Any, batch: Mapping[str, Tensor]) -> None:
        """Add a batch."""
        self.seen.append(torch.stack([embeddings.detach().float() for embeddings in output], 1))

    def compute(self, world: World) -> dict[str, float]:
        """Return both recalls over all ranks, NaN without samples. All ranks must call it."""
        own = torch.cat(self.seen) if self.seen else torch.zeros(0, 2, 0, device=world.device)
        parts = [part for part in world.all_gather(own) if part.numel()]  # a rank without samples has no width
        if not parts:
            return dict.fromkeys(("image_to_text", "text_to_image"), float("nan"))
        images, texts = torch.cat(parts).unbind(1)
        both = to_cpu(torch.stack([self.recall(images, texts), self.recall(texts, images)]))  # waits once
        return dict(zip(("image_to_text", "text_to_image"), both.tolist()))

    def recall(self, queries: Tensor, targets: Tensor) -> Tensor:
        """Return the share of queries whose own row of `targets` is among the k most similar ones, 0-d. Both (N, E)."""
        hits = []
        for first in range(0, len(queries), 1024):  # not all N x N similarities at once
            similar = queries[first : first + 1024] @ targets.T
            rows = torch.arange(len(similar), device=similar.device)
            partner = similar[rows, first + rows][:, None]
            more, ties = (~(similar <= partner)).sum(1), (similar == partner).sum(1)  # NaN is never a hit
            hits.append(((self.k - more) / ties.clamp(min=1)).clamp(0, 1))
        return torch.cat(hits).mean()
