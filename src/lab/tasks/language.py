"""Language modelling in which each token counts alike, however long the sequence it stands in."""

from __future__ import annotations

from torch import Tensor

from lab.tasks.base import Batch
from lab.tasks.supervised import Supervised


class Language(Supervised):
    """Losses and metrics are means over the tokens to be predicted, batch["y"] != -100, of all ranks together.

    criterion, metrics: as Supervised's; each gives a sample the mean over its own tokens, see lab.losses.next_token.
    """

    def weights(self, batch: Batch) -> Tensor:
        return (batch["y"] != -100).sum(1)
