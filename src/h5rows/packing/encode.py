"""What a repack can be told, and how it lays out a dataset: contiguous, or in chunks that HDF5's filters compress."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.reading.external import REFUSE_EXTERNAL

LEVELS = {"none": (0, 0, 0), "gzip": (1, 9, 3), "zstd": (1, 22, 3)}  # lowest, highest, what is taken if none is given
SMALL_ROW = 64  # bytes: labels and token streams stay contiguous, a chunk of many would be read for each one
RANDOM_CHUNK = 12_000  # bytes to decode for a random row; of rows of 3 KB more than about 4 cost more than they save


@dataclass(frozen=True)
class RepackOptions:
    codec: str = "none"
    level: int | None = None  # None: the codec's own middle
    rows_per_chunk: int | None = None  # None: contiguous without a codec, else by the size of a row
    flatten: bool = False  # HDF5's variable length and strings become groups of flat `values` and `offsets`
    fixed: bool = False  # what can grow becomes contiguous too, and can grow no more
    inflate: bool = False  # write also many times what the source holds
    external: str = REFUSE_EXTERNAL  # datasets whose bytes lie in other files, which are copied: refuse or allow
    overwrite: bool = False
    quiet: bool = False

    @property
    def contiguous(self) -> bool:
        return self.codec == "none" and self.rows_per_chunk is None

    def rows(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Rows to a chunk for a dataset of this shape; 0: contiguous."""
        row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        if self.contiguous or row_bytes < SMALL_ROW or not shape[0]:
            return 0
        return min(shape[0], self.rows_per_chunk or max(1, RANDOM_CHUNK // row_bytes))

    def create_options(self, dtype: np.dtype) -> dict[str, Any]:
        """Keywords for h5py's create_dataset."""
        low, high, middle = LEVELS[self.codec]
        level = middle if self.level is None else self.level
        if not low <= level <= high:
            raise ConfigError(f"--level {level}: {self.codec} has the levels {low} to {high}")
        if self.codec == "none":
            return {}
        shuffle = dtype.itemsize > 1
        if self.codec == "gzip":
            return {"compression": "gzip", "compression_opts": level, "shuffle": shuffle}
        plugin = need("hdf5plugin", f"--codec {self.codec}", "hdf5plugin")
        return {**plugin.Zstd(clevel=level), "shuffle": shuffle}
