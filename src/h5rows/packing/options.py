"""What a pack can be told. The defaults live here and nowhere else; h5rows/command.py shows them in its help."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field


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
    decimal: str = "."  # of a CSV's numbers
    encoding: str | None = None  # of a CSV; None: UTF-8
    empty: str = "stop"  # empty cells of number columns of a table; nan: they are NaN, and the column floats
    # images
    size: tuple[int, int] | None = None  # (height, width) in pixels
    crop: str = "none"  # none: resize to `size` whatever the aspect; center: shorter side to `size`, then the middle
    # RGB, L (grey), RGBA, P (numbers of a palette), I;16 (16-bit grey); auto: P if the first has one
    mode: str = "auto"
    exif: str | None = None  # an orientation: apply, ignore; None: an image with another than upright is refused
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
    on_error: str = "stop"
    leave_out: tuple[str, ...] = ()  # names, or patterns of names, that a line "left out" would show
    external: str = "refuse"  # links that lead out of a source: refuse or allow
    overwrite: bool = False
    workers: int = os.cpu_count() or 1
    quiet: bool = False

    def of_bytes(self) -> dict[str, object]:
        """The options that decide what bytes are written."""
        how = {"overwrite", "workers", "quiet", "on_error", "leave_out", "external"}
        return {
            k: dict(v) if isinstance(v, Mapping) else list(v) if isinstance(v, tuple) else v
            for k, v in sorted(vars(self).items())
            if k not in how
        }
