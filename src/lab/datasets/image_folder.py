"""Image files in folders of classes, decoded when they are asked for: path/[train|val|test/]class/[.../]name.jpg.

The files are found, ordered and decoded as by `src/h5.py pack`: the file that it writes holds the same samples.
Reading that file takes no decoding: for more than a first look, pack. Needs the extra `images`.
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
    """x: (channels, height, width) uint8, y: int64 number of the class folder, in the order of their names.

    size: [height, width]. crop: center: scaled to cover it and cut about the middle, none: stretched. splits: {split:
    [begin, end]}, shares of a fixed shuffling of all files; where path has folders of splits, those hold instead.
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
        from h5rows.integration import share

        self.source = open_images(path, tuple(size), crop, channels)
        there, bounds = self.source.splits, splits.get(split)
        if split in there:
            self.rows = np.asarray(there[split])
        elif "" in there:
            if not isinstance(bounds, Sequence) or not all(isinstance(bound, (int, float)) for bound in bounds):
                raise ConfigError(f"data.splits.{split}={bounds}: give two shares, such as [0.8, 0.9], or null")
            self.rows = share(None, len(there[""]), bounds, f"data.splits.{split}")
        else:
            raise ConfigError(f"data.splits.{split}: {path} has {' and '.join(there)} - set it to null")
        if not len(self.rows):
            raise ConfigError(f"data.splits.{split}: of {len(there[''])} files this is none - give more")
        self.class_names = {"y": class_names(self.source, path)}

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, i: int) -> dict[str, Any]:
        values, bad = self.source.read(self.rows[[i]], ["image", "label"])
        if bad:
            raise RunFailed(f"data: {bad[0].name}: {bad[0].reason}")
        return {"x": values["image"][0], "y": values["label"][0]}


@functools.lru_cache  # a walk over all files, for the number of classes and for each split
def open_images(path: str, size: tuple[int, ...], crop: str, channels: int) -> FileSource:
    from h5rows.integration import FileSource, PackOptions, open_source

    if channels not in MODES or len(size) != 2:
        raise ConfigError(
            f"data.channels={channels} and data.size={list(size)}: give 1, 3 or 4, and [height, width] in pixels"
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
    if "label" not in source.fields:
        raise ConfigError(f"data.path={path}: its images lie in no folders, and those are their classes")
    return list(source.fields["label"].attrs["classes"])
