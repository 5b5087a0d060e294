"""Language modeling in which all tokens have equal weight, also in sequences of different length."""

from __future__ import annotations

from torch import Tensor

from lab.tasks.base import Batch
from lab.tasks.supervised import Supervised


class Language(Supervised):
    """Losses and metrics are means over the target tokens (batch["y"] != -100) of all ranks.

    criterion, metrics: as in Supervised; they return the means over each sample's tokens, (B,), as
    lab.losses.next_token.
    """

    def sample_weights(self, batch: Batch) -> Tensor:
        """Return the number of target tokens of each sample, (B,)."""
        return (batch["y"] != -100).sum(1)
