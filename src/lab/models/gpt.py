"""A small decoder-only transformer (GPT-2, Radford et al. 2019: pre-norm, tied embeddings)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from lab.losses.next_token import Unprojected
from samebits.errors import ConfigError
from samebits.schema import Count, NotNegativeInt, Share


class Block(nn.Module):
    """(B, T, D) -> (B, T, D): self-attention, then a two-layer MLP, each with a residual connection.

    seen: (B, 1, T, T) bool attention mask; None: each token attends to itself and all tokens before it, or to all
    tokens if `causal` is False.
    """

    def __init__(self, width: int, heads: int, dropout: float, causal: bool = True) -> None:
        super().__init__()
        self.heads, self.dropout, self.causal = heads, dropout, causal
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the block's output, (B, T, D)."""
        size, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).split(width, 2)  # split, because its backward is a single copy
        query, key, value = (part.view(size, length, self.heads, -1).transpose(1, 2) for part in parts)
        dropout = self.dropout if self.training else 0.0
        causal = self.causal and seen is None
        mixed = F.scaled_dot_product_attention(query, key, value, seen, dropout, is_causal=causal)
        mixed = self.out(mixed.transpose(1, 2).reshape(size, length, width))
        x = x + F.dropout(mixed, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class GPT(nn.Module):
    """(B, T) int64 token ids -> (B, T, V) logits of the next token; T <= input_shape[0].

    V: num_outputs rounded up to a multiple of vocab_multiple, because tensor cores are faster with aligned rows; the
    logits of the added tokens are -inf. chunked_logits: in training, return lab.losses.next_token.Unprojected, so that
    the loss never stores all logits.

    separator: id of the token at the start of each document (GPT-2: 50256), for windows that contain several documents.
    Attention does not cross it and positions restart at 0, so documents do not influence each other (Krell et
    al. 2021, "Efficient Sequence Packing without Cross-contamination"). None: a window is one text.
    """

    def __init__(
        self,
        input_shape: Sequence[Count],
        num_outputs: Count,
        width: Count,
        heads: Count,
        layers: Count,
        dropout: Share,
        vocab_multiple: Count = 1,
        chunked_logits: bool = False,
        separator: NotNegativeInt | None = None,
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"model GPT: expected tokens (T,), got samples of shape {list(input_shape)} - use data=tokens "
                "or sequences"
            )
        if width % heads:
            raise ConfigError(f"model.width={width} is not a multiple of model.heads={heads}")
        if separator is not None and separator >= num_outputs:
            raise ConfigError(f"model.separator={separator}: must be a token id, 0 to {num_outputs - 1}")
        self.dropout, self.num_tokens, self.chunked_logits = dropout, num_outputs, chunked_logits
        self.separator = separator
        rows = -(-num_outputs // vocab_multiple) * vocab_multiple
        self.token, self.position = nn.Embedding(rows, width), nn.Embedding(input_shape[0], width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:  # GPT-2: residual projections are scaled by 1 / sqrt(2 * layers) to keep the variance
                last = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor | Unprojected:
        """Return the logits or Unprojected. Raise ConfigError if there are too many tokens."""
        if tokens.shape[1] > self.position.num_embeddings:
            raise ConfigError(
                f"GPT got {tokens.shape[1]} tokens, but has positions for {self.position.num_embeddings}: increase "
                "data.window, or with data=sequences data.input_shape"
            )
        places, seen = torch.arange(tokens.shape[1], device=tokens.device), None
        if self.separator is not None:
            places, seen = documents(tokens == self.separator)
        x = F.dropout(self.token(tokens) + self.position(places), self.dropout, self.training)
        for block in self.blocks:
            x = block(x, seen)
        x, weight = self.norm(x), self.token.weight
        bias = None
        if len(weight) > self.num_tokens:  # as a bias, because masking or slicing would copy all logits
            bias = torch.zeros(len(weight), device=x.device)
            bias[self.num_tokens :] = -math.inf
        if self.chunked_logits and self.training:
            return Unprojected(x, weight.view_as(weight), bias)  # a view, because FSDP registers hooks on its outputs
        return F.linear(x, weight, bias)


def documents(begins: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position of each token in its document, (B, T) int64, and the attention mask, (B, 1, T, T) bool: each
    token attends to itself and the tokens before it in its document. begins: (B, T) bool, True at the first token of a
    document."""
    places = torch.arange(begins.shape[1], device=begins.device)
    first = (begins * places).cummax(1).values
    # tokens before the first separator belong to a document that starts in an earlier window
    seen = (places <= places[:, None]) & (places >= first[:, :, None])
    return places - first, seen.unsqueeze(1)
