"""Decode HDF5 chunks outside HDF5: the inverse of each filter, checked for length. The heavy parts release the GIL."""

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

DEFLATE, SHUFFLE, FLETCHER32, BLOSC, ZSTD = 1, 2, 3, 32001, 32015
NAMES = {DEFLATE: "gzip", SHUFFLE: "shuffle", FLETCHER32: "fletcher32", BLOSC: "blosc", ZSTD: "zstd"}
COMPRESSORS = (DEFLATE, BLOSC, ZSTD)
OTHERS = {4: "szip", 5: "nbit", 6: "scale-offset", 32000: "lzf"}
# of the registered ones, those that hdf5plugin brings, and others that occur
HDF5PLUGIN = {
    307: "bzip2", 32001: "blosc", 32004: "lz4", 32008: "bitshuffle", 32013: "zfp", 32015: "zstd", 32017: "sz",
    32018: "fcidecomp", 32024: "sz3", 32026: "blosc2", 32028: "sperr",
}  # fmt: skip
ELSEWHERE = {305: "LZO", 32002: "mafisc", 32003: "snappy", 32009: "SPDP", 32010: "lpc-rice", 32019: "jpeg"}
LIBRARY = {BLOSC: "blosc", ZSTD: "zstandard"}

Options = tuple[int, ...]
Pipeline = tuple[tuple[int, Options], ...]  # (filter, its options), in the order of writing
_local = threading.local()


def filter_name(number: int) -> str:
    known = {**OTHERS, **ELSEWHERE, **HDF5PLUGIN, **NAMES}
    return known.get(number) or f"filter {number}"


def missing_filter(dset: h5py.Dataset) -> int | None:
    """The number of a filter without which this installation of HDF5 cannot read the dataset."""
    load_plugins(dset)
    return next((number for number, _ in pipeline(dset) if not h5py.h5z.filter_avail(number)), None)


def check_filters(dset: h5py.Dataset) -> None:
    """Raise a ConfigError that names the filter that HDF5 lacks for this dataset."""
    if (number := missing_filter(dset)) is None:
        return
    what = f"{dset.file.filename}: {dset.name} needs the filter {filter_name(number)} (number {number})"
    if number in HDF5PLUGIN and _load("hdf5plugin") is None:
        raise ConfigError(f"{what}; {missing('HDF5', 'hdf5plugin')}")
    problem = f"{what}, which is not in hdf5plugin"
    raise ConfigError(f"{problem}; where that filter is, write the file again with another: h5repack -f GZIP=4 OLD NEW")


def pipeline(dset: h5py.Dataset) -> Pipeline:
    create = dset.id.get_create_plist()
    return tuple((number, tuple(o)) for number, _, o, _ in map(create.get_filter, range(create.get_nfilters())))


def obstacle(pipeline: Pipeline, chunk_bytes: int) -> str | None:
    """Why chunks of this pipeline cannot be decoded here; None if they can."""
    if sum(number in COMPRESSORS for number, _ in pipeline) > 1:
        return "several compressors, between which a chunk may have any size"
    for number, _ in pipeline:
        if number not in NAMES:
            return f"the filter {filter_name(number)}"
        library = LIBRARY.get(number)
        if library and _load(library) is None:
            return missing(filter_name(number), library)
        if number == FLETCHER32 and chunk_bytes > 1 << 24:
            return "checksums of chunks above 16 MB"
    return None


def load_plugins(dset: h5py.Dataset) -> None:
    """Let h5py know more filters, where this dataset has one that it does not know."""
    if not all(h5py.h5z.filter_avail(number) for number, _ in pipeline(dset)):
        _load("hdf5plugin")


def decode(raw: bytes, pipeline: Pipeline, mask: int, nbytes: int) -> Any:
    """The chunk's nbytes bytes, as a buffer; mask: bit i set if filter i was left out. ValueError if it is damaged."""
    data: Any = raw
    for i in range(len(pipeline) - 1, -1, -1):
        number, options = pipeline[i]
        if mask >> i & 1:
            continue
        try:
            data = _DECODERS[number](data, options, nbytes)
        except Exception as error:  # each library has its own
            raise ValueError(f"{NAMES[number]}: {error}" if str(error) else f"{NAMES[number]} cannot read") from error
    if len(data) != nbytes:
        raise ValueError(f"{len(data)} bytes instead of {nbytes}")
    return data


