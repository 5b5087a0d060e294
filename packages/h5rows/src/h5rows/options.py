"""What pack and repack can be told. The defaults live here alone; h5rows/command.py shows them in its help."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, Literal, get_type_hints

import numpy as np

from h5rows.checks import check_options
from h5rows.errors import ConfigError, need

OF_IMAGES = ("images", "lmdb", "tfrecord", "webdataset", "table")
FOR_FORMATS = {  # options of some formats alone
    **dict.fromkeys(("size", "crop", "mode", "exif"), OF_IMAGES),
    "variable": (*OF_IMAGES, "samples"),
    "kinds": OF_IMAGES[1:],
    "tokenizer": ("text", "table"),
    "reverse_axes": ("n5",),
    **dict.fromkeys(
        ("file_column", "separator", "header", "decimal", "encoding", "escape", "empty", "length"), ("table",)
    ),
}
FOR_CSV = ("separator", "header", "decimal", "encoding", "escape")


@dataclass(frozen=True)
class PackOptions:
    # which parts of the source become which fields
    format: str = "auto"
    # fields: name in the source -> name in the file; empty: all, unchanged
    fields: Mapping[str, str] = field(default_factory=dict)
    kinds: Mapping[str, str] = field(default_factory=dict)  # how bytes or strings are read, by name in the source
    file_column: str | None = None  # column of a table that names image files, relative to the table
    separator: str | None = None  # of a CSV; None: found out
    header: bool | None = None  # whether a CSV's first line names its columns; None: found out
    decimal: Literal[".", ","] = "."  # of a CSV's numbers
    encoding: str | None = None  # of a CSV; None: UTF-8
    escape: str | None = None  # what a CSV has before a quote within quotes; None: quotes are doubled
    # empty cells of a table; nan: NaN among numbers, -1 among classes; another text of a CSV: so are cells that hold it
    empty: str = "stop"
    # images
    size: tuple[int, int] | None = None  # (height, width) in pixels
    crop: Literal["none", "center"] = (
        "none"  # none: resize to `size` whatever the aspect; center: shorter side to `size`, then the middle
    )
    # RGB, L (grey), RGBA, P (numbers of a palette), I;16 (16-bit grey); auto: P if the first has one
    mode: Literal["auto", "RGB", "L", "RGBA", "I;16", "P"] = "auto"
    exif: Literal["apply", "ignore"] | None = (
        None  # an orientation: apply, ignore; None: an image with another than upright is refused
    )
    variable: bool = False  # keep each image's own size: flat values + offsets + shapes
    # text
    tokenizer: str = "bytes"
    length: int | None = None  # ids of a text in a table at most, its special ones included
    # N5 keeps its dimensions in column-major order; some writers turn them round, some do not
    reverse_axes: bool = False
    # rows
    # split: name -> share of the rows that no split claims, or of train
    split: Mapping[str, float] = field(default_factory=dict)
    shuffle: bool = False
    seed: int = 0
    shard: tuple[int, int] = (0, 1)  # (i, n): write the i-th of n equal shares
    # running
    on_error: Literal["stop", "skip"] = "stop"
    ignore: tuple[str, ...] = ()  # names, or patterns of names, that a line "left out" would show
    external: Literal["refuse", "allow"] = "refuse"  # links that lead out of a source: refuse or allow
    overwrite: bool = False
    workers: int = os.cpu_count() or 1
    quiet: bool = False

    def __post_init__(self) -> None:
        check_options(get_type_hints(PackOptions), vars(self))
        above(workers=self.workers, length=self.length, size=min(self.size or (1,)))
        if not 0 <= self.shard[0] < self.shard[1]:
            raise ConfigError(f"shard={self.shard}: must be (I, N) with I from 0 to N-1")
        for name in ("separator", "escape"):
            sign = getattr(self, name)
            if sign is not None and (len(sign) != 1 or not sign.isascii() or sign in '"\r\n'):
                raise ConfigError(f"{name}={sign!r}: must be one sign, and neither a quote nor a line's end")

    def check_for(self, names: Iterable[str], what: str) -> None:
        """Raise ConfigError if one of these options, which `what` has no use for, is given."""
        usual = {one.name: one.default if one.default is not MISSING else {} for one in fields(self)}
        if given := next((name for name in names if getattr(self, name) != usual[name]), None):
            raise ConfigError(f"{given}=: {what} has no use for it; leave it out")

    def of_bytes(self) -> dict[str, object]:
        """The options that decide what bytes are written."""
        how = {"overwrite", "workers", "quiet", "on_error", "ignore", "external"}
        return {
            k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v
            for k, v in sorted(vars(self).items())
            if k not in how
        }


def above(**counts: int | None) -> None:
    for name, count in counts.items():
        if count is not None and count < 1:
            raise ConfigError(f"{name}={count}: must be > 0")


LEVELS = {"none": (0, 0, 0), "gzip": (1, 9, 3), "zstd": (1, 22, 3)}  # lowest, highest, what is taken if none is given
SMALL_ROW = 64  # bytes: labels and token streams stay contiguous, a chunk of many would be read for each one
RANDOM_CHUNK = 12_000  # bytes to decode for a random row; of rows of 3 KB more than about 4 cost more than they save


@dataclass(frozen=True)
class RepackOptions:
    codec: Literal["none", "gzip", "zstd"] = "none"
    level: int | None = None  # None: the codec's own middle
    rows_per_chunk: int | None = None  # None: contiguous without a codec, else by the size of a row
    flatten: bool = False  # HDF5's variable length and strings become groups of flat `values` and `offsets`
    contiguous: bool = False  # what can grow becomes contiguous too, and can grow no more
    allow_larger: bool = False  # write also many times what the source holds
    external: Literal["refuse", "allow"] = (
        "refuse"  # datasets whose bytes lie in other files, which are copied: refuse or allow
    )
    overwrite: bool = False
    quiet: bool = False

    def __post_init__(self) -> None:
        check_options(get_type_hints(RepackOptions), vars(self))
        above(rows_per_chunk=self.rows_per_chunk)
        low, high, _ = LEVELS[self.codec]
        if self.level is not None and not low <= self.level <= high:
            raise ConfigError(f"level={self.level}: {self.codec} has the levels {low} to {high}")

    @property
    def is_contiguous(self) -> bool:
        return self.codec == "none" and self.rows_per_chunk is None

    def rows(self, shape: tuple[int, ...], dtype: np.dtype) -> int:
        """Rows to a chunk for a dataset of this shape; 0: contiguous."""
        row_bytes = int(np.prod(shape[1:], dtype=np.int64)) * dtype.itemsize
        if self.is_contiguous or row_bytes < SMALL_ROW or not shape[0]:
            return 0
        return min(shape[0], self.rows_per_chunk or max(1, RANDOM_CHUNK // row_bytes))

    def create_options(self, dtype: np.dtype) -> dict[str, Any]:
        """Keywords for h5py's create_dataset."""
        level = LEVELS[self.codec][2] if self.level is None else self.level
        if self.codec == "none":
            return {}
        shuffle = dtype.itemsize > 1
        if self.codec == "gzip":
            return {"compression": "gzip", "compression_opts": level, "shuffle": shuffle}
        plugin = need("hdf5plugin", f"codec={self.codec!r}", "hdf5plugin")
        return {**plugin.Zstd(clevel=level), "shuffle": shuffle}
