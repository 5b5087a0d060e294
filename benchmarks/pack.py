"""Packing against the plain ways, interleaved; the medians of the ratios.

    ./run python benchmarks/pack.py [--images FOLDER] [--rounds 5] [--folder /tmp]

npy: an array of 150 KB samples into HDF5: `pack` (verified) against `d[i] = x` in a loop, both with fsync.
JPEG: a folder of images, `pack` (written, verified, fsync) against only decoding with Pillow, a process for each core.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from multiprocessing import Pool
from pathlib import Path

import h5py
import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1] / "src"))
from h5rows.integration import PackOptions, open_source
from h5rows.packing.write import pack

OPTIONS = PackOptions(quiet=True, overwrite=True)


def seconds(call: Callable[[], object], out: Path, need: int) -> float:
    out.unlink(missing_ok=True)  # else one way would find the other's memory free, and not the other way round
    warm_memory(out.with_name("warm"), need)
    begin = time.perf_counter()
    call()
    return time.perf_counter() - begin


def warm_memory(path: Path, need: int) -> None:
    """Have the kernel hold as many free pages as the file will take. A virtual machine gets each page that it has not
    used for some seconds from its host, at 0.5 GB/s: that would be measured instead."""
    block = bytes(4 << 20)
    with open(path, "wb") as file:
        for _ in range(need // len(block) + 1):
            file.write(block)
    path.unlink()


def fsync(path: Path) -> None:
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    os.close(fd)


def plain_loop(source: Path, out: Path) -> None:
    values = np.load(source, mmap_mode="r")
    with h5py.File(out, "w") as file:
        dset = file.create_dataset("x", values.shape, values.dtype)
        for i in range(len(values)):
            dset[i] = values[i]
    fsync(out)


def packed(source: Path, out: Path) -> None:
    pack(open_source(str(source), OPTIONS), out, OPTIONS, {})


def decode(path: str) -> int:
    with Image.open(path) as image:
        return int(np.asarray(image.convert("RGB"))[0, 0, 0])


def decode_all(files: list[str], workers: int) -> None:
    with Pool(workers) as pool:
        for _ in pool.imap_unordered(decode, files, chunksize=256):
            pass


def make_images(folder: Path, count: int) -> None:
    """Pictures of 32x32, as CIFAR's: smooth, so that they compress as photographs do."""
    rng = np.random.default_rng(0)
    for k in range(count):
        path = folder / f"class{k % 10}" / f"{k:05}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        small = Image.fromarray(rng.integers(0, 256, (8, 8, 3), np.uint8))
        small.resize((32, 32), Image.Resampling.BICUBIC).save(path, quality=95)


def compare(
    name: str, out: Path, ours: Callable[[], object], theirs: Callable[[], object], count: int, rounds: int, need: int
) -> None:
    """need: bytes of the file that is made."""
    ratios, mine, other = [], [], []
    for _ in range(rounds + 1):
        mine.append(seconds(ours, out, need))
        other.append(seconds(theirs, out, need))
        ratios.append(other[-1] / mine[-1])
    mine, other, ratios = mine[1:], other[1:], ratios[1:]  # the first round warms the page cache
    rates = f"{count / statistics.median(mine):,.0f} against {count / statistics.median(other):,.0f} samples/s"
    print(f"{name}: {statistics.median(ratios):.2f} x ({min(ratios):.2f} to {max(ratios):.2f}); {rates}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--images", type=Path, help="a folder of RGB images of one size; made if not given")
    parser.add_argument("--samples", type=int, default=4_000, help="of 150 KB, for npy")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", help="where to work; the disk that is measured")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        root = Path(folder)
        array = np.lib.format.open_memmap(root / "x.npy", "w+", np.uint8, (args.samples, 3, 224, 224))
        rng = np.random.default_rng(0)
        for k in range(0, args.samples, 100):
            array[k : k + 100] = rng.integers(0, 256, array[k : k + 100].shape, np.uint8)
        del array
        source, out = root / "x.npy", root / "x.h5"
        ours, theirs = (lambda: packed(source, out)), (lambda: plain_loop(source, out))
        compare("npy / d[i] = x", out, ours, theirs, args.samples, args.rounds, source.stat().st_size)
        images = args.images
        if images is None:
            images = root / "images"
            make_images(images, 10_000)
        files = sorted(str(p) for p in images.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        workers = OPTIONS.workers
        ours, theirs = (lambda: packed(images, out)), (lambda: decode_all(files, workers))
        compare("JPEG / decoding only", out, ours, theirs, len(files), args.rounds, 3 * 1024 * len(files))


if __name__ == "__main__":
    main()
