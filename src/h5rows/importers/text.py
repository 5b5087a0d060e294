"""Text as one stream of token ids; splits are cut off its end."""

from __future__ import annotations

import importlib
import re
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import ArraySource
from h5rows.importers.values import files_by_split
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions

PIECE = 1 << 24  # characters that a tokenizer gets at a time, cut at the end of a line


Encode = Callable[[str], Any]  # text -> ids


class TokenSource(ArraySource):
    ordered = True


def open_text(path: Path, options: PackOptions) -> TokenSource:
    """The field `tokens`; its attributes say which tokenizer, and how many ids there are where that is known."""
    account = Account()
    by_split = files_by_split(path, (".txt",), options.external, account)
    files = [f for found in by_split.values() for f in found]
    if empty := [f for f in files if not f.stat().st_size]:
        raise ConfigError(f"{empty[0]} is empty")
    attrs: dict[str, Any] = {"tokenizer": options.tokenizer}
    if options.tokenizer == "bytes":
        attrs["vocab_size"] = 256
        ids = {split: joined([np.memmap(f, np.uint8, "r") for f in found]) for split, found in by_split.items()}
    elif options.tokenizer == "chars":
        vocab = sorted({c for f in files for piece in pieces(f) for c in set(piece)})
        attrs |= {"vocab_size": len(vocab), "vocab": vocab}
        codes = np.array([ord(c) for c in vocab], np.uint32)
        ids = {split: spool(found, lambda text: char_ids(text, codes), len(vocab)) for split, found in by_split.items()}
    else:
        encode, size = tokenizer(options.tokenizer)
        if size:
            attrs["vocab_size"] = size
        ids = {split: spool(found, encode, size) for split, found in by_split.items()}
    tables = {split: {"tokens": values} for split, values in ids.items()}
    return TokenSource(tables, {"tokens": attrs}, account)


def joined(arrays: Sequence[np.ndarray]) -> np.ndarray:
    return arrays[0] if len(arrays) == 1 else np.concatenate(arrays)


def char_ids(text: str, codes: np.ndarray) -> np.ndarray:
    return np.searchsorted(codes, np.frombuffer(text.encode("utf-32-le"), np.uint32))


def pieces(file: Path) -> Iterator[str]:
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            while text := stream.read(PIECE):
                yield text + stream.readline()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error}); convert it, or --tokenizer bytes") from None


def tokenizer(name: str) -> tuple[Encode, int]:
    """(text -> ids, number of ids or 0 if unknown) of a tokenizers JSON file or of a function by its import path."""
    if name.endswith(".json") or Path(name).is_dir():
        loaded = tokenizer_file(name)
        return lambda text: loaded.encode(text, add_special_tokens=False).ids, loaded.get_vocab_size()
    module, colon, function = name.partition(":")
    if not colon or not re.fullmatch(r"[\w.]+", module):
        raise ConfigError(f"--tokenizer {name}: give bytes, chars, a tokenizers JSON file, or module:function")
    try:
        found: Any = importlib.import_module(module)
        for part in function.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise ConfigError(f"--tokenizer {name}: {error}") from None
    return found, 0


def tokenizer_file(name: str, length: int | None = None) -> Any:
    """The Tokenizer of a JSON file, or of the folder that transformers wrote one into. length: ids are cut to it."""
    file = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    if not file.is_file():
        raise ConfigError(f"--tokenizer {name}: no file {file}; give a tokenizers JSON file, or a folder with one")
    loaded = need("tokenizers", f"--tokenizer {name}", "tokenizers").Tokenizer.from_file(str(file))
    loaded.no_padding()
    if length:
        loaded.enable_truncation(length)
    else:
        loaded.no_truncation()
    return loaded


def spool(files: list[Path], encode: Encode, size: int) -> np.ndarray:
    """All ids of these files, through a temporary file: how many there are shows only at the end.

    size: how many there may be, whose type all take; 0: unknown, so uint32."""
    size = size or 1 << 32
    dtype, count = np.min_scalar_type(size - 1), 0
    with tempfile.TemporaryFile() as file:
        for name in files:
            for text in pieces(name):
                ids = np.asarray(encode(text), np.int64)
                if len(ids) and not 0 <= ids.min() <= ids.max() < size:
                    raise ConfigError(
                        f"{name}: the tokenizer gives ids {ids.min()} to {ids.max()}, not 0 to {size - 1}"
                    )
                count += len(ids)
                file.write(ids.astype(dtype).tobytes())
        if not count:
            raise ConfigError(f"the tokenizer gives no ids for {files[0]}")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(count,))  # stays readable after the file is closed
