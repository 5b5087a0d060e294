"""N5, through tensorstore: arrays in chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError
from h5rows.extras import need
from h5rows.importers.base import ArraySource
from h5rows.importers.chunked import ChunkedSource
from h5rows.importers.folders import walk
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions

OWN = {"dimensions", "dataType", "blockSize", "compression", "compressionType", "n5"}  # keys of N5's attributes.json


class N5Rows:
    """reverse: its last dimension counts the rows."""

    def __init__(self, array: Any, reverse: bool) -> None:
        self._array = array.T if reverse else array
        self.shape, self.dtype = tuple(self._array.shape), self._array.dtype.numpy_dtype

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: Any) -> np.ndarray:
        return np.ascontiguousarray(self._array[rows].read().result())


def open_n5(path: Path, options: PackOptions) -> ArraySource:
    store = need("tensorstore", f"reading {path}", "tensorstore")
    files = [Path(folder, name) for folder, _, names in walk(path, options.external) for name in names]
    metadata = sorted(file for file in files if file.name == "attributes.json")
    found, attrs, groups = {}, {}, {}
    for file in metadata:
        try:
            said = json.loads(file.read_text())
            own = {key: value for key, value in said.items() if key not in OWN}
        except (ValueError, AttributeError) as error:
            raise ConfigError(f"{file} is no JSON object: {error}") from None
        place = "" if file.parent == path else str(file.parent.relative_to(path))
        if "dimensions" not in said:
            groups[place] = own
            continue
        spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{file.parent}/"}}
        found[place or path.stem] = N5Rows(store.open(spec, read=True).result(), options.reverse_axes)
        attrs[place or path.stem] = own
    shapes = {name: array.shape for name, array in found.items()}
    first, last = ({shape[k] for shape in shapes.values()} for k in (0, -1))
    if not options.reverse_axes and len(first) > 1 and len(last) == 1:
        raise ConfigError(
            f"{path}: the last dimensions agree, not the first: {shapes}; --reverse-axes counts rows there"
        )
    return ChunkedSource.of(path, found, attrs, groups, options, Account(), metadata)
