"""A transformer that encodes a text as one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.models.gpt import Block
from samebits.errors import ConfigError
from samebits.schema import Count, Share


class TextEncoder(nn.Module):
    """(B, T) int64 token ids, (B, T) bool mask -> (B, num_outputs); T <= longest.

    Tokens attend to all tokens of their text. The output is a linear function of the mean over the tokens; tokens whose
    mask is False have no influence on it.
    """

    def __init__(
        self, num_tokens: Count, num_outputs: Count, longest: Count, width: Count, heads: Count, layers: Count,
        dropout: Share,
    ) -> None:  # fmt: skip
        super().__init__()
        if width % heads:
            raise ConfigError(f"TextEncoder: width={width} is not a multiple of heads={heads}")
        self.dropout = dropout
        self.token, self.position = nn.Embedding(num_tokens, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout, causal=False) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width, bias=False), nn.Linear(width, num_outputs, bias=False)
        nn.init.normal_(self.token.weight, std=0.02)
        nn.init.normal_(self.position.weight, std=0.01)
        nn.init.normal_(self.head.weight, std=width**-0.5)

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        """Return the vectors. Raise ConfigError if there are too many tokens."""
        if tokens.shape[1] > self.position.num_embeddings:
            raise ConfigError(
                f"TextEncoder got {tokens.shape[1]} tokens, but has positions for {self.position.num_embeddings}: "
                "increase task.text_encoder.longest, or pack shorter texts (--length)"
            )
        places = torch.arange(tokens.shape[1], device=tokens.device)
        x = F.dropout(self.token(tokens) + self.position(places), self.dropout, self.training)
        seen = (mask | (places == 0))[:, None, None]  # a text without tokens would attend to nothing, which is NaN
        for block in self.blocks:
            x = block(x, seen)
        weights = mask / mask.sum(1, keepdim=True).clamp(min=1)
        return self.head((self.norm(x) * weights[:, :, None]).sum(1))
