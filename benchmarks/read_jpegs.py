"""A shuffled epoch of a folder of JPEGs, cropped to squares: ours against a DataLoader with PIL, 2 workers each.

./run python benchmarks/read_jpegs.py [folder] [--quick]

Also the same samples packed into HDF5 (`./run h5 pack`), which no longer decodes. Pictures are smooth noise with grain.
"""

from __future__ import annotations

import itertools
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from read_common import arguments, images, interleaved, report
from torch.utils.data import DataLoader, Dataset

import h5rows
from lab.datasets.image_folder import ImageFolder
from samebits.data import Loader, TrainPlan, shuffled

SIDE, SIZE, BATCH, CLASSES = 320, 64, 64, 4
DRAFT = "DataLoader, PIL, decoded at a lower resolution"
CPU = torch.device("cpu")


class Pictures(Dataset):
    """What people write. draft: let the JPEG decoder scale down by a power of 2 first."""

    def __init__(self, paths: list[Path], draft: bool) -> None:
        self.paths, self.draft = paths, draft

    def __len__(self) -> int:
        return len(self.paths)

    def __getitem__(self, i: int) -> tuple[torch.Tensor, int]:
        with Image.open(self.paths[i]) as image:
            if self.draft:
                image.draft("RGB", (SIZE, SIZE))
            small = ImageOps.fit(image.convert("RGB"), (SIZE, SIZE), Image.Resampling.BILINEAR)
        return torch.from_numpy(np.asarray(small).copy()).permute(2, 0, 1), int(self.paths[i].parent.name)


def ours(data: Any, kind: str) -> Callable[[], int]:
    """Return a call that takes an epoch's batches from a loader that goes on."""
    plan = TrainPlan(shuffled(data, 0), BATCH, [BATCH], 0, 1, 0)
    batches = iter(Loader(data, plan, CPU, kind=kind, num_workers=2, seed=0))
    steps = len(data) // BATCH
    return lambda: sum(len(batch["x"]) for batch in itertools.islice(batches, steps))


def peer(paths: list[Path], draft: bool) -> Callable[[], int]:
    loader: Any = DataLoader(
        Pictures(paths, draft), BATCH, shuffle=True, drop_last=True, num_workers=2, persistent_workers=True
    )
    return lambda: sum(len(x) for x, _ in loader)


def main(folder: Path, count: int, rounds: int) -> None:
    """Write `count` JPEGs below `folder` and compare the ways to read them."""
    photos = folder / "photos"
    for i, image in enumerate(images(count, SIDE)):
        (place := photos / str(i % CLASSES)).mkdir(parents=True, exist_ok=True)
        Image.fromarray(image.transpose(1, 2, 0)).save(place / f"{i:06}.jpg", quality=90)
    packed = folder / "photos.h5"
    pack = [sys.executable, "-m", "h5rows", "pack", str(photos), str(packed), "--size", str(SIZE), "--crop", "center"]
    subprocess.run(pack, check=True, capture_output=True)
    paths = sorted(photos.glob("*/*.jpg"))
    data = ImageFolder(str(photos), (SIZE, SIZE), "center", 3, {"train": [0, 1]}, "train")
    rows = h5rows.Dataset(str(packed), {"x": "image"}, "train", {"train": {"group": "/"}})
    ways = {
        "DataLoader, PIL": peer(paths, False),
        DRAFT: peer(paths, True),
        "data=image_folder, 2 workers": ours(data, "workers"),
        "packed, data=h5, threads": ours(rows, "threads"),
    }
    report(f"{count} JPEGs of {SIDE} x {SIDE}, to {SIZE} x {SIZE}", interleaved(ways, rounds), DRAFT, "images")


if __name__ == "__main__":
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        main(Path(name), *((BATCH, 1) if args.quick else (2048, 5)))