@cache
def _load(library: str) -> ModuleType | None:
    try:
        return importlib.import_module(library)
    except ImportError:
        return None


# A checksum that follows a compressor adds its 4 bytes after it, one that precedes is compressed with the rest: so a
# decoder may yield up to this many bytes more than the chunk has.
_SLACK = 64
_SMALL = 1 << 16  # bytes of a stream that, at 1032 to 1 at most, cannot fill the memory


def _inflate(data: Any, options: Options, nbytes: int) -> Any:
    """Nearly all of the time of reading gzip is inside (benchmarks/RESULTS.md)."""
    libdeflate = _load("deflate")
    if libdeflate is not None:
        try:
            return libdeflate.zlib_decompress(data, nbytes + _SLACK)  # into so much memory, and no more
        except libdeflate.DeflateError:  # which does not say why
            raise ValueError(f"its stream is damaged, cut or holds more than the {nbytes} bytes of a chunk") from None
    library: Any = _load("isal.isal_zlib") or zlib
    if len(data) <= _SMALL:
        # bufsize is only a first guess of the output's size; decode checks the true one
        return library.decompress(data, bufsize=nbytes + _SLACK)
    inflating = library.decompressobj()  # takes a limit, and longer for what is small
    plain = inflating.decompress(data, nbytes + _SLACK)
    if not inflating.eof:
        raise ValueError(f"its stream is cut, or holds more than the {nbytes} bytes of a chunk")
    return plain


def _unshuffle(data: Any, options: Options, nbytes: int) -> Any:
    width = options[0] if options else 1
    flat = np.frombuffer(data, dtype=np.uint8)
    whole = len(flat) // width * width  # what is left over at the end was not shuffled
    if width == 1:
        return data
    out = np.empty_like(flat)
    out[:whole].reshape(-1, width)[:] = flat[:whole].reshape(width, -1).T
    out[whole:] = flat[whole:]
    return out.data


def _fletcher32(data: Any, options: Options, nbytes: int) -> Any:
    """Verify and cut off HDF5's checksum: two sums of big-endian 16-bit words, modulo 65,535."""
    body, stored = memoryview(data)[:-4], bytes(memoryview(data)[-4:])
    words = np.frombuffer(body[: len(body) & ~1], dtype=">u2").astype(np.int64)
    if len(body) % 2:
        words = np.append(words, body[-1] << 8)
    first, second = int(words.sum()), int(words @ np.arange(len(words), 0, -1))
    a, b = ((total - 1) % 65535 + 1 if total else 0 for total in (first, second))
    sums = struct.pack("<I", b << 16 | a)
    swapped = bytes((sums[1], sums[0], sums[3], sums[2]))  # HDF5 before 1.6.3 wrote it so on little-endian machines
    if stored not in (sums, swapped):
        raise ValueError("wrong checksum (fletcher32)")
    return body


def _zstd(data: Any, options: Options, nbytes: int) -> bytes:
    zstandard = _load("zstandard")
    assert zstandard is not None
    if not hasattr(_local, "zstd"):
        _local.zstd = zstandard.ZstdDecompressor()  # not to be shared between threads
    says = zstandard.frame_content_size(data)  # -1: nothing; else decompress makes as much room, whatever the limit
    if says > nbytes + _SLACK:
        raise ValueError(f"its header says {says} bytes instead of {nbytes}")
    return _local.zstd.decompress(data, max_output_size=nbytes + _SLACK)


def _blosc(data: Any, options: Options, nbytes: int) -> bytes:
    blosc = _load("blosc")
    assert blosc is not None
    if not getattr(_local, "blosc", False):
        blosc.set_releasegil(True)  # also makes it use a context of its own for each call
        blosc.set_nthreads(1)
        _local.blosc = True
    if len(data) < 16:
        raise ValueError(f"a blosc buffer of {len(data)} bytes")
    plain, _, packed = struct.unpack_from("<III", data, 4)
    if plain > nbytes + _SLACK or packed != len(data):
        raise ValueError(f"blosc header says {packed} bytes of {plain}, but there are {len(data)} of {nbytes}")
    return blosc.decompress(bytes(data))


_DECODERS: dict[int, Callable[[Any, Options, int], Any]] = {
    DEFLATE: _inflate,
    SHUFFLE: _unshuffle,
    FLETCHER32: _fletcher32,
    BLOSC: _blosc,
    ZSTD: _zstd,
}
