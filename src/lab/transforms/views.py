"""Random views of each sample, for tasks that compare them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from lab.transforms.fields import Batch, Transform, compose, field_of
from samebits.schema import Count


class Views:
    """Return random views of a batch, for tasks.

    fields: batch field of each view; a field may occur several times. augment: transforms that are applied to all
    views, with independent random numbers, which are a function of (seed, batch["sample_id"]). before: number of views
    of the same samples that other Views make before these; after: after these. Their random numbers are independent,
    too.
    """

    def __init__(
        self, fields: Sequence[str], augment: Mapping[str, Transform], before: int = 0, after: int = 0
    ) -> None:
        self.fields, self.augment = fields, compose(augment.values(), training=True)
        self.before, self.count = before, before + len(fields) + after

    def __call__(self, batch: Batch, which: int) -> Tensor:
        """Return view number `which`, from 0."""
        view_ids = self.count * batch["sample_id"] + self.before + which
        changed = self.augment(batch, view_ids) if self.augment else batch
        return changed[self.fields[which]]


class View:
    """A transform that adds a second view of `field` to the batch as the field `to`. It is only used in training.

    augment: transforms of the view, with independent random numbers. which: 1, 2, ...; give each view of a field
    another value, so that their random numbers differ.
    """

    random = True

    def __init__(self, field: str, to: str, augment: Mapping[str, Transform], which: Count) -> None:
        self.field, self.to, self.which = field, to, which
        self.augment = compose(augment.values(), training=True)

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with the view. Raise ConfigError if it lacks the field."""
        view = {self.field: field_of(batch, self.field, "View.field")}
        if self.augment:
            view = self.augment(view, sample_ids + (self.which << 48))
        return {**batch, self.to: view[self.field]}
