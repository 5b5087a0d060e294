"""One .npy or .pth file for each sample, in folders as images are: root/[train|val|test/][class/]name."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from h5rows.importers.base import Field
from h5rows.importers.files import FileSource, open_files
from h5rows.importers.values import read_npy, read_pth
from h5rows.packing.options import PackOptions


def decode(path: str, name: str) -> np.ndarray:
    return read_npy(path, name) if path.lower().endswith(".npy") else read_pth(path, name)


def open_samples(path: Path, options: PackOptions) -> FileSource:
    def field(first: np.ndarray, name: str) -> Field:
        return Field((None,) * first.ndim if options.variable else first.shape, first.dtype)

    return open_files(path, options, {".npy", ".pth", ".pt"}, "x", decode, field)
