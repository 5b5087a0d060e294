"""CLIP (Radford et al. 2021): image and text encoders that give an image and its text similar embeddings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.base import Batch, Metric
from lab.tasks.infonce import InfoNCE
from samebits.errors import ConfigError
from samebits.schema import Positive


class CLIP(InfoNCE):
    """model: batch[image] -> (B, E). text_encoder: token ids (B, T) int64 and mask (B, T) bool, True for the tokens of
    a text -> (B, E).

    image, text: names of batch fields. Texts of different length are padded on the right, and batch["<text>_length"]
    (B,) is their length; without this field all tokens count. Metrics are called with the embeddings (image, text), of
    length 1. Loss, temperature and micro-batches: see InfoNCE.
    """

    uses_rng = False  # no random numbers outside of the losses

    def __init__(
        self, text_encoder: nn.Module, temperature: Positive, image: str, text: str, metrics: Mapping[str, Metric]
    ) -> None:
        super().__init__(temperature)
        self.text_encoder, self.image, self.text, self.metrics = text_encoder, image, text, metrics

    def pairs(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor, Any]:
        """Return the embeddings of images and texts."""
        images, texts = model(batch[self.image]), self.encoded(batch)
        return images, texts, (unit(images), unit(texts))

    def encoded(self, batch: Batch) -> Tensor:
        """Return the text encoder's output, (B, E). Raise ConfigError if there are no token ids."""
        tokens, lengths = batch.get(self.text), batch.get(f"{self.text}_length")
        if not isinstance(tokens, Tensor) or tokens.dim() != 2 or tokens.is_floating_point():
            have = {name: tuple(value.shape) for name, value in batch.items() if isinstance(value, Tensor)}
            raise ConfigError(
                f"task.text={self.text}: must be a field of token ids, integers (B, T); the batch has {have} - "
                "use data=captions, or name the field in data.fields"
            )
        places = torch.arange(tokens.shape[1], device=tokens.device).expand(len(tokens), -1)
        mask = torch.ones_like(places, dtype=torch.bool) if lengths is None else places < lengths[:, None]
        return self.text_encoder(tokens.long(), mask)

    def predict(self, model: nn.Module, batch: Batch) -> dict[str, Tensor]:
        """Return the embeddings, of length 1: "image", and "text" if the batch has texts."""
        embeddings = {"image": unit(model(batch[self.image]))}
        return embeddings | ({"text": unit(self.encoded(batch))} if self.text in batch else {})

    def show(self, output: Any, batch: Batch, count: int) -> Mapping[str, Any]:
        """Return the similarities of the first images (rows) with their texts (columns) as a picture, white: 1."""
        similar = output[0][:count] @ output[1][:count].T
        return {"similarity": similar.clamp(0, 1)}


def unit(embeddings: Tensor) -> Tensor:
    """Return the rows with length 1, in fp32."""
    return F.normalize(embeddings.float(), dim=1)
