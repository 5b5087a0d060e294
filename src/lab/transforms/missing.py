"""Fill missing values of tables, and mark them by new columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.transforms.fields import Batch, OnDevices, field_of
from samebits.errors import ConfigError
from samebits.files import amount
from samebits.schema import NotNegativeInt

READ = 1 << 22  # values that `columns_with_nan` reads at a time


class FillMissing:
    """Replace NaN in a field (B, C) by `value`, and append a column for each of `columns`: 1 if its value was NaN,
    otherwise 0. The field becomes (B, C + number of columns).

    columns: numbers of columns, the first is 0. A NaN of another column is replaced too, without an indicator.
    """

    random = False

    def __init__(self, field: str, value: float, columns: Sequence[NotNegativeInt]) -> None:
        if len(set(columns)) < len(columns):
            raise ConfigError(f"data.transforms: FillMissing.columns={list(columns)}: give each column once")
        self.field, self.value, self.columns = field, value, list(columns)
        self._index = OnDevices(torch.tensor(self.columns, dtype=torch.int64))

    def __call__(self, batch: Batch, sample_ids: Tensor) -> Batch:
        """Return the batch with the filled field. Raise ConfigError if it is missing or has another shape or dtype."""
        x = field_of(batch, self.field, "FillMissing.field")
        if x.ndim != 2 or not x.is_floating_point():
            raise ConfigError(
                f"data.transforms: FillMissing.field={self.field!r}: must be floats (B, C), got {x.dtype} "
                f"{tuple(x.shape)}; put ToFloat before it"
            )
        if self.columns and max(self.columns) >= x.shape[1]:
            raise ConfigError(
                f"data.transforms: FillMissing.columns={self.columns}: {self.field} has the columns 0 to "
                f"{x.shape[1] - 1}"
            )
        missing = x.isnan()
        indicators = missing.index_select(1, self._index.on(x.device)).to(x.dtype)
        return {**batch, self.field: torch.cat([x.masked_fill(missing, self.value), indicators], 1)}

    def describe(self, spec: Mapping[str, Any]) -> list[str]:
        """Return a line for the log. spec: {field: (shape of a sample, dtype)}."""
        named = ", ".join(map(str, self.columns[:8])) + ", ..." * (len(self.columns) > 8)
        count = len(self.columns)
        what = (
            f"and {amount(count, 'new column')} with 1 where there was NaN in the column{'s' * (count > 1)} {named}"
            if named
            else "no new columns"
        )
        return [f"{self.field}: NaN -> {self.value:g}, {what} (FillMissing)"]


def columns_with_nan(dataset: Any, field: str) -> list[int]:
    """Return the numbers of the columns of a field (C,) of a `BatchDataset` that have NaN in one of its rows.

    Raise ConfigError if the field does not exist, or if its samples are floats of another shape."""
    if field not in dataset.spec:
        raise ConfigError(f"data.fields has no {field!r}; it has {sorted(dataset.spec)}")
    shape, dtype = dataset.spec[field]
    if not dtype.is_floating_point:
        return []
    if len(shape) != 1 or -1 in shape:
        raise ConfigError(f"data.fields.{field}: FillMissing needs a table, samples of one dimension, not {shape}")
    step, found = max(1, READ // max(1, shape[0])), np.zeros(shape[0], dtype=bool)
    for begin in range(0, len(dataset), step):
        rows = dataset.gather(np.arange(begin, min(begin + step, len(dataset))))
        found |= rows[field].isnan().any(0).numpy()
    return np.flatnonzero(found).tolist()  # type: ignore[no-any-return]
