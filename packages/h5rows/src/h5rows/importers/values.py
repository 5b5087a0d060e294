"""Encoded samples: bytes of a file or a table's cell -> array, by a kind that is given or guessed; files by split."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections.abc import Callable, Sequence
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line
from h5rows.importers.folders import check_inside, check_kind, files_of
from h5rows.importers.images import ImageDecoder
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, BadSample, Field, bad

TEXT = {"encoding": "utf-8"}
IMAGE_MAGIC = (b"\x89PNG", b"\xff\xd8\xff", b"GIF8", b"BM", b"II*\0", b"MM\0*", b"P5", b"P6")
Decode = Callable[[Any, object], np.ndarray]  # (bytes, name of the sample) -> array
WIDENED: set[str] = set()  # types that this process has met and NumPy lacks


def guess(raw: bytes, where: object) -> str:
    """The kind of a value that nobody named."""
    if raw.startswith(IMAGE_MAGIC) or (raw[:4] == b"RIFF" and raw[8:12] == b"WEBP"):
        return "image"
    if raw.startswith(b"\x93NUMPY"):
        return "npy"
    if raw.startswith(b"PK\x03\x04"):
        return "pth"
    if re.match(rb"\x80[\2-\5]", raw):
        raise ConfigError(f"{where} is a Python pickle, which could run code when read; write plain arrays or images")
    raise ConfigError(
        f"{where}: {len(raw)} bytes of unknown kind; say which: kinds={{'NAME': 'uint8:3,32,32'}}, or 'text'"
    )


def decoder(kind: str, options: PackOptions, name: str) -> Decode:
    plain = {"npy": read_npy, "pth": read_pth, "text": read_text}
    if kind == "image":
        return ImageDecoder(options)
    if kind in plain:
        return plain[kind]
    try:
        type_name, _, sides = kind.partition(":")
        return partial(read_raw, np.dtype(type_name), tuple(int(s) for s in sides.split(",") if s))
    except (TypeError, ValueError):
        what = f"kinds={{{name!r}: {kind!r}}}: give image, npy, pth, text"
        raise ConfigError(f"{what}, or a type and shape such as uint8:3,32,32") from None


def read_raw(dtype: np.dtype, shape: tuple[int, ...], raw: bytes, name: object) -> np.ndarray:
    """Numbers as they lie in memory."""
    size = int(np.prod(shape)) * dtype.itemsize
    if len(raw) != size:
        raise BadSample(name, f"has {len(raw)} bytes, {dtype}:{shape} takes {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


def read_npy(raw: bytes | str, name: object, mapped: bool = False) -> np.ndarray:
    """Of the bytes of a file, or of its path, which may be mapped."""
    try:
        return np.load(
            io.BytesIO(raw) if isinstance(raw, bytes) else raw, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except (ValueError, OSError, EOFError) as error:
        raise bad(name, error, f"cannot be read as .npy: {explain(error)}") from None


def explain(error: Exception) -> str:
    if "pickle" in str(error):
        return "it holds Python objects, which could run code when read; save plain arrays"
    return str(error)


def load_torch(raw: bytes | str, name: object, mapped: bool = False) -> Any:
    """What torch.save wrote; read with weights_only, which runs no code."""
    import torch

    file = io.BytesIO(raw) if isinstance(raw, bytes) else raw
    try:
        return torch.load(file, weights_only=True, map_location="cpu", mmap=mapped)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError ...
        if "mmap can only be used" in str(error):
            raise BadSample(name, "is of the format before torch 1.6; load it and save it again") from None
        why = f"cannot be read by torch.load(weights_only=True): {first_line(error)}; save plain tensors"
        raise bad(name, error, why) from None


def read_pth(raw: bytes | str, name: object) -> np.ndarray:
    """The only tensor in a file of torch.save."""
    import torch

    value = load_torch(raw, name)
    if not isinstance(value, torch.Tensor):
        raise BadSample(name, f"holds a {type(value).__name__}, not one tensor")
    try:
        return to_numpy(value)
    except ValueError as error:
        raise BadSample(name, error) from None


def to_numpy(tensor: Any) -> np.ndarray:
    """bfloat16 and float8 become float32, which holds the same values and NumPy knows. ValueError: no plain numbers."""
    narrow = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))
    if narrow:
        WIDENED.add(str(tensor.dtype).removeprefix("torch."))
    try:
        wide = tensor.float() if narrow else tensor
        return wide.detach().resolve_conj().resolve_neg().numpy()
    except Exception as error:  # sparse, quantized, nested, on `meta` ...: torch raises TypeError, RuntimeError ...
        kind = f"{tensor.dtype}, {str(tensor.layout).removeprefix('torch.')}, on {tensor.device}"
        raise ValueError(f"is a tensor that NumPy cannot hold ({kind}): {first_line(error)}") from None


def read_text(raw: bytes, name: object) -> np.ndarray:
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise BadSample(name, f"is not UTF-8: {error}") from None
    return np.frombuffer(raw, np.uint8)


def field_of(decode: Decode, first: np.ndarray, variable: bool, name: str) -> Field:
    if isinstance(decode, ImageDecoder):
        return decode.field(first, name)
    if decode is read_text:
        return Field((None,), first.dtype, TEXT)
    return Field((None,) * first.ndim if variable and first.ndim else first.shape, first.dtype)


def files_by_split(path: Path, kinds: Sequence[str], external: str, account: Account) -> dict[str, list[Path]]:
    """The files of a set, in a folder or named by a pattern; by split if the folder or name of each (train-0001.csv)
    says one, else under "". kinds: such as ".csv"; other files of the folder are left out. A pattern names files in the
    folder before its first * or ?: a link out of this is nobody's argument."""
    if path.is_dir():
        wanted, why = tuple(kinds), f"no {' '.join(kinds)}"
        files = files_of(path, lambda name: name.lower().endswith(wanted), why, external, account)
    elif path.is_file():
        files = [path]
    else:
        files = [Path(p) for p in sorted(glob(str(path)))]
        plain = list(itertools.takewhile(lambda part: part == escape(part), path.parent.parts))
        for file in files:
            check_kind(file)
            check_inside(file, os.path.realpath(Path(*plain)), external)
    if not files:
        raise ConfigError(f"{path} holds no such files")
    splits = [split_of(f.relative_to(path).parts if path.is_dir() else (f.name,)) for f in files if f != path]
    if not all(splits) or not splits:
        return {"": files}
    return {split: [f for f, s in zip(files, splits, strict=True) if s == split] for split in dict.fromkeys(splits)}


def split_of(parts: tuple[str, ...]) -> str:
    for part in parts:
        word = part.lower()
        for name, split in SPLIT_NAMES.items():
            if word == name or (word.startswith(name) and not word[len(name)].isalnum()):
                return split
    return ""
