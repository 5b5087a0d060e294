"""A recurrent language model (Mikolov et al. 2010) whose state can be carried from one row of tokens to the next."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.schema import Count, Share


class TokenGRU(nn.Module):
    """(B, T) int64 token ids, {"hidden": (B, L, D)} -> ((B, T, V) logits of the next token, new state).

    Gated recurrent units (GRU, Cho et al. 2014); the embedding and the output share their weights. Without a state,
    rows start from the initial state.
    """

    def __init__(
        self, input_shape: Sequence[Count], num_outputs: Count, width: Count, layers: Count, dropout: Share
    ) -> None:
        super().__init__()
        if len(input_shape) != 1:
            raise ConfigError(
                f"model TokenGRU: expected tokens (T,), got samples of shape {list(input_shape)} - use data=tokens"
            )
        self.dropout = dropout
        self.token = nn.Embedding(num_outputs, width)
        nn.init.normal_(self.token.weight, std=width**-0.5)
        self.gru = nn.GRU(width, width, layers, batch_first=True, dropout=dropout if layers > 1 else 0.0)
        self.bias = nn.Parameter(self.token.weight.new_zeros(num_outputs))

    def initial_state(self) -> dict[str, Tensor]:
        """Return the initial state of one row, {"hidden": (L, D)}."""
        weight = self.token.weight  # not weight.new_zeros, which would be sharded with trainer=fsdp
        shape = self.gru.num_layers, self.gru.hidden_size
        return {"hidden": torch.zeros(shape, dtype=weight.dtype, device=weight.device)}

    def forward(self, tokens: Tensor, state: Mapping[str, Tensor] | None = None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the logits and the new state."""
        before = None if state is None else state["hidden"].transpose(0, 1).contiguous()
        x, hidden = self.gru(F.dropout(self.token(tokens), self.dropout, self.training), before)
        logits = F.linear(F.dropout(x, self.dropout, self.training), self.token.weight, self.bias)
        return logits, {"hidden": hidden.transpose(0, 1).clone()}  # clone, because FSDP warns about views
