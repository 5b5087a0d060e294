"""Read HDF5 files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor


class H5Dataset:
    """Named fields of an HDF5 file.

    path: the file. fields: name in the batch -> name of the dataset in the file, below the split's group.
    splits: split -> {group: where its datasets lie, "/" for the root}. split: the one to read.
    """

    def __init__(
        self, path: str, fields: Mapping[str, str], splits: Mapping[str, Mapping[str, Any]], split: str
    ) -> None:
        with h5py.File(Path(path), "r") as file:
            group = file[splits[split]["group"]]
            self._values = {field: torch.from_numpy(group[name][:]) for field, name in fields.items()}
        self.spec = {field: (tuple(v.shape[1:]), v.dtype) for field, v in self._values.items()}

    def __len__(self) -> int:
        return len(next(iter(self._values.values())))

    def gather(self, rows: np.ndarray, out: dict[str, Tensor]) -> None:
        index = torch.from_numpy(rows)
        for field, values in self._values.items():
            torch.index_select(values, 0, index, out=out[field])
