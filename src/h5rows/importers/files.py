"""One file for each sample, in folders: root/[train|val|test/][class/]name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.account import Account
from h5rows.errors import ConfigError
from h5rows.importers.folders import walk
from h5rows.importers.images import SUFFIXES, ImageDecoder
from h5rows.importers.values import read_npy, read_pth
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, Bad, Field, Rows, SampleSource, first_readable, ranges


class FileSource(SampleSource):
    """One sample per file. decode: path -> value of field `name`. targets: field -> (value per file, attributes)."""

    def __init__(
        self,
        root: Path,
        files: list[str],
        splits: dict[str, Rows],
        name: str,
        decode: Callable[[str, str], np.ndarray],
        make_field: Callable[[np.ndarray, str], Field],
        targets: dict[str, tuple[np.ndarray, dict[str, Any]]],
    ) -> None:
        self.root, self.files, self.splits, self.image, self.decode = root, files, splits, name, decode
        if isinstance(decode, ImageDecoder):
            self.remedy = "; --size makes all one size (--variable keeps each, flat)"
        self.targets = {t: values for t, (values, _) in targets.items()}
        first = first_readable(len(files), lambda row: decode(self.path(row), files[row]), root)
        self.fields = {name: make_field(first, name)}
        self.fields |= {t: Field(v.shape[1:], v.dtype, attrs) for t, (v, attrs) in targets.items()}

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.files[row])

    def name_of(self, row: int) -> str:
        return self.files[row]

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        return {f: self.decode(self.path(row), self.files[row]) for f in fields}

    def read(self, rows: Rows, fields: Sequence[str]) -> tuple[dict[str, Any], list[Bad]]:
        out, bad = super().read(rows, [f for f in fields if f == self.image])
        where = np.delete(np.asarray(rows), [b.place for b in bad])
        return {f: out[f] if f == self.image else self.targets[f][where] for f in fields}, bad


def open_files(
    root: Path,
    options: PackOptions,
    suffixes: Collection[str],
    name: str,
    decode: Callable[[str, str], np.ndarray],
    make_field: Callable[[np.ndarray, str], Field],
) -> FileSource:
    """Files in folders, one for each sample, with the folder of its class as `label`. Other kinds are left out."""
    account = Account()
    found: list[tuple[tuple[str, ...], str]] = []  # (names of the folders that a file lies in, file), both below root
    why = f"no {' '.join(sorted(suffixes))}" if len(suffixes) < 4 else "no image"
    for folder, names, files in walk(root, options.external):
        below = Path(folder).relative_to(root)
        mine = [file for file in files if os.path.splitext(file)[1].lower() in suffixes]
        for file in sorted(set(files) - set(mine)):
            account.leave("files", os.path.join(*below.parts, file), why)
        if below.parts and not names and not mine:
            raise ConfigError(f"folder {folder} holds no images or samples; fill it or remove it")
        found += [(below.parts, os.path.join(*below.parts, file)) for file in mine]
    words = split_words(root, {folders[0] for folders, _ in found if folders})
    if words:
        for folders, file in found:
            if not folders:
                account.leave("files", file, "in the folder of no split")
        found = [(folders, file) for folders, file in found if folders]
    if not found:
        raise ConfigError(f"{root} holds no such files ({' '.join(sorted(suffixes))})")
    of_split = [words[folders[0]] if words else "" for folders, _ in found]
    splits = ranges(Counter(of_split))  # the files of each lie one after the other
    labels = ["".join(folders[bool(words) :][:1]) for folders, _ in found]
    classes = sorted(set(labels))
    if "" in classes and len(classes) > 1:
        what = f"{root} mixes class folders and files without a class, such as {found[labels.index('')][1]!r}"
        raise ConfigError(f"{what}; move them into a folder")
    targets: dict[str, tuple[np.ndarray, dict[str, Any]]] = {}
    if classes != [""]:
        numbers = {label: k for k, label in enumerate(classes)}
        targets["label"] = np.array([numbers[label] for label in labels], np.int64), {"classes": classes}
    source = FileSource(root, [file for _, file in found], splits, name, decode, make_field, targets)
    source.account = account
    return source


def split_words(root: Path, folders: set[str]) -> dict[str, str]:
    """Folder -> split; empty where none is called as one."""
    words = {name: SPLIT_NAMES[name.lower()] for name in sorted(folders) if name.lower() in SPLIT_NAMES}
    if words and (loose := sorted(folders - set(words))):
        raise ConfigError(f"{root} has the splits {sorted(words)} and also the folder {loose[0]!r}: move it")
    if len(set(words.values())) < len(words):
        raise ConfigError(f"{root}: two folders are one split: {words}; rename one")
    return words


def open_images(root: Path, options: PackOptions) -> FileSource:
    decoder = ImageDecoder(options)
    return open_files(root, options, SUFFIXES, "image", decoder, decoder.field)


def open_samples(root: Path, options: PackOptions) -> FileSource:
    """One .npy or .pth file for each sample."""

    def field(first: np.ndarray, name: str) -> Field:
        return Field((None,) * first.ndim if options.variable else first.shape, first.dtype)

    return open_files(root, options, {".npy", ".pth", ".pt"}, "x", read_sample, field)


def read_sample(path: str, name: str) -> np.ndarray:
    return read_npy(path, name) if path.lower().endswith(".npy") else read_pth(path, name)
