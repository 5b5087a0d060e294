"""A recurrent language model (Mikolov et al. 2010), whose state may go on from one row of tokens to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.schema import Count, Share


class TokenGRU(nn.Module):
    """(B, T) int64 token ids, {"hidden": (B, L, D)} -> ((B, T, V) logits of the next token, the state behind them).

    Gated recurrent units (Cho et al. 2014); the embedding's weights are the output's. Without a state rows begin anew.
    """

    def __init__(
        self, input_shape: Sequence[Count], num_outputs: Count, width: Count, layers: Count, dropout: Share
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"model TokenGRU reads tokens, (T,), not samples of shape {list(input_shape)}: data=tokens"
            )
        self.dropout = dropout
        self.token = nn.Embedding(num_outputs, width)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        self.gru = nn.GRU(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.bias = nn.Parameter(self.token.weight.new_zeros(num_outputs))

    def initial_state(self) -> dict[str, Tensor]:
        """Of one row: (L, D)."""
        weight = self.token.weight  # not weight.new_zeros: with trainer=fsdp that would be a part, too
        shape = self.gru.num_layers, self.gru.hidden_size
        return {"hidden": torch.zeros(shape, dtype=weight.dtype, device=weight.device)}

    def forward(self, tokens: Tensor, state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        before = None if state is None else state["hidden"].transpose(0, 1).contiguous()
        x, hidden = self.gru(F.dropout(self.token(tokens), self.dropout, self.training), before)
        logits = F.linear(F.dropout(x, self.dropout, self.training), self.token.weight, self.bias)
        return logits, {"hidden": hidden.transpose(0, 1).clone()}  # FSDP warns of views
