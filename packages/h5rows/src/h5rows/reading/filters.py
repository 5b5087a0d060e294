"""Decode HDF5 chunks without HDF5: invert each filter and check the length. The expensive parts release the GIL."""

from __future__ import annotations

import importlib
import struct
import threading
import zlib
from collections.abc import Callable
from functools import cache
from types import ModuleType
from typing import Any

import h5py
import numpy as np

from h5rows.errors import ConfigError, missing
from h5rows.reading.stored import Pipeline, stored

DEFLATE, SHUFFLE, FLETCHER32, BLOSC, ZSTD = 1, 2, 3, 32001, 32015
NAMES = {DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", BLOSC: "blosc", ZSTD: "zstd"}
COMPRESSORS = (DEFLATE, BLOSC, ZSTD)
OTHERS = {4: "szip", 5: "nbit", 6: "scale-offset", 32000: "lzf"}
# registered filters: those in hdf5plugin, and others that occur
HDF5PLUGIN = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip
ELSEWHERE = {305: "LZO", 32002: "mafisc", 32003: "snappy", 32009: "SPDP", 32010: "lpc-rice", 32019: "jpeg"}
LIBRARY = {BLOSC: "blosc", ZSTD: "zstandard"}

Options = tuple[int, ...]
_local = threading.local()


def filter_name(number: int) -> str:
    """Return the name of a filter by its number."""
    known = {**OTHERS, **ELSEWHERE, **HDF5PLUGIN, **NAMES}
    return known.get(number) or f"filter {number}"


def missing_filter(dset: h5py.Dataset) -> int | None:
    """Return the number of a filter that this installation of HDF5 lacks to read the dataset; None if it lacks none."""
    numbers = load_plugins(dset)
    return next((number for number in numbers if not h5py.h5z.filter_avail(number)), None)


def check_filters(dset: h5py.Dataset) -> None:
    """Raise ConfigError with the name of a filter that HDF5 lacks for this dataset."""
    if (number := missing_filter(dset)) is None:
        return
    what = f"{dset.file.filename}: {dset.name} needs the filter {filter_name(number)} (number {number})"
    if number in HDF5PLUGIN and _load("hdf5plugin") is None:
        raise ConfigError(f"{what}; {missing('HDF5', 'hdf5plugin')}")
    problem = f"{what}, which is not in hdf5plugin"
    raise ConfigError(f"{problem}; on a machine with that filter, convert the file: h5repack -f GZIP=4 OLD NEW")


def obstacle(pipeline: Pipeline, chunk_bytes: int) -> str | None:
    """Return the reason why chunks of this pipeline cannot be decoded here; None if they can."""
    if sum(number in COMPRESSORS for number, _ in pipeline) > 1:
        return "several compressors, so sizes between them are unknown"
    for number, _ in pipeline:
        if number not in NAMES:
            return f"the filter {filter_name(number)}"
        library = LIBRARY.get(number)
        if library and _load(library) is None:
            return missing(filter_name(number), library)
        if number == FLETCHER32 and chunk_bytes > 1 << 24:
            return "checksums of chunks above 16 MB"
    return None


def load_plugins(dset: h5py.Dataset) -> list[int]:
    """Load hdf5plugin if h5py lacks a filter of this dataset. Return the numbers of its filters."""
    numbers = [number for number, _ in stored(dset).pipeline]
    if not all(map(h5py.h5z.filter_avail, numbers)):
        _load("hdf5plugin")
    return numbers


def decode(raw: bytes, pipeline: Pipeline, mask: int, nbytes: int) -> Any:
    """Return the `nbytes` decoded bytes of a chunk as a buffer.

    mask: bit i is set if filter i was not applied to this chunk. Raise ValueError if the chunk is damaged.
    """
    data: Any = raw
    for i in range(len(pipeline) - 1, -1, -1):
        number, options = pipeline[i]
        if mask >> i & 1:
            continue
        try:
            data = _DECODERS[number](data, options, nbytes)
        except Exception as error:  # each library raises its own exceptions
            raise ValueError(f"{NAMES[number]}: {error}" if str(error) else f"{NAMES[number]} cannot read") from error
    if len(data) != nbytes:
        raise ValueError(f"got {len(data)} bytes, expected {nbytes}")
    return data


@cache
def _load(library: str) -> ModuleType | None:
    try:
        return importlib.import_module(library)
    except ImportError:
        return None


# A checksum after a compressor adds 4 bytes to its output, a checksum before it is compressed with the data: so a
# decoder may return up to this many bytes more than the chunk has.
_SLACK = 64


def _inflate(data: Any, options: Options, nbytes: int) -> Any:
    """Decompress gzip. Reading gzip files spends nearly all of its time here (benchmarks/RESULTS.md)."""
    libdeflate = _load("deflate")
    if libdeflate is not None:
        try:
            return libdeflate.zlib_decompress(data, nbytes + _SLACK)  # allocates only this much memory
        except libdeflate.DeflateError:  # contains no reason
            raise ValueError(f"its stream is damaged, truncated or longer than the {nbytes} bytes of a chunk") from None
    inflating = zlib.decompressobj()  # has a limit
    plain = inflating.decompress(data, nbytes + _SLACK)
    if not inflating.eof:
        raise ValueError(f"its stream is truncated, or longer than the {nbytes} bytes of a chunk")
    return plain


def _unshuffle(data: Any, options: Options, nbytes: int) -> Any:
    width = options[0] if options else 1
    flat = np.frombuffer(data, dtype=np.uint8)
    whole = len(flat) // width * width  # the rest at the end was not shuffled
    if width == 1:
        return data
    out = np.empty_like(flat)
    out[:whole].reshape(-1, width)[:] = flat[:whole].reshape(width, -1).T
    out[whole:] = flat[whole:]
    return out.data


def _fletcher32(data: Any, options: Options, nbytes: int) -> Any:
    """Verify and remove HDF5's checksum: two sums of big-endian 16-bit words, modulo 65,535."""
    body, stored = memoryview(data)[:-4], bytes(memoryview(data)[-4:])
    words = np.frombuffer(body[: len(body) & ~1], dtype=">u2").astype(np.int64)
    if len(body) % 2:
        words = np.append(words, body[-1] << 8)
    first, second = int(words.sum()), int(words @ np.arange(len(words), 0, -1))
    a, b = ((total - 1) % 65535 + 1 if total else 0 for total in (first, second))
    sums = struct.pack("<I", b << 16 | a)
    swapped = bytes((sums[1], sums[0], sums[3], sums[2]))  # written by HDF5 before 1.6.3 on little-endian machines
    if stored not in (sums, swapped):
        raise ValueError("wrong checksum (fletcher32)")
    return body


def _zstd(data: Any, options: Options, nbytes: int) -> bytes:
    zstandard = _load("zstandard")
    assert zstandard is not None
    if not hasattr(_local, "zstd"):
        _local.zstd = zstandard.ZstdDecompressor()  # must not be shared between threads
    # -1: unknown; otherwise decompress allocates this much despite the limit
    declared = zstandard.frame_content_size(data)
    if declared > nbytes + _SLACK:
        raise ValueError(f"its header declares {declared} bytes, expected {nbytes}")
    return _local.zstd.decompress(data, max_output_size=nbytes + _SLACK)


def _blosc(data: Any, options: Options, nbytes: int) -> bytes:
    blosc = _load("blosc")
    assert blosc is not None
    if not getattr(_local, "blosc", False):
        blosc.set_releasegil(True)  # also gives each call its own context
        blosc.set_nthreads(1)
        _local.blosc = True
    if len(data) < 16:
        raise ValueError(f"a blosc buffer of only {len(data)} bytes")
    plain, _, packed = struct.unpack_from("<III", data, 4)
    if plain > nbytes + _SLACK or packed != len(data):
        raise ValueError(f"blosc header declares {packed} bytes of {plain}, expected {len(data)} of {nbytes}")
    return blosc.decompress(bytes(data))


_DECODERS: dict[int, Callable[[Any, Options, int], Any]] = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _fletcher32,
    BLOSC: _blosc,
    ZSTD: _zstd,
}
