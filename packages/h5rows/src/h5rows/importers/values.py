"""Decode samples of LMDB, tar and TFRecord files: bytes -> array, by a kind that is given or detected."""

from __future__ import annotations

import io
import itertools
import os
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from glob import escape, glob
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, first_line, machine_fault, need
from h5rows.importers.folders import check_inside, check_kind, files_of
from h5rows.importers.images import ImageDecoder
from h5rows.options import PackOptions
from h5rows.reading.texts import image_of
from h5rows.source import SPLIT_NAMES, BadSample, Field, SampleSource, bad, first_readable, ranges

TEXT = {"encoding": "utf-8"}
Decode = Callable[[Any, object], np.ndarray]  # (bytes, name of the sample) -> array
WIDENED: set[str] = set()  # types that were read and that NumPy does not have
WHOLE_NUMBER = re.compile(rb"0|-?[1-9][0-9]*")  # str(int(x)) == x for these
# the name of a file of a set: number, number of files, a hash of its own from push_to_hub of Hugging Face, suffix
SHARD = re.compile(r"(.*)-\d+-of-(\d+)(?:-[0-9a-f]{16})?(.*)", re.DOTALL)
AS_TEXT = "kinds={'NAME': 'text'} keeps it"


def guess(raw: bytes, where: object) -> str:
    """Return the kind of bytes whose kind was not given. Raise ConfigError for a pickle or unknown bytes."""
    if image_of(raw):
        return "image"
    if raw.startswith(b"\x93NUMPY"):
        return "npy"
    if raw.startswith(b"PK\x03\x04"):
        return "pth"
    if re.match(rb"\x80[\2-\5]", raw):
        raise ConfigError(f"{where} is a Python pickle, which could run code when read; write plain arrays or images")
    try:
        text = raw.decode()
    except UnicodeDecodeError:
        raise ConfigError(
            f"{where}: {len(raw)} bytes of unknown kind; give it, such as kinds={{'NAME': 'uint8:3,32,32'}}"
        ) from None
    return "number" if WHOLE_NUMBER.fullmatch(text.strip().encode()) else "text"


def decoder(kind: str, options: PackOptions, name: str) -> Decode:
    """Return the decoder of a kind, such as image or uint8:3,32,32. Raise ConfigError if it is unknown."""
    plain = {"npy": read_npy, "pth": read_pth, "text": read_text, "int": read_int, "float": read_float}
    plain["number"] = read_number
    if kind == "image":
        return ImageDecoder(options)
    if kind in plain:
        return plain[kind]
    try:
        type_name, _, sides = kind.partition(":")
        return partial(read_raw, np.dtype(type_name), tuple(int(s) for s in sides.split(",") if s))
    except (TypeError, ValueError):
        what = f"kinds={{{name!r}: {kind!r}}}: give image, npy, pth, text, int, float"
        raise ConfigError(f"{what}, or a type and shape such as uint8:3,32,32") from None


def read_raw(dtype: np.dtype, shape: tuple[int, ...], raw: bytes, name: object) -> np.ndarray:
    """Return numbers from raw bytes. Raise BadSample if their number is wrong."""
    size = int(np.prod(shape)) * dtype.itemsize
    if len(raw) != size:
        raise BadSample(name, f"has {len(raw)} bytes, but {dtype}:{shape} has {size}")
    return np.frombuffer(raw, dtype).reshape(shape)


def read_npy(raw: bytes | str, name: object, mapped: bool = False) -> np.ndarray:
    """Return the array of a .npy file from its bytes or path. mapped: memory-map the path."""
    try:
        return np.load(
            io.BytesIO(raw) if isinstance(raw, bytes) else raw, mmap_mode="r" if mapped else None, allow_pickle=False
        )
    except (ValueError, OSError, EOFError) as error:
        raise bad(name, error, f"cannot be read as .npy: {explain(error)}") from None


def explain(error: Exception) -> str:
    """Return the error of numpy.load as text, with a remedy for pickled objects."""
    if why := machine_fault(error):
        return why
    if "pickled" in str(error):
        return "it is not a .npy or .npz file, or it is a pickle, which could run code when read; save plain arrays"
    if "allow_pickle" in str(error) or "Python objects" in str(error):
        return "it contains Python objects, which could run code when read; save plain arrays"
    return "it is empty or cut off" if isinstance(error, EOFError) else str(error)


def load_torch(raw: bytes | str, name: object, mapped: bool = False) -> Any:
    """Return the content of a file of torch.save, read with weights_only, which runs no code."""
    torch = need("torch", f"reading {name}", "torch")
    file = io.BytesIO(raw) if isinstance(raw, bytes) else raw
    try:
        return torch.load(file, weights_only=True, map_location="cpu", mmap=mapped)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError ...
        if "mmap can only be used" in str(error):
            why = "is not a file of torch.save, or has the format of torch < 1.6; load it and save it again"
            raise BadSample(name, why) from None
        if code := re.search(r"GLOBAL (\S+)", str(error)):
            raise BadSample(name, f"contains {code[1]}, which could run code when read; save plain tensors") from None
        why = f"cannot be read by torch.load(weights_only=True): {first_line(error)}; save plain tensors"
        raise bad(name, error, why) from None


