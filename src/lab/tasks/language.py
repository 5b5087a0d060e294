"""Language modelling with equal weight for each token, whatever the length of its sequence."""

from __future__ import annotations

from torch import Tensor

from lab.tasks.base import Batch
from lab.tasks.supervised import Supervised


class Language(Supervised):
    """Losses and metrics are means over the target tokens (batch["y"] != -100) of all ranks.

    criterion, metrics: as for Supervised, (B,) means over each sample's own tokens, see lab.losses.next_token.
    """

    def weights(self, batch: Batch) -> Tensor:
        return (batch["y"] != -100).sum(1)
