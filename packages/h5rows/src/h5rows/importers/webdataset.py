"""Read webdataset: tar files in which consecutive files of one stem are a sample, such as 0001.jpg, 0001.cls."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, printable
from h5rows.importers.images import SUFFIXES
from h5rows.importers.values import ShardSource
from h5rows.options import PackOptions
from h5rows.source import BadSample

KINDS = {"cls": "number", "npy": "npy", "pth": "pth", "pt": "pth", "txt": "text"}
NAMES = {"cls": "label", **{suffix[1:]: "image" for suffix in SUFFIXES}}


class TarSource(ShardSource):
    """The samples of tar files. Offsets of the members are found in one pass over the headers."""

    def __init__(self, path: Path, options: PackOptions) -> None:
        self._keys: list[str] = []  # names of the samples
        self._names: dict[str, int] = {}  # field -> its number
        self._found: list[tuple[int, int, int, int, int]] = []  # (sample, field, file, offset, size)
        super().__init__(path, ".tar", options)
        self._members = np.array(self._found, np.int64).reshape(-1, 5)
        self._begins = np.searchsorted(self._members[:, 0], np.arange(len(self._keys) + 1))
        self._fields, self._found = list(self._names), []
        usual = {NAMES.get(ext, ext): kind for ext, kind in KINDS.items() if NAMES.get(ext, ext) in self._names}
        self.learn(len(self._keys), options, path, usual)

    def index(self, number: int, file: Path) -> int:
        """Find the samples of a tar, and return their number."""
        before, last, kinds = len(self._keys), "", set[str]()
        try:
            with tarfile.open(file, "r:") as tar:
                for member in tar:
                    tar.members = []  # type: ignore[attr-defined]  # otherwise it keeps all of them
                    folder, _, name = member.name.rpartition("/")
                    stem, dot, ext = name.partition(".")
                    if member.issparse():
                        raise ConfigError(f"{file}: {member.name} is stored as sparse; write the tar without --sparse")
                    if not member.isfile() or not dot or not stem:
                        if not member.isdir():
                            why = "not a file" if not member.isfile() else "not named NAME.KIND"
                            if member.islnk():
                                target = printable(member.linkname)
                                why = f"a hard link to {target}; write the tar with --hard-dereference"
                            self.account.leave("members", printable(f"{file.name}: {member.name}"), why)
                        continue
                    if (key := f"{folder}/{stem}") != last:
                        self._keys.append(f"{file.name}: {key.lstrip('/')}")
                        last, kinds = key, set()
                    if (field := NAMES.get(ext.lower(), ext.lower())) in kinds:
                        raise ConfigError(f"{self._keys[-1]} has two members of one kind; give them different suffixes")
                    kinds.add(field)
                    place = number, member.offset_data, member.size
                    self._found.append((len(self._keys) - 1, self._names.setdefault(field, len(self._names)), *place))
                check_end(file, tar.offset)  # type: ignore[attr-defined]
        except tarfile.TarError as error:
            if "unexpected end" in str(error):
                raise ConfigError(f"{file} is cut off ({error}); copy or write it again") from None
            remedy = "copy or write it again" if "empty" in str(error) else "decompress it first if it is compressed"
            raise ConfigError(f"{file} is not a plain tar ({error}); {remedy}") from None
        return len(self._keys) - before

    def name_of(self, row: int) -> str:
        """Return tar and stem of a sample, for messages."""
        return self._keys[row]

    def raw(self, row: int) -> dict[str, Any]:
        """Return {field: bytes} of a sample."""
        out = {}
        for _, field, number, offset, size in self._members[self._begins[row] : self._begins[row + 1]].tolist():
            name = self._fields[field]
            out[name] = self.piece(number, offset, size)
            if len(out[name]) < size:
                raise BadSample(self.name_of(row), f"{name} is cut off: the tar has become shorter since it was opened")
        return out


def check_end(file: Path, at: int) -> None:
    """Raise ConfigError unless only zeros follow: tarfile stops silently at the first block that is not a header."""
    with open(file, "rb") as stream:
        stream.seek(at)
        left = stream.read(512)
        if len(left) < 512 or any(left):
            what = "it is cut off there" if len(left) < 512 else "it is damaged"
            raise ConfigError(f"{file}: neither a member nor the end mark at byte {at}: {what}; copy or write it again")
        while left := stream.read(1 << 20):
            if any(left):
                raise ConfigError(f"{file} continues after its end mark, like tars joined by cat; split it into tars")
