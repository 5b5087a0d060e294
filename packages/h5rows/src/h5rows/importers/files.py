"""Read one file per sample from folders: root/[train|val|test/][class/]name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any
from unicodedata import normalize

import numpy as np

from h5rows.errors import ConfigError
from h5rows.importers.folders import walk
from h5rows.importers.images import SUFFIXES, ImageDecoder
from h5rows.importers.values import field_of, read_npy, read_pth
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, Field, SampleSource, first_readable, ranges


class FileSource(SampleSource):
    """One sample per file below `root`; `label` is the number of its class folder. Files of other kinds are left out.

    decode: (path, name) -> value of the field `name`."""

    def __init__(
        self, root: Path, options: PackOptions, suffixes: Collection[str], name: str, decode: Callable[..., np.ndarray]
    ) -> None:
        self.root, self.name, self.decode = root, name, decode
        kinds = " ".join(sorted(suffixes))
        if not root.is_dir():
            raise ConfigError(f"{root} is a file; give a folder with one file per sample ({kinds})")
        found = self._find(suffixes, options.external)
        words = split_words(root, {folders[0] for folders, _ in found if folders})
        if words:
            for folders, file in found:
                if not folders:
                    self.account.leave("files", file, "not in the folder of a split")
            found = [(folders, file) for folders, file in found if folders]
        if not found:
            raise ConfigError(f"{root} contains no files of this kind ({kinds})")
        self.files = [file for _, file in found]  # those of each split are consecutive
        self.splits = ranges(Counter(words[folders[0]] if words else "" for folders, _ in found))
        labels = ["".join(folders[bool(words) :][:1]) for folders, _ in found]
        classes = sorted(set(labels))
        if "" in classes and len(classes) > 1:
            what = f"{root} mixes class folders and files without a class, such as {self.files[labels.index('')]!r}"
            raise ConfigError(f"{what}; move them into a folder")
        if len({normalize("NFC", label) for label in classes}) < len(classes):  # macOS writes NFD
            raise ConfigError(f"{root}: names of classes differ only in their Unicode form; rename those of one split")
        first = first_readable(len(found), lambda row: decode(self.path(row), self.files[row]), root)
        self.fields = {name: field_of(decode, first, options.variable, name)}
        if classes != [""]:
            numbers = {label: k for k, label in enumerate(classes)}
            self.labels = np.array([numbers[label] for label in labels], np.int64)
            self.fields["label"] = Field((), self.labels.dtype, {"classes": classes})

    def _find(self, suffixes: Collection[str], external: str) -> list[tuple[tuple[str, ...], str]]:
        """Return (folders above the file, path of the file) below root for each file of these suffixes."""
        found: list[tuple[tuple[str, ...], str]] = []
        why = f"not {' '.join(sorted(suffixes))}" if len(suffixes) < 4 else "not an image"
        for folder, names, files in walk(self.root, external):
            below = Path(folder).relative_to(self.root).parts
            mine = [file for file in files if os.path.splitext(file)[1].lower() in suffixes]
            for file in sorted(set(files) - set(mine)):
                self.account.leave("files", os.path.join(*below, file), why)
            if below and not names and not mine:
                raise ConfigError(f"folder {folder} contains no images or samples; fill it or remove it")
            found += [(below, os.path.join(*below, file)) for file in mine]
        return found

    def path(self, row: int) -> str:
        """Return the path of a sample's file."""
        return os.path.join(self.root, self.files[row])

    def name_of(self, row: int) -> str:
        """Return the path of a sample's file below root."""
        return self.files[row]

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        """Return these fields of a sample."""
        return {f: self.decode(self.path(row), self.files[row]) if f == self.name else self.labels[row] for f in fields}


def split_words(root: Path, folders: set[str]) -> dict[str, str]:
    """Return {folder: split}; empty if no folder is named like a split. Raise ConfigError for a mixture."""
    words = {name: SPLIT_NAMES[name.lower()] for name in sorted(folders) if name.lower() in SPLIT_NAMES}
    if words and (loose := sorted(folders - set(words))):
        raise ConfigError(f"{root} has the splits {sorted(words)} and also the folder {loose[0]!r}: move it")
    if len(set(words.values())) < len(words):
        raise ConfigError(f"{root}: two folders have the same split: {words}; rename one")
    return words


def open_images(root: Path, options: PackOptions) -> FileSource:
    """Open a folder with one image file per sample."""
    source = FileSource(root, options, SUFFIXES, "image", ImageDecoder(options))
    source.remedy = "; size= resizes all images, variable=True keeps their sizes"
    return source


def open_samples(root: Path, options: PackOptions) -> FileSource:
    """Open a folder with one .npy or .pth file per sample."""
    return FileSource(root, options, {".npy", ".pth", ".pt"}, "x", read_sample)


def read_sample(path: str, name: str) -> np.ndarray:
    """Return the array of a .npy or .pth file."""
    return read_npy(path, name) if path.lower().endswith(".npy") else read_pth(path, name)
