"""Image files in class folders, decoded when they are read: path/[train|val|test/]class/[.../]name.jpg.

`./run h5 pack` finds, orders and decodes the files in the same way, so a packed file contains the same samples. It is
read faster, because nothing is decoded: pack the images if you read them more than a few times. Requires the extra
`images`.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from lab.h5_errors import h5_methods, h5_mistakes
from samebits.errors import ConfigError, RunFailed
from samebits.schema import Count, Share

if TYPE_CHECKING:
    from h5rows.integration import FileSource

MODES = {1: "L", 3: "RGB", 4: "RGBA"}


@h5_methods
class ImageFolder:
    """A data set of x: (channels, height, width) uint8, and y: int64 index of the class folder in alphabetical order.

    size: [height, width] in pixels. crop: center scales the image to cover this size and crops the center; none
    stretches it. channels: 1, 3 or 4. splits: {split: [begin, end]}, fractions of all files in a fixed random order.
    It is ignored for splits that have a folder in `path`; if there are such folders, the other splits must be null.
    Raise ConfigError if the split is empty or the path has no class folders.
    """

    def __init__(
        self,
        path: str,
        size: Sequence[Count],
        crop: Literal["none", "center"],
        channels: Count,
        splits: Mapping[str, Sequence[Share] | None],
        split: str,
    ) -> None:
        from h5rows.integration import rows_in_share

        self.source = open_images(path, tuple(size), crop, channels)
        there, bounds = self.source.splits, splits.get(split)
        if split in there:
            self.rows = np.asarray(there[split])
        elif "" in there:
            if not isinstance(bounds, Sequence) or not all(isinstance(bound, (int, float)) for bound in bounds):
                raise ConfigError(f"data.splits.{split}={bounds}: must be two shares, such as [0.8, 0.9], or null")
            self.rows = rows_in_share(None, len(there[""]), bounds, f"data.splits.{split}")
        else:
            raise ConfigError(
                f"data.splits.{split}: {path} has only the folders {' and '.join(there)} - set it to null"
            )
        if not len(self.rows):
            raise ConfigError(f"data.splits.{split}: is empty, out of {len(there[''])} files - give a larger range")
        self.class_names = {"y": class_names(self.source, path)}

    def __len__(self) -> int:
        return len(self.rows)

    def shared_rows(self, other: ImageFolder) -> int:
        """Return how many files are also files of the other split."""
        return len(np.intersect1d(self.rows, other.rows)) if self.source is other.source else 0

    def __getitem__(self, i: int) -> dict[str, Any]:
        values, bad = self.source.read(self.rows[[i]], ["image", "label"])
        if bad:
            raise RunFailed(f"data: {bad[0].name}: {bad[0].reason}")
        return {"x": values["image"][0], "y": values["label"][0]}


@functools.lru_cache  # called for each split and for the number of classes, and it walks over all files
def open_images(path: str, size: tuple[int, ...], crop: str, channels: int) -> FileSource:
    """Return the image files below `path` as a source of rows. Raise ConfigError for invalid options."""
    from h5rows.integration import FileSource, PackOptions, open_source

    if channels not in MODES or len(size) != 2:
        raise ConfigError(
            f"data.channels={channels} and data.size={list(size)}: must be 1, 3 or 4, and [height, width] in pixels"
        )
    height, width = size
    how: dict[str, Any] = {"crop": crop, "mode": MODES[channels]}
    options = PackOptions(
        format="images", size=(height, width), exif="ignore", external="allow", quiet=True, **how
    )  # fmt: skip
    with h5_mistakes():
        source = open_source(path, options)
    assert isinstance(source, FileSource)
    return source


def class_names(source: FileSource, path: str) -> list[str]:
    """Return the names of the class folders. Raise ConfigError if there are none."""
    if "label" not in source.fields:
        raise ConfigError(f"data.path={path}: its images are not in class folders")
    return list(source.fields["label"].attrs["classes"])


def folder_classes(_parent_: Any) -> int:
    """Return the number of class folders below data.path: ${folder_classes:} in a group `data`."""
    from lab.project import about_data

    with about_data(_parent_):
        source = open_images(_parent_.path, tuple(_parent_.size), _parent_.crop, _parent_.channels)
        return len(class_names(source, _parent_.path))
