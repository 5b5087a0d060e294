"""webdataset: tar files in which files of one stem, one after the other, are one sample: 0001.jpg, 0001.cls, ..."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, printable
from h5rows.importers.images import SUFFIXES
from h5rows.importers.values import ShardSource, files_by_split
from h5rows.options import PackOptions
from h5rows.source import BadSample, ranges

KINDS = {"cls": "number", "npy": "npy", "pth": "pth", "pt": "pth", "txt": "text"}
NAMES = {"cls": "label", **{suffix[1:]: "image" for suffix in SUFFIXES}}


class TarSource(ShardSource):
    """Samples by their place in the tars, found in one pass over the headers."""

    def __init__(self, path: Path, options: PackOptions) -> None:
        by_split = files_by_split(path, (".tar",), options.external, self.account)
        self.files = [file for files in by_split.values() for file in files]
        self._keys: list[str] = []
        places: dict[str, list[tuple[int, int, int, int]]] = {}  # field -> (sample, file, offset, size)
        sizes: dict[str, int] = {}
        for split, files in by_split.items():
            before = len(self._keys)
            for file in files:
                self._index(file, places)
            sizes[split] = len(self._keys) - before
        self.splits = ranges(sizes)
        self._places = {name: self._table(found) for name, found in places.items()}
        kinds = {NAMES.get(ext, ext): KINDS[ext] for ext in KINDS if NAMES.get(ext, ext) in places}
        self.learn(len(self._keys), options, path, kinds)

    def _index(self, file: Path, places: dict[str, list[tuple[int, int, int, int]]]) -> None:
        number, last = self.files.index(file), None
        try:
            with tarfile.open(file, "r:") as tar:
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined]  # else it keeps them all
                    folder, _, name = member.name.rpartition("/")
                    stem, dot, ext = name.partition(".")
                    if member.issparse():
                        raise ConfigError(f"{file}: {member.name} is stored as sparse; write the tar without --sparse")
                    if not member.isfile() or not dot or not stem:
                        if not member.isdir():
                            why = "no file" if not member.isfile() else "no name.kind, so of no sample"
                            self.account.leave("members", printable(f"{file.name}: {member.name}"), why)
                        continue
                    if (key := f"{folder}/{stem}") != last:
                        self._keys.append(f"{file.name}: {key.lstrip('/')}")
                        last = key
                    field = NAMES.get(ext.lower(), ext.lower())
                    places.setdefault(field, []).append((len(self._keys) - 1, number, member.offset_data, member.size))
                check_end(file, tar.offset)  # type: ignore[attr-defined]
        except tarfile.TarError as error:
            cut = f"{file} is cut off ({error}); copy or write it again"
            plain = f"{file} is no plain tar ({error}); decompress it first if it is compressed"
            raise ConfigError(cut if "unexpected end" in str(error) else plain) from None

    def _table(self, found: list[tuple[int, int, int, int]]) -> np.ndarray:
        table = np.full((len(self._keys), 3), -1, np.int64)
        entries = np.array(found, np.int64)
        numbers, counts = np.unique(entries[:, 0], return_counts=True)
        if (counts > 1).any():
            raise ConfigError(f"{self._keys[numbers[counts.argmax()]]} has two members of one kind; give each a suffix")
        table[entries[:, 0]] = entries[:, 1:]
        return table

    def name_of(self, row: int) -> str:
        return self._keys[row]

    def raw(self, row: int) -> dict[str, Any]:
        out = {}
        for name, table in self._places.items():
            number, offset, size = table[row].tolist()
            if number < 0:
                continue
            out[name] = self.piece(number, offset, size)
            if len(out[name]) < size:
                raise BadSample(self.name_of(row), f"{name} is cut off: the tar has become shorter since it was opened")
        return out


def check_end(file: Path, at: int) -> None:
    """tarfile ends at the first block that is no header, without a word: only zeros may follow, and a block of them."""
    with open(file, "rb") as stream:
        stream.seek(at)
        left = stream.read(512)
        if len(left) < 512 or any(left):
            what = "it is cut off there" if len(left) < 512 else "it is damaged"
            raise ConfigError(f"{file}: neither a member nor the end mark at byte {at}: {what}; copy or write it again")
        while left := stream.read(1 << 20):
            if any(left):
                raise ConfigError(f"{file} goes on after its end mark, as tars joined by cat do; give each as a file")
