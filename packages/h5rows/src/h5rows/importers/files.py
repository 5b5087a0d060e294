"""One file for each sample, in folders: root/[train|val|test/][class/]name."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.importers.folders import walk
from h5rows.importers.images import SUFFIXES, ImageDecoder
from h5rows.importers.values import field_of, read_npy, read_pth
from h5rows.options import PackOptions
from h5rows.source import SPLIT_NAMES, Field, SampleSource, first_readable, ranges


class FileSource(SampleSource):
    """One sample for each file below `root`, with the folder of its class as `label`. Other kinds are left out.

    decode: (path, name) -> value of the field `name`."""

    def __init__(
        self, root: Path, options: PackOptions, suffixes: Collection[str], name: str, decode: Callable[..., np.ndarray]
    ) -> None:
        self.root, self.name, self.decode = root, name, decode
        found = self._find(suffixes, options.external)
        words = split_words(root, {folders[0] for folders, _ in found if folders})
        if words:
            for folders, file in found:
                if not folders:
                    self.account.leave("files", file, "in the folder of no split")
            found = [(folders, file) for folders, file in found if folders]
        if not found:
            raise ConfigError(f"{root} holds no such files ({' '.join(sorted(suffixes))})")
        self.files = [file for _, file in found]
        # the files of each split lie one after the other
        self.splits = ranges(Counter(words[folders[0]] if words else "" for folders, _ in found))
        labels = ["".join(folders[bool(words) :][:1]) for folders, _ in found]
        classes = sorted(set(labels))
        if "" in classes and len(classes) > 1:
            what = f"{root} mixes class folders and files without a class, such as {self.files[labels.index('')]!r}"
            raise ConfigError(f"{what}; move them into a folder")
        first = first_readable(len(found), lambda row: decode(self.path(row), self.files[row]), root)
        self.fields = {name: field_of(decode, first, options.variable, name)}
        if classes != [""]:
            numbers = {label: k for k, label in enumerate(classes)}
            self.labels = np.array([numbers[label] for label in labels], np.int64)
            self.fields["label"] = Field((), self.labels.dtype, {"classes": classes})

    def _find(self, suffixes: Collection[str], external: str) -> list[tuple[tuple[str, ...], str]]:
        """(names of the folders that a file lies in, the file), both below root."""
        found: list[tuple[tuple[str, ...], str]] = []
        why = f"no {' '.join(sorted(suffixes))}" if len(suffixes) < 4 else "no image"
        for folder, names, files in walk(self.root, external):
            below = Path(folder).relative_to(self.root).parts
            mine = [file for file in files if os.path.splitext(file)[1].lower() in suffixes]
            for file in sorted(set(files) - set(mine)):
                self.account.leave("files", os.path.join(*below, file), why)
            if below and not names and not mine:
                raise ConfigError(f"folder {folder} holds no images or samples; fill it or remove it")
            found += [(below, os.path.join(*below, file)) for file in mine]
        return found

    def path(self, row: int) -> str:
        return os.path.join(self.root, self.files[row])

    def name_of(self, row: int) -> str:
        return self.files[row]

    def sample(self, row: int, fields: Sequence[str]) -> dict[str, Any]:
        return {f: self.decode(self.path(row), self.files[row]) if f == self.name else self.labels[row] for f in fields}


def split_words(root: Path, folders: set[str]) -> dict[str, str]:
    """Folder -> split; empty where none is called as one."""
    words = {name: SPLIT_NAMES[name.lower()] for name in sorted(folders) if name.lower() in SPLIT_NAMES}
    if words and (loose := sorted(folders - set(words))):
        raise ConfigError(f"{root} has the splits {sorted(words)} and also the folder {loose[0]!r}: move it")
    if len(set(words.values())) < len(words):
        raise ConfigError(f"{root}: two folders are one split: {words}; rename one")
    return words


def open_images(root: Path, options: PackOptions) -> FileSource:
    source = FileSource(root, options, SUFFIXES, "image", ImageDecoder(options))
    source.remedy = "; size= makes all one size (variable=True keeps each, flat)"
    return source


def open_samples(root: Path, options: PackOptions) -> FileSource:
    """One .npy or .pth file for each sample."""
    return FileSource(root, options, {".npy", ".pth", ".pt"}, "x", read_sample)


def read_sample(path: str, name: str) -> np.ndarray:
    return read_npy(path, name) if path.lower().endswith(".npy") else read_pth(path, name)
