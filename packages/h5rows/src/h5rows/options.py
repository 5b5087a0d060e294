"""Options of pack and repack. Defaults are set only here; h5rows/command.py shows them in its help."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_type_hints

import numpy as np

from h5rows.checks import check_options
from h5rows.errors import ConfigError, need

OF_IMAGES = ("images", "lmdb", "tfrecord", "webdataset", "table")
FOR_CSV = ("separator", "header", "decimal", "encoding", "escape")
FOR_FORMATS = {  # options that apply only to some formats
    **dict.fromkeys(("size", "crop", "mode", "exif"), OF_IMAGES),
    "variable": (*OF_IMAGES, "samples"),
    "kinds": OF_IMAGES[1:],
    "tokenizer": ("text", "table"),
    "reverse_axes": ("n5",),
    **dict.fromkeys(("file_column", *FOR_CSV, "empty", "length"), ("table",)),
}


@dataclass(frozen=True)
class PackOptions:
    """Options of `pack`. Raise ConfigError for invalid values."""

    # fields to write
    format: str = "auto"
    # fields: name in the source -> name in the file; empty: all, unchanged
    fields: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)  # how to decode bytes or strings, by name in the source
    file_column: str | None = None  # table column with paths of image files, relative to the table
    separator: str | None = None  # column separator of a CSV file; None: detected
    header: bool | None = None  # if the first line of a CSV file contains the column names; None: detected
    decimal: Literal[".", ","] = "."  # decimal separator of a CSV file
    encoding: str | None = None  # of a CSV file; None: UTF-8
    escape: str | None = None  # character before a quote inside quotes in a CSV file; None: quotes are doubled
    # empty table cells: stop; nan (NaN for numbers, -1 for classes); any other text: also cells with this text (CSV)
    empty: str = "stop"
    # images
    size: tuple[int, int] | None = None  # (height, width) in pixels
    # none: resize to `size`, ignoring the aspect ratio; center: resize the shorter side, then crop
    crop: Literal["none", "center"] = "none"
    # RGB, L (gray), RGBA, P (palette indices), I;16 (16-bit gray); auto: P if the first image has a palette
    mode: Literal["auto", "RGB", "L", "RGBA", "I;16", "P"] = "auto"
    # EXIF orientation: apply or ignore; None: raise an error if an image is not upright
    exif: Literal["apply", "ignore"] | None = None
    variable: bool = False  # keep each image's own size: flat values + offsets + shapes
    # text
    tokenizer: str = "bytes"
    length: int | None = None  # maximum number of ids per text of a table, including special ids
    # N5 has its dimensions in column-major order; some writers reverse the axes, some do not
    reverse_axes: bool = False
    # rows
    # split: name -> share of the rows that are in no split, or of train
    split: Mapping[str, float] = field(default_factory=dict)
    shuffle: bool = False
    seed: int = 0
    shard: tuple[int, int] = (0, 1)  # (i, n): write the i-th of n equal shares
    # running
    on_error: Literal["stop", "skip"] = "stop"
    ignore: tuple[str, ...] = ()  # names or patterns of names that may be left out
    external: Literal["refuse", "allow"] = "refuse"  # links that lead out of the source: refuse or follow
    overwrite: bool = False
    workers: int = os.cpu_count() or 1
    quiet: bool = False

    def __post_init__(self) -> None:
        check_options(get_type_hints(PackOptions), vars(self))
        above(workers=self.workers, length=self.length, size=min(self.size or (1,)))
        if self.seed < 0:
            raise ConfigError(f"seed={self.seed}: must be at least 0")
        if self.length is not None and "tokens" not in self.kinds.values():
            raise ConfigError("length=: limits token ids, so it needs kinds={'COLUMN': 'tokens'}; add it")
        if not 0 <= self.shard[0] < self.shard[1]:
            raise ConfigError(f"shard={self.shard}: must be (I, N) with I from 0 to N-1")
        for name in ("separator", "escape"):
            sign = getattr(self, name)
            if sign is not None and (len(sign) != 1 or not sign.isascii() or sign in '"\r\n'):
                raise ConfigError(f"{name}={sign!r}: must be one ASCII character, and not a quote or a line end")

    def check_for(self, names: Iterable[str], what: str) -> None:
        """Raise ConfigError if one of these options is given, as it has no effect for `what`."""
        usual = {one.name: one.default if one.default is not MISSING else {} for one in fields(self)}
        if given := next((name for name in names if getattr(self, name) != usual[name]), None):
            raise ConfigError(f"{given}=: {what} does not use it; remove it")

    def of_bytes(self) -> dict[str, object]:
        """Return the options that change the bytes of the file."""
        how = {"overwrite", "workers", "quiet", "on_error", "ignore", "external"}
        return {
            k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v
            for k, v in sorted(vars(self).items())
            if k not in how
        }


def above(**counts: int | None) -> None:
    """Raise ConfigError if one of these numbers is given and not > 0."""
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count}: must be > 0")


LEVELS = {"none": (0, 0, 0), "gzip": (1, 9, 3), "zstd": (1, 22, 3)}  # lowest, highest and default level
SMALL_ROW = 64  # bytes; smaller rows (labels, tokens) stay contiguous, as each read would decode a chunk of many
RANDOM_CHUNK = 12_000  # bytes of a chunk, decoded for each random row; larger chunks cost more than they save


@dataclass(frozen=True)
class RepackOptions:
    """Options of `repack`. Raise ConfigError for invalid values."""

    codec: Literal["none", "gzip", "zstd"] = "none"
    level: int | None = None  # None: see LEVELS
    rows_per_chunk: int | None = None  # None: contiguous without a codec, otherwise depends on the row size
    flatten: bool = False  # convert variable-length data and strings to groups of flat `values` and `offsets`
    contiguous: bool = False  # also make resizable datasets contiguous; they cannot grow any more
    allow_larger: bool = False  # write the copy even if it is many times larger than the source
    external: Literal["refuse", "allow"] = "refuse"  # datasets whose bytes are in other files: refuse or copy
    overwrite: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        check_options(get_type_hints(RepackOptions), vars(self))
        above(rows_per_chunk=self.rows_per_chunk)
        low, high, _ = LEVELS[self.codec]
        if self.level is not None and not low <= self.level <= high:
            raise ConfigError(f"level={self.level}: {self.codec} accepts levels {low} to {high}")

    @property
    def is_contiguous(self) -> bool:
        """Return True if rows are written without chunks."""
        return self.codec == "none" and self.rows_per_chunk is None

    def rows(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Return the rows per chunk for a dataset of this shape; 0 means contiguous."""
        row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        if self.is_contiguous or row_bytes < SMALL_ROW or not shape[0]:
            return 0
        return min(shape[0], self.rows_per_chunk or max(1, RANDOM_CHUNK // row_bytes))

    def create_options(self, dtype: np.dtype) -> dict[str, Any]:
        """Return the keyword arguments for h5py's create_dataset."""
        level = LEVELS[self.codec][2] if self.level is None else self.level
        if self.codec == "none":
            return {}
        shuffle = dtype.itemsize > 1
        if self.codec == "gzip":
            return {"compression": "gzip", "compression_opts": level, "shuffle": shuffle}
        plugin = need("hdf5plugin", f"codec={self.codec!r}", "hdf5plugin")
        return {**plugin.Zstd(clevel=level), "shuffle": shuffle}
