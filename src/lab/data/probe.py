"""Shapes that a config takes from a data file. Imports h5py alone."""

from __future__ import annotations

from typing import Any

import h5py
import numpy as np

from lab.errors import ConfigError


def _dataset(data: Any, field: str) -> h5py.Dataset:
    try:
        file = h5py.File(data["path"], "r")
    except OSError as error:
        raise ConfigError(f"{data['path']}: {error}") from error
    split = next(iter(data["splits"].values()))
    return file[split["group"]][data["fields"][field]]


def sample_shape(data: Any, field: str) -> tuple[int, ...]:
    return tuple(_dataset(data, field).shape[1:])


def num_outputs(data: Any, field: str) -> int:
    values = _dataset(data, field)
    if np.issubdtype(values.dtype, np.integer):
        return int(values[:].max()) + 1
    return int(np.prod(values.shape[1:], dtype=int))
