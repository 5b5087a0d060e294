"""Random types of HDF5, values of them, and filters."""

from __future__ import annotations

import ctypes
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import hdf5plugin
import numpy as np
from h5py import h5t, h5z

INTEGERS = [getattr(h5t, f"STD_{sign}{bits}{end}") for sign in "IU" for bits in (8, 16, 32, 64) for end in ("LE", "BE")]
FLOATS = [getattr(h5t, f"IEEE_F{bits}{end}") for bits in (16, 32, 64) for end in ("LE", "BE")]
BITS = [getattr(h5t, f"STD_B{bits}{end}") for bits in (8, 16, 32, 64) for end in ("LE", "BE")]
COMPLEX = [h5t.COMPLEX_IEEE_F32LE, h5t.COMPLEX_IEEE_F64BE, h5t.COMPLEX_IEEE_F16LE] if hasattr(h5t, "COMPLEX") else []
NATIVE = ["?", "i1", "u1", "i2", "u2", "i4", "u4", "i8", "f2", "f4", "f8", "c8", "c16"]
NAMES = ["x", "y", "image", "ü", "a b", "100%", "1", "values", "x.y", "名"]
DEFLATE, SHUFFLE, FLETCHER32, SZIP, NBIT, LZF = 1, 2, 3, 4, 5, 32000


