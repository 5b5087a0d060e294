"""How chunks are compressed when a file is written: the same bytes as HDF5's own filters make."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Encoding:
    codec: str = "none"
    level: int | None = None  # None: the codec's own middle
    rows_per_chunk: int | None = None  # None: contiguous without a codec, else by the size of a row

    @property
    def contiguous(self) -> bool:
        return self.codec == "none" and self.rows_per_chunk is None
