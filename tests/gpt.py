"""Shared by the tests of language models."""

from pathlib import Path

import h5py
import numpy as np
from common import needs

NEEDS_GPT = needs("conf/model/gpt.yaml", "src/lab/models/gpt.py", "conf/data/tokens.yaml")
SMALL_GPT = ("model=gpt", "model.width=16", "model.layers=1", "model.heads=2")


def write_tokens(folder: Path) -> Path:
    """Counting up modulo 11, with a tenth of the tokens drawn."""
    path, random = folder / "tokens.h5", np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, count in (("train", 3000), ("val", 400)):
            values = np.where(random.random(count) < 0.1, random.integers(0, 11, count), np.arange(count) % 11)
            file.create_dataset(f"{split}/tokens", data=values.astype(np.uint8)).attrs["classes"] = 11
    return path
