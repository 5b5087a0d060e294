"""How chunks are compressed when a file is written: the same bytes as HDF5's own filters make."""

from __future__ import annotations

import contextlib
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need

LEVELS = {"gzip": (1, 9, 3), "zstd": (1, 22, 3), "lz4": (0, 0, 0), "blosc-lz4": (0, 9, 5), "blosc-zstd": (0, 9, 5)}
SMALL_ROW = 64  # bytes: labels and token streams stay contiguous, a chunk of many would be read for each one
RANDOM_CHUNK = 12_000  # bytes to decode for a random row; of rows of 3 KB more than about 4 cost more than they save


@dataclass(frozen=True)
class Encoding:
    codec: str = "none"
    level: int | None = None  # None: the codec's own middle
    rows_per_chunk: int | None = None  # None: contiguous without a codec, else by the size of a row

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
        low, high, middle = LEVELS.get(self.codec, (0, 0, 0))
        level = middle if self.level is None else self.level
        if not low <= level <= high:
            raise ConfigError(f"--level {level}: {self.codec} has the levels {low} to {high}")
        if self.codec == "none":
            return {}
        shuffle = dtype.itemsize > 1
        if self.codec == "gzip":
            return {"compression": "gzip", "compression_opts": level, "shuffle": shuffle}
        plugin = need("hdf5plugin", f"--codec {self.codec}", "hdf5plugin")
        if self.codec == "zstd":
            return {**plugin.Zstd(clevel=level), "shuffle": shuffle}
        if self.codec == "lz4":
            return {**plugin.LZ4(), "shuffle": shuffle}
        return dict(plugin.Blosc(cname=self.codec.removeprefix("blosc-"), clevel=level, shuffle=int(shuffle)))

    def encoder(self, dtype: np.dtype) -> Callable[[np.ndarray], bytes]:
        """Chunk -> the bytes that HDF5 would store; releases the GIL where it takes long."""
        level = LEVELS.get(self.codec, (0, 0, 0))[2] if self.level is None else self.level
        if self.codec == "none":
            return lambda chunk: chunk.tobytes()
        if self.codec.startswith("blosc-"):
            return _blosc(self.codec.removeprefix("blosc-"), level, dtype.itemsize)
        compress = {"gzip": _gzip, "zstd": _zstd, "lz4": _lz4}[self.codec](level)
        if dtype.itemsize == 1:
            return lambda chunk: compress(chunk.tobytes())
        return lambda chunk: compress(byte_shuffle(chunk))


def byte_shuffle(chunk: np.ndarray) -> bytes:
    """All first bytes of the numbers, then all second bytes, ..."""
    return np.ascontiguousarray(chunk).reshape(-1).view(np.uint8).reshape(-1, chunk.itemsize).T.tobytes()


def _gzip(level: int) -> Callable[[bytes], bytes]:
    with contextlib.suppress(ImportError):
        from isal import isal_zlib

        if level <= 3:  # its highest; some 5 times as fast as zlib's
            return lambda raw: isal_zlib.compress(raw, level)
    return lambda raw: zlib.compress(raw, level)


def _zstd(level: int) -> Callable[[bytes], bytes]:
    zstandard = need("zstandard", "--codec zstd", "zstandard")
    # a compressor must not be shared by threads
    return lambda raw: zstandard.ZstdCompressor(level=level, write_content_size=True).compress(raw)


def _lz4(level: int) -> Callable[[bytes], bytes]:
    block = need("lz4.block", "--codec lz4", "lz4")

    def compress(raw: bytes) -> bytes:
        """Whole size, block size, then (size, block): big-endian; a block that did not shrink is stored as it is."""
        packed = block.compress(raw, store_size=False)
        packed = packed if len(packed) < len(raw) else raw
        return struct.pack(">QII", len(raw), len(raw), len(packed)) + packed

    return compress


def _blosc(name: str, level: int, itemsize: int) -> Callable[[np.ndarray], bytes]:
    blosc = need("blosc", f"--codec blosc-{name}", "blosc")
    blosc.set_nthreads(1)  # the chunks are the parallel work
    blosc.set_releasegil(True)
    shuffle = blosc.SHUFFLE if itemsize > 1 else blosc.NOSHUFFLE
    return lambda chunk: blosc.compress(chunk.tobytes(), min(itemsize, 255), level, shuffle, name)