def read_pth(raw: bytes | str, name: object) -> np.ndarray:
    """Return the only tensor of a file of torch.save. Raise BadSample for other content."""
    value = load_torch(raw, name)
    import torch

    if not isinstance(value, torch.Tensor):
        raise BadSample(name, f"contains a {type(value).__name__}, not one tensor")
    try:
        return to_numpy(value)
    except ValueError as error:
        raise BadSample(name, error) from None


def to_numpy(tensor: Any) -> np.ndarray:
    """Return a tensor as array; bfloat16 and float8 become float32. Raise ValueError if NumPy cannot represent it."""
    narrow = str(tensor.dtype).startswith(("torch.bfloat16", "torch.float8"))
    if narrow:
        WIDENED.add(str(tensor.dtype).removeprefix("torch."))
    try:
        wide = tensor.float() if narrow else tensor
        return wide.detach().resolve_conj().resolve_neg().numpy()
    except Exception as error:  # sparse, quantized, nested, on `meta` ...: torch raises TypeError, RuntimeError ...
        kind = f"{tensor.dtype}, {str(tensor.layout).removeprefix('torch.')}, on {tensor.device}"
        raise ValueError(f"is a tensor that NumPy cannot represent ({kind}): {first_line(error)}") from None


def read_text(raw: bytes, name: object) -> np.ndarray:
    """Return UTF-8 bytes, (n,) uint8. Raise BadSample for other encodings."""
    try:
        raw.decode()
    except UnicodeDecodeError as error:
        raise BadSample(name, f"is not UTF-8: {error}") from None
    return np.frombuffer(raw, np.uint8)


def read_number(raw: bytes, name: object) -> np.ndarray:
    """Return a detected whole number. Raise BadSample for text such as 007, which may be a name."""
    if not WHOLE_NUMBER.fullmatch(raw.strip()) and re.fullmatch(rb"[+-]?[0-9_]+", raw.strip()):
        why = f"{AS_TEXT} as text, kinds={{'NAME': 'int'}} reads the number"
        raise BadSample(name, f"is {raw.strip()[:30].decode()!r}, which may be a name or a number; {why}")
    return read_int(raw, name)


def read_int(raw: bytes, name: object) -> np.ndarray:
    """Return a whole number as int64, shape ()."""
    try:
        return np.array(int(raw), np.int64)
    except ValueError:
        raise BadSample(name, f"is not a whole number: {raw[:20]!r}; {AS_TEXT}") from None
    except OverflowError:
        raise BadSample(name, f"is a whole number of more than 63 bits: {raw[:30]!r}; {AS_TEXT}") from None


def read_float(raw: bytes, name: object) -> np.ndarray:
    """Return a number as float64, because other samples may need more digits than float32 has."""
    try:
        value = float(raw)
    except ValueError:
        raise BadSample(name, f"is not a number: {raw[:20]!r}; {AS_TEXT}") from None
    if re.fullmatch(rb"[+-]?[0-9]+", raw.strip()) and (np.isinf(value) or int(value) != int(raw)):
        raise BadSample(name, f"has more digits than float64: {raw[:30]!r}; {AS_TEXT}")
    return np.array(value, np.float64)


def field_of(decode: Decode, first: np.ndarray, variable: bool, name: str) -> Field:
    """Return the field for values like `first`."""
    if isinstance(decode, ImageDecoder):
        return decode.field(first, name)
    if decode is read_text:
        return Field((None,), first.dtype, TEXT)
    return Field((None,) * first.ndim if variable and first.ndim else first.shape, first.dtype)


