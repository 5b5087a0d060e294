"""Decode strings of HDF5 files as UTF-8, independent of the declared encoding, because h5py marks all bytes as
ASCII."""

from __future__ import annotations

import re
from contextlib import suppress
from typing import Any

import h5py
import numpy as np

from h5rows.errors import ConfigError, argument
from h5rows.reading.memory import CHEAP, check_declared

UTF_8 = "utf-8"
LOOKED_AT = 4096  # rows that `inspect` decodes
OTHERS = ("gb18030", "cp932", "euc_kr", "cp1252")  # encodings of programs that do not write UTF-8
# The first bytes of image files. A text may begin with BM or P5 too, so the numbers that follow are compared.
IMAGES = {
    "JPEG": rb"\xff\xd8\xff",
    "PNG": rb"\x89PNG",
    "GIF": rb"GIF8",
    "TIFF": rb"II\*\0|MM\0\*",
    "WebP": rb"RIFF....WEBP",
    "BMP": rb"BM....\0{4}",
    "PPM": rb"P[56]((\s|#[^\n]*\n)+\d+){3}\s",
}
DECODE = "decode them with PIL and write the pixels with h5rows.write"  # the remedy


def check_encoding(encoding: Any) -> str:
    """Return the encoding. Raise ConfigError if Python does not know it."""
    try:
        b"    ".decode(encoding)
    except UnicodeDecodeError:  # the encoding exists, but four spaces are invalid in it
        pass
    except (LookupError, TypeError):
        raise ConfigError(
            f"{argument('encoding')}={encoding}: no such encoding; try utf-8, gb18030 or latin-1"
        ) from None
    return str(encoding)


def image_of(raw: bytes) -> str | None:
    """Return the format if the bytes are an image file, otherwise None."""
    return next((name for name, magic in IMAGES.items() if re.match(magic, raw, re.DOTALL)), None)


def decoded(raw: bytes, where: str, encoding: str) -> str:
    """Return decoded bytes. where: for the message. Raise ConfigError if they are not in this encoding."""
    try:
        return raw.decode(encoding)
    except UnicodeDecodeError:
        if image := image_of(raw):
            raise ConfigError(f"{where} contains {image} files; {DECODE}") from None
        what = f"{where} contains {raw[:60]!r}, which is not {encoding.upper()}"
        raise ConfigError(f"{what}; give its encoding{_guess(raw)} ({argument('encoding')}=...)") from None


def name_of(value: Any, encoding: str = UTF_8) -> str:
    """Return a name from a dataset or an attribute as text. Bytes that cannot be decoded become \\x.., so that
    different names stay different."""
    if not isinstance(value, bytes):
        raw = str(value).encode(UTF_8, "surrogateescape")  # h5py's mark for bytes that are not UTF-8
        return str(value) if raw.decode(UTF_8, "replace") == str(value) else raw.decode(encoding, "backslashreplace")
    return value.decode(encoding, "backslashreplace")


def _guess(raw: bytes) -> str:
    for encoding in OTHERS:
        with suppress(UnicodeDecodeError):
            return f"; as {encoding} it is {raw.decode(encoding)[:60]!r}"
    return ""


def said_of(dset: h5py.Dataset, rows: int | None = LOOKED_AT) -> list[str]:
    """Return a line for the dataset, or for each of its members, whose strings are not UTF-8. rows: number of rows to
    check; None: all."""
    lines = []
    for member in dset.dtype.names or ("",):
        dtype, values = (dset.dtype[member], dset.fields(member)) if member else (dset.dtype, dset)
        if h5py.check_string_dtype(dtype) is None or not dset.size or not dset.ndim:
            continue
        check_declared(dset)
        end = min(len(dset), rows or len(dset))
        step = max(1, min(LOOKED_AT, CHEAP // max(1, dset.nbytes // len(dset))))
        blocks = (values[begin : min(end, begin + step)] for begin in range(0, end, step))
        others = (raw for block in blocks for raw in np.asarray(block).reshape(-1).tolist() if not _is_utf8(raw))
        if (raw := next(others, None)) is not None:
            what = f"member {member} contains" if member else "contains"
            lines.append(f"{what} {raw[:60]!r}, which is not UTF-8{_guess(raw)}; encoding=... decodes it")
    return lines


def _is_utf8(raw: bytes) -> bool:
    try:
        raw.decode()
    except UnicodeDecodeError:
        return False
    return True
