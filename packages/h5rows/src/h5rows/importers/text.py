"""Read text files as one stream of token ids; splits are taken from its end."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError, need
from h5rows.importers.values import files_by_split
from h5rows.options import PackOptions
from h5rows.source import ArraySource

PIECE = 1 << 24  # characters per call of a tokenizer, cut at the end of a line


Encode = Callable[[str], Any]  # text -> ids


def open_text(path: Path, options: PackOptions) -> ArraySource:
    """Open text files: the field `tokens`, with the tokenizer and the size of its vocabulary as attributes."""
    account = Account()
    by_split = files_by_split(path, (".txt",), options.external, account)
    files = [f for found in by_split.values() for f in found]
    if empty := [f for f in files if not f.stat().st_size]:
        raise ConfigError(f"{empty[0]} is empty")
    if options.tokenizer == "bytes":
        attrs: dict[str, Any] = {"vocab_size": 256}
        ids = {
            split: np.concatenate(raw) if len(raw := [np.memmap(f, np.uint8, "r") for f in found]) > 1 else raw[0]
            for split, found in by_split.items()
        }
    else:
        if options.tokenizer == "chars":
            vocab = sorted({c for f in files for piece in pieces(f) for c in set(piece)})
            codes = np.array([ord(c) for c in vocab], np.uint32)
            attrs = {"vocab_size": len(vocab), "vocab": vocab}
            encode: Encode = lambda text: np.searchsorted(codes, np.frombuffer(text.encode("utf-32-le"), np.uint32))  # noqa: E731
        else:
            loaded = tokenizer_file(options.tokenizer)
            attrs = {"vocab_size": loaded.get_vocab_size()}
            encode = lambda text: loaded.encode(text, add_special_tokens=False).ids  # noqa: E731
        ids = {split: spool(found, encode, attrs["vocab_size"]) for split, found in by_split.items()}
    tables = {split: {"tokens": values} for split, values in ids.items()}
    source = ArraySource(tables, {"tokens": {"tokenizer": options.tokenizer, **attrs}}, account, path)
    source.ordered = True
    return source


def pieces(file: Path) -> Iterator[str]:
    """Yield the text of a file in pieces that end with a line. Raise ConfigError if it is not UTF-8."""
    try:
        with open(file, encoding="utf-8", newline="") as stream:
            while text := stream.read(PIECE):
                yield text + stream.readline()
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file} is not UTF-8 ({error}); convert it, or tokenizer='bytes'") from None


def tokenizer_file(name: str, length: int | None = None) -> Any:
    """Return the Tokenizer of a JSON file, or of a folder written by transformers. length: truncate ids to it."""
    file = Path(name) / "tokenizer.json" if Path(name).is_dir() else Path(name)
    if not file.is_file():
        raise ConfigError(
            f"tokenizer={name!r}: {file} is missing; give a tokenizer.json or its folder (text files: bytes, chars too)"
        )
    loaded = need("tokenizers", f"tokenizer={name!r}", "tokenizers").Tokenizer.from_file(str(file))
    loaded.no_padding()
    if length:
        loaded.enable_truncation(length)
    else:
        loaded.no_truncation()
    return loaded


def spool(files: list[Path], encode: Encode, size: int) -> np.ndarray:
    """Return all ids of these files, each < `size`, from a temporary file, as their number is only known at the end."""
    dtype, count = np.min_scalar_type(size - 1), 0
    with tempfile.TemporaryFile() as file:
        for name in files:
            for text in pieces(name):
                ids = np.asarray(encode(text), dtype)
                count += len(ids)
                file.write(ids.tobytes())
        if not count:
            raise ConfigError(f"the tokenizer gives no ids for {files[0]}")
        file.flush()
        return np.memmap(file, dtype, "r", shape=(count,))  # stays readable after the file is closed