class EncodedSource(SampleSource):
    """Samples of encoded fields. A subclass implements `raw`, and calls `learn` when samples can be read."""

    decoders: dict[str, Decode]

    def raw(self, row: int) -> dict[str, Any]:
        """Return {field: bytes, or an array that needs no decoding}. Raise BadSample if it cannot be read."""
        raise NotImplementedError

    def learn(self, size: int, options: PackOptions, where: Path, usual: Mapping[str, str] | None = None) -> None:
        """Set kinds and fields from the first readable sample. usual: kinds of fields that are not in options.kinds."""
        self._chosen = bool(options.fields)

        def learn_from(row: int) -> dict[str, Any]:
            self.fields, self.decoders = {}, {}
            values = self.raw(row)
            for name, raw in values.items():
                if not isinstance(raw, bytes):
                    self.fields[name] = Field((None,) if options.variable and raw.ndim else raw.shape, raw.dtype)
                    continue
                given = options.kinds.get(name) or (usual or {}).get(name) or guess(raw, f"{where}: {name}")
                self.decoders[name] = decoder(given, options, name)
                first = self.decoders[name](raw, self.name_of(row))
                self.fields[name] = field_of(self.decoders[name], first, options.variable, name)
            return values

        values = first_readable(size, learn_from, where)
        if unknown := sorted(set(options.kinds) - set(values)):
            raise ConfigError(f"kinds=: {where} has no field {unknown[0]!r}; it has {sorted(values)}")

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Return these fields of a sample, decoded."""
        raws = self.raw(row)
        if not self._chosen and (more := sorted(set(raws) - set(self.fields))):
            first = f"the first sample ({self.name_of(0)}) has only {sorted(self.fields)}"
            raise ConfigError(f"{self.name_of(row)} has a field {more[0]!r}, {first}; choose with fields=")
        for name in fields:
            if name not in raws:
                raise BadSample(self.name_of(row), f"has no field {name!r}")
            if isinstance(raws[name], bytes) != (name in self.decoders):
                here, first = ("numbers", "bytes") if name in self.decoders else ("bytes", "numbers")
                what = f"{self.name_of(row)} has {here}, {self.name_of(0)} has {first}"
                raise ConfigError(f"field {name}: {what}; write one type, or leave the field out (fields=)")
        return {
            name: self.decoders[name](raws[name], f"{self.name_of(row)}: {name}")
            if name in self.decoders
            else raws[name]
            for name in fields
        }


class ShardSource(EncodedSource):
    """Samples at known offsets in files of one kind, such as ".tar"."""

    _number = _descriptor = -1  # the open file
    _close: Callable[[], object] = staticmethod(lambda: None)

    def __init__(self, path: Path, kind: str, options: PackOptions) -> None:
        by_split = files_by_split(path, (kind,), options.external, self.account)
        self.files = [file for files in by_split.values() for file in files]
        counts = iter([self.index(number, file) for number, file in enumerate(self.files)])
        self.splits = ranges({split: sum(next(counts) for _ in files) for split, files in by_split.items()})

    def index(self, number: int, file: Path) -> int:
        """Find the samples of files[number], and return their number."""
        raise NotImplementedError

    def piece(self, number: int, offset: int, size: int) -> bytes:
        """Return bytes of files[number]; fewer if the file has become shorter."""
        if number != self._number:  # one file is open at a time, because there may be more than a process may open
            descriptor = os.open(self.files[number], os.O_RDONLY)  # an error leaves the other file open
            self._close()
            self._number, self._descriptor, self._close = number, descriptor, finalize(self, os.close, descriptor)
        return os.pread(self._descriptor, size, offset)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_number", "_close")}


def files_by_split(path: Path, kinds: Sequence[str], external: str, account: Account) -> dict[str, list[Path]]:
    """Return {split: files} of a set of shards, in a folder or matched by a pattern.

    The split is in the folder or name of each file (train-0001.tar); otherwise it is "". kinds: suffixes such as
    ".tar"; other files of the folder are left out. A link out of the folder before the first * or ? of a pattern is an
    error."""
    if path.is_dir():
        files = files_of(path, lambda name: is_kind(name, kinds), f"not {' '.join(kinds)}", external, account)
        leave_missing(files, account)
    elif path.is_file():
        files = [path]
    else:
        files = [Path(p) for p in sorted(glob(str(path)))]
        plain = list(itertools.takewhile(lambda part: part == escape(part), path.parent.parts))
        for file in files:
            check_kind(file)
            check_inside(file, os.path.realpath(Path(*plain)), external)
    if not files:
        raise ConfigError(f"{path} contains no files of this format")
    splits = [split_of(f.relative_to(path).parts if path.is_dir() else (f.name,)) for f in files if f != path] or [""]
    if "" in splits and any(splits):
        what = f"{path} has files of the splits {sorted({*splits} - {''})} and also {files[splits.index('')]}, of none"
        raise ConfigError(f"{what}: begin its name with train, val or test, or rename the others")
    return {split: [f for f, s in zip(files, splits, strict=True) if s == split] for split in dict.fromkeys(splits)}


def leave_missing(files: Sequence[Path], account: Account) -> None:
    """Record as left out the files that a set lacks by its names, such as train-00001-of-00003.parquet."""
    sets: Counter[tuple[Path, str, int]] = Counter()
    for file in files:
        if found := SHARD.fullmatch(file.name):
            sets[file.parent, f"{found[1]}-*-of-{found[2]}{found[3]}", int(found[2])] += 1
    for (_, name, size), count in sets.items():
        if (lost := size - count) > 0:
            account.leave("files", name, f"{lost:,} of its {size:,} files {'is' if lost == 1 else 'are'} missing")


def is_kind(name: str, kinds: Sequence[str]) -> bool:
    """Return True if the name has one of these suffixes; name.tfrecord-00000-of-00010 has .tfrecord."""
    return name.lower().endswith(tuple(kinds)) or (".tfrecord" in kinds and ".tfrecord" in name)


def split_of(parts: tuple[str, ...]) -> str:
    """Return the split that a folder or file name begins with; "" if there is none."""
    for part in parts:
        word = part.lower()
        for name, split in SPLIT_NAMES.items():
            if word == name or (word.startswith(name) and not word[len(name)].isalnum()):
                return split
    return ""