class Draw:
    """Random choices, all from one seed."""

    def __init__(self, seed: int) -> None:
        self.rng = np.random.default_rng(seed)

    def chance(self, share: float) -> bool:
        return bool(self.rng.random() < share)

    def one_of(self, choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def between(self, low: int, high: int) -> int:
        """Both may come."""
        return int(self.rng.integers(low, high + 1))

    def try_each(self, make: Callable[[], Any]) -> Any:
        """HDF5 refuses some combinations: draw again."""
        for _ in range(20):
            try:
                return make()
            except (ValueError, RuntimeError, TypeError, OSError, KeyError, AttributeError):
                continue
        raise RuntimeError("twenty combinations in a row that HDF5 does not take")


def small_float(size: int, exponent: int) -> Any:
    """bfloat16 (2, 8), float8 (1, 4 or 5)."""
    kind, mantissa = h5t.IEEE_F32LE.copy(), 8 * size - 1 - exponent
    kind.set_fields(8 * size - 1, mantissa, exponent, 0, mantissa)
    kind.set_size(size)
    kind.set_ebias((1 << exponent - 1) - 1)
    return kind


def set_chunk_opts(create: Any) -> bool:
    """H5Pset_chunk_opts(H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS), which h5py lacks; False where its library is hidden."""
    for library in Path(h5py.__file__).parents[1].glob("h5py.libs/libhdf5-*"):
        call = ctypes.CDLL(str(library)).H5Pset_chunk_opts
        call.argtypes = [ctypes.c_int64, ctypes.c_uint]
        return call(create.id, 2) >= 0
    return False


def draw_type(w: Draw, depth: int = 0) -> Any:
    if depth == 0 and w.chance(0.5):
        return h5t.py_create(np.dtype(w.one_of(NATIVE)), logical=True)
    roll = w.rng.random()
    if roll < 0.62:
        return number(w)
    if roll < 0.72:
        return text(w)
    if roll < 0.78 and depth < 2:
        return h5t.array_create(draw_type(w, depth + 1), tuple(w.between(1, 3) for _ in range(w.between(1, 2))))
    if roll < 0.9 and depth < 2:
        return compound(w, depth)
    if roll < 0.95:
        return h5t.vlen_create(number(w) if w.chance(0.9) else draw_type(w, depth + 1))
    if roll < 0.97:
        opaque = h5t.create(h5t.OPAQUE, w.between(1, 9))
        opaque.set_tag(w.one_of([b"photo", b"NUMPY:<M8[s]", b""]))
        return opaque
    return w.one_of([h5t.STD_REF_OBJ, h5t.UNIX_D32LE, h5t.NATIVE_LDOUBLE]).copy()


def number(w: Draw) -> Any:
    kind = w.one_of(
        ["integer"] * 4 + ["float"] * 4 + ["bits", "odd", "odd", "bool", "enum", "small", "complex", "pair"]
    )
    if kind == "integer":
        return w.one_of(INTEGERS).copy()
    if kind == "bits":
        return w.one_of(BITS).copy()
    if kind == "odd":
        made = w.one_of(INTEGERS).copy()
        if w.chance(0.2):
            made.set_size(w.between(3, 7))
        made.set_precision(w.between(1, 8 * made.get_size()))
        made.set_offset(w.between(0, 8 * made.get_size() - made.get_precision()))
        return made
    if kind == "bool":
        return h5t.py_create(np.dtype(bool), logical=True)
    if kind == "enum":
        members = {f"{name}{k}": int(w.between(0, 100)) for k, name in enumerate(NAMES[: w.between(1, 4)])}
        return h5t.py_create(
            h5py.enum_dtype(members, basetype=w.one_of(["i1", "u1", "<i4", ">i2", "<u4"])), logical=True
        )
    if kind == "small":
        return small_float(*w.one_of([(2, 8), (2, 8), (1, 4), (1, 5)]))
    if kind == "complex" and COMPLEX:
        return w.one_of(COMPLEX).copy()
    if kind == "pair":
        return h5t.py_create(np.dtype(w.one_of(["<c8", ">c16"])), logical=True)
    return w.one_of(FLOATS).copy()


def text(w: Draw) -> Any:
    kind = h5t.C_S1.copy()
    kind.set_size(h5t.VARIABLE if w.chance(0.4) else w.between(1, 12))
    kind.set_cset(w.one_of([h5t.CSET_ASCII, h5t.CSET_UTF8]))
    kind.set_strpad(w.one_of([h5t.STR_NULLTERM, h5t.STR_NULLPAD, h5t.STR_SPACEPAD]))
    return kind


def compound(w: Draw, depth: int) -> Any:
    members = [draw_type(w, depth + 1) if w.chance(0.3) else number(w) for _ in range(w.between(1, 4))]
    places, at = [], 0
    for member in members:
        at += w.one_of([0, 0, 1, 4])
        places.append(at)
        at += member.get_size()
    made = h5t.create(h5t.COMPOUND, at + w.one_of([0, 0, 3]))
    for k, (member, place) in enumerate(zip(members, places)):
        made.insert(f"{w.one_of([*NAMES, 'p/q'])}{k}".encode(), place, member)
    return made


def random_bytes(w: Draw, kind: Any, count: int) -> np.ndarray:
    """(count * size,) uint8: values as the file holds them; all bit patterns that mean something."""
    size = kind.get_size()
    raw = w.rng.integers(0, 256, (count, size), dtype=np.uint8)
    raw[w.rng.random(count) < w.one_of([0, 0.5, 0.9])] = 0
    legal(w, kind, raw)
    return raw.reshape(-1)


def legal(w: Draw, kind: Any, raw: np.ndarray) -> None:
    """raw: (count, size of the type) uint8, changed in place."""
    what = kind.get_class()
    if what == h5t.STRING:
        letters = np.frombuffer("abc é.".encode(), np.uint8) if w.chance(0.1) else np.frombuffer(b"ab c1.", np.uint8)
        raw[:] = letters[raw % len(letters)] * (raw > 40)
    elif what == h5t.ENUM:
        if kind.dtype == bool:
            raw &= 1
        elif w.chance(0.8):
            value = [kind.get_member_value(k) for k in range(kind.get_nmembers())]
            base = kind.get_super().dtype
            raw[:] = np.array([w.one_of(value) for _ in range(len(raw))], base).view(np.uint8).reshape(len(raw), -1)
    elif what == h5t.INTEGER and kind.get_size() == 8 and kind.get_sign() == h5t.SGN_NONE and w.chance(0.9):
        raw[:, 7 if kind.get_order() == h5t.ORDER_LE else 0] &= 127  # above int64 is an error
    elif what == h5t.ARRAY:
        inner = kind.get_super()
        legal(w, inner, raw.reshape(-1, inner.get_size()))
    elif what == h5t.COMPOUND:
        for k in range(kind.get_nmembers()):
            begin, inner = kind.get_member_offset(k), kind.get_member_type(k)
            legal(w, inner, raw[:, begin : begin + inner.get_size()])


def random_objects(w: Draw, kind: Any, count: tuple[int, ...]) -> Any:
    """Values of a type of variable length, as Python objects; None: it is of fixed size. ValueError: not drawn here."""
    if kind.get_class() == h5t.STRING and kind.is_variable_str():
        words = ["", "a", "two words", "ü", "x" * 50]
        return np.array([w.one_of(words) for _ in range(int(np.prod(count)))], object).reshape(count)
    if kind.get_class() == h5t.VLEN:
        inner = kind.get_super()
        if inner.get_class() not in (h5t.INTEGER, h5t.FLOAT, h5t.BITFIELD):
            raise ValueError("samples of objects")
        out = np.empty(int(np.prod(count)), object)
        for k in range(len(out)):
            size = w.between(0, 5)
            out[k] = random_bytes(w, inner, size).view(inner.dtype) if inner.dtype.itemsize == inner.get_size() else \
                w.rng.integers(0, 9, size).astype(inner.dtype)  # fmt: skip
        return out.reshape(count)
    if kind.detect_class(h5t.VLEN) or kind.get_class() == h5t.REFERENCE or kind.detect_class(h5t.REFERENCE):
        raise ValueError("objects inside")
    if kind.get_class() in (h5t.ARRAY, h5t.COMPOUND) and "O" in str(kind.dtype):
        raise ValueError("objects inside")
    return None


def some_filters(w: Draw) -> list[str]:
    usual = ["nbit", "scale", "shuffle", "deflate", "lzf", "szip", "plugin", "fletcher32"]
    kinds = ["shuffle", "deflate", "deflate", "fletcher32", "plugin"] if w.chance(0.6) else usual
    chosen = [w.one_of(kinds) for _ in range(w.one_of([0, 0, 1, 1, 1, 2, 2, 3]))]
    chosen = sorted(set(chosen), key=usual.index) if w.chance(0.6) else chosen
    # these three must come first and alone: after another filter HDF5 reads memory that nobody has written
    first = [name for name in chosen if name in ("nbit", "scale", "szip")][:1]
    return first + [name for name in chosen if name not in ("nbit", "scale", "szip")]


def add_filters(w: Draw, create: Any, kind: Any) -> None:
    for name in some_filters(w):
        flag = w.one_of([h5z.FLAG_OPTIONAL, h5z.FLAG_OPTIONAL, 0])
        if name == "deflate":
            create.set_filter(DEFLATE, flag, (w.between(0, 9),))
        elif name == "shuffle":
            create.set_filter(SHUFFLE, flag, ())
        elif name == "fletcher32":
            create.set_fletcher32()
        elif name == "lzf":
            create.set_filter(LZF, flag, ())
        elif name == "szip":
            create.set_szip(w.one_of([h5z.SZIP_EC_OPTION_MASK, h5z.SZIP_NN_OPTION_MASK]), w.one_of([2, 4, 8, 16]))
        elif name == "nbit":
            create.set_filter(NBIT, flag, ())
        elif name == "scale":
            whole = kind.get_class() == h5t.INTEGER
            create.set_scaleoffset(h5z.SO_INT if whole else h5z.SO_FLOAT_DSCALE, w.between(0, 4))
        else:
            made = w.one_of(PLUGINS)(w)
            create.set_filter(made["compression"], flag, made["compression_opts"])
    if w.chance(0.1):
        set_chunk_opts(create)


PLUGINS: list[Any] = [
    lambda w: hdf5plugin.Blosc(cname=w.one_of(["lz4", "zstd"]), shuffle=w.between(0, 2)),
    lambda w: hdf5plugin.LZ4(nbytes=w.one_of([0, 16, 64])),
    lambda w: hdf5plugin.Zstd(clevel=w.between(1, 19)),
    lambda w: hdf5plugin.Blosc(
        cname=w.one_of(["blosclz", "lz4", "lz4hc", "zlib", "zstd"]), clevel=w.between(0, 9), shuffle=w.between(0, 2)
    ),
    lambda w: hdf5plugin.Blosc2(cname=w.one_of(["blosclz", "lz4", "zstd"]), clevel=w.between(0, 9)),
    lambda w: hdf5plugin.Bitshuffle(cname=w.one_of(["none", "lz4", "zstd"])),
    lambda w: hdf5plugin.BZip2(),
]


def stored(w: Draw, dset: h5py.Dataset, raw: np.ndarray) -> tuple[bytes, int]:
    """(a chunk's bytes with some filters left out, the mask that says which). Only two are known here."""
    create = dset.id.get_create_plist()
    numbers = [create.get_filter(k)[0] for k in range(create.get_nfilters())]
    mask = sum(1 << k for k, n in enumerate(numbers) if n not in (DEFLATE, SHUFFLE) or w.chance(0.5))
    data, width = raw.tobytes(), dset.id.get_type().get_size()
    for k, number_of_filter in enumerate(numbers):
        if mask >> k & 1:
            continue
        if number_of_filter == DEFLATE:
            data = zlib.compress(data)
        else:
            whole = len(data) // width * width
            body = np.frombuffer(data[:whole], np.uint8).reshape(-1, width).T.tobytes()
            data = body + data[whole:]
    return data, mask
