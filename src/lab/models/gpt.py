"""A small decoder-only transformer (Radford et al. 2019, GPT-2: pre-norm, tied embeddings)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from engine.errors import ConfigError
from engine.schema import Count, Share
from lab.losses.next_token import Unprojected


class Block(nn.Module):
    """(B, T, D) -> (B, T, D): causal self-attention, then a two-layer network, each added to its input."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm_attention, self.norm_mlp = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width, bias=False), nn.GELU(), nn.Linear(4 * width, width, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        parts = self.qkv(self.norm_attention(x)).split(width, 2)  # whose gradients are joined in one copy
        query, key, value = (one.view(size, length, self.heads, -1).transpose(1, 2) for one in parts)
        dropout = self.dropout if self.training else 0.0
        mixed = F.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)
        mixed = self.out(mixed.transpose(1, 2).reshape(size, length, width))
        x = x + F.dropout(mixed, self.dropout, self.training)
        return x + F.dropout(self.mlp(self.norm_mlp(x)), self.dropout, self.training)


class GPT(nn.Module):
    """(B, T) int64 token ids -> (B, T, V) logits of the next token; T up to input_shape[0].

    V: num_outputs rounded up to a multiple of vocab_multiple, as tensor cores want rows of aligned length; logits of
    the added tokens are -inf. chunked_logits: in training return lab.losses.next_token.Unprojected instead, from which
    the loss is computed without ever holding all logits (torch 2.13).
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
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"model GPT reads tokens, (T,), not samples of shape {list(input_shape)}: data=tokens or sequences"
            )
        if width % heads:
            raise ConfigError(f"model.width={width} is not a multiple of model.heads={heads}")
        self.dropout, self.num_tokens, self.chunked_logits = dropout, num_outputs, chunked_logits
        rows = -(-num_outputs // vocab_multiple) * vocab_multiple
        self.token, self.position = nn.Embedding(rows, width), nn.Embedding(input_shape[0], width)
        self.blocks = nn.Sequential(*(Block(width, heads, dropout) for _ in range(layers)))
        self.norm = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:  # GPT-2: residual projections are scaled by 1 / sqrt(2 * layers) to keep the variance
                last = name.endswith(("out.weight", "mlp.2.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, tokens: Tensor) -> Tensor | Unprojected:
        if tokens.shape[1] > self.position.num_embeddings:
            raise ConfigError(
                f"GPT got {tokens.shape[1]} tokens and has positions for {self.position.num_embeddings}: raise "
                "data.window, or for data=sequences data.input_shape"
            )
        x = self.token(tokens) + self.position(torch.arange(tokens.shape[1], device=tokens.device))
        x = self.blocks(F.dropout(x, self.dropout, self.training))
        x, weight = self.norm(x), self.token.weight
        bias = None
        if len(weight) > self.num_tokens:  # as a bias: masking or slicing logits would read and write them once more
            bias = torch.zeros(len(weight), device=x.device)
            bias[self.num_tokens :] = -math.inf
        if self.chunked_logits and self.training:
            return Unprojected(x, weight.view_as(weight), bias)  # a view: FSDP puts hooks on what it is given
        return F.linear(x, weight, bias)
