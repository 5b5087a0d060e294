"""Random windows of 1,024 tokens, batch 64, warm: TokenWindows.gather against nanoGPT's way and h5py.

./run python benchmarks/read_tokens.py [folder] [--quick]
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import torch
from read_common import arguments, interleaved, report

from lab.datasets.tokens import NextToken, TokenWindows

WINDOW, BATCH, STEPS = 1024, 64, 100


def main(folder: Path, less: int) -> None:
    tokens = np.random.default_rng(0).integers(0, 50257, 50_000_000 // less).astype(np.uint16)
    tokens.tofile(folder / "tokens.bin")
    with h5py.File(folder / "tokens.h5", "w") as file:
        file["tokens"] = tokens
    path, steps_each = str(folder / "tokens.h5"), STEPS // less
    data = TokenWindows(path, {"tokens": "tokens"}, {"train": {"group": "/"}}, "train", window=WINDOW, stride=1)
    out = {"tokens": torch.empty(BATCH, WINDOW + 1, dtype=torch.int64)}
    split = NextToken("tokens")
    held = h5py.File(path)["tokens"]

    def ours(starts: np.ndarray) -> object:
        return split(data.gather(starts, out), torch.from_numpy(starts))

    def memmap(starts: np.ndarray) -> object:
        stream = np.memmap(
            folder / "tokens.bin", dtype=np.uint16, mode="r"
        )  # opened anew for each batch, as it is there
        x = torch.stack([torch.from_numpy(stream[i : i + WINDOW].astype(np.int64)) for i in starts])
        y = torch.stack([torch.from_numpy(stream[i + 1 : i + 1 + WINDOW].astype(np.int64)) for i in starts])
        return x, y

    def sliced(starts: np.ndarray) -> object:
        rows = torch.stack([torch.from_numpy(held[i : i + WINDOW + 1].astype(np.int64)) for i in starts])
        return rows[:, :-1], rows[:, 1:]

    def steps(read: Callable[[np.ndarray], object]) -> Callable[[], int]:
        def run() -> int:
            for _ in range(steps_each):
                read(np.random.randint(0, len(tokens) - WINDOW - 1, BATCH))
            return steps_each * BATCH * WINDOW

        return run

    ways = {
        "nanoGPT's way: memmap, stack": steps(memmap),
        "h5py slices": steps(sliced),
        "TokenWindows.gather": steps(ours),
    }
    report("windows of 1,024 of uint16", interleaved(ways, -(-9 // less)), "nanoGPT's way: memmap, stack", "tokens")


if __name__ == "__main__":
    torch.set_num_threads(1)
    args = arguments(__doc__)
    with tempfile.TemporaryDirectory(dir=args.folder) as name:
        main(Path(name), 50 if args.quick else 1)
