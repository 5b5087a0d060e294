"""Rows of HDF5 files: h5rows.Dataset, with errors of h5rows converted to ConfigError and RunFailed."""

import numpy as np

import h5rows
from lab.h5_errors import h5_methods
from samebits.errors import ConfigError

READ = 1 << 22  # values that `columns_with_nan` reads together


@h5_methods
class Dataset(h5rows.Dataset):
    __doc__ = h5rows.Dataset.__doc__

    def columns_with_nan(self, field: str) -> list[int]:
        """Return the numbers of the columns of a field (C,) that have NaN in a row of this split.

        Raise ConfigError if the field does not exist, or if its samples are floats of another shape."""
        if field not in self.spec:
            raise ConfigError(f"data.fields has no {field!r}; it has {sorted(self.spec)}")
        shape, dtype = self.spec[field]
        if not dtype.is_floating_point:
            return []
        if len(shape) != 1 or -1 in shape:
            raise ConfigError(f"data.fields.{field}: FillMissing needs a table, samples of one dimension, not {shape}")
        step, found = max(1, READ // max(1, shape[0])), np.zeros(shape[0], dtype=bool)
        for begin in range(0, len(self), step):
            rows = self.gather(np.arange(begin, min(begin + step, len(self))))
            found |= rows[field].isnan().any(0).numpy()
        return np.flatnonzero(found).tolist()
