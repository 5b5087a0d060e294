"""Several views of each sample, for tasks that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lab.transforms.fields import Batch, Transform, compose
from samebits.errors import ConfigError
from samebits.schema import Count


class Views:
    """fields: the batch's field of each view, which may be one field several times. augment: transforms that change
    all, with independent random numbers, which are a function of (seed, batch["sample_id"])."""

    def __init__(self, fields: Sequence[str], augment: Mapping[str, Transform]) -> None:
        self.fields, self.augment = fields, compose(augment.values(), training=True)

    def __call__(self, batch: Batch, which: int) -> Tensor:
        """which: from 0."""
        changed = self.augment(batch, len(self.fields) * batch["sample_id"] + which) if self.augment else batch
        return changed[self.fields[which]]


class View:
    """A second view of `field` as the field `to`: changed by augment's transforms, with random numbers of its own. Of
    training alone, as they are. which: 1, 2, ...: two views of one field have different numbers."""

    random = True

    def __init__(self, field: str, to: str, augment: Mapping[str, Transform], which: Count) -> None:
        self.field, self.to, self.which = field, to, which
        self.augment = compose(augment.values(), training=True)

    def __call__(self, batch: Batch, numbers: Tensor) -> Batch:
        if self.field not in batch:
            raise ConfigError(f"data.transforms: View.field={self.field!r}; the batch has {sorted(batch)}")
        one = {self.field: batch[self.field]}
        changed = self.augment(one, numbers + (self.which << 48)) if self.augment else one
        return {**batch, self.to: changed[self.field]}
