"""Two views of each sample, for tasks that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lab.transforms.fields import Batch, Transform, compose


class Views:
    """fields: the batch's fields of the two views, which may be one field twice. augment: transforms that change both,
    with independent random numbers, which are a function of (seed, batch["number"])."""

    def __init__(self, fields: Sequence[str], augment: Mapping[str, Transform]) -> None:
        self.fields, self.augment = fields, compose(augment.values(), training=True)

    def __call__(self, batch: Batch, which: int) -> Tensor:
        """which: 0 or 1."""
        changed = self.augment(batch, 2 * batch["number"] + which) if self.augment else batch
        return changed[self.fields[which]]
