"""Shipped experiments: which rows their splits have."""

from __future__ import annotations

import itertools
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import ROOT
from omegaconf import OmegaConf

from h5rows import Dataset

EXPERIMENTS = sorted((ROOT / "conf" / "experiment").glob("*.yaml"))


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_no_experiment_chooses_its_best_on_the_test_split(path: Path, tmp_path: Path) -> None:
    """Of a file sorted by class, train, val and test of the experiment's `data` share no row and hold all classes."""
    splits = OmegaConf.load(path).get("data", {}).get("splits")
    if splits is None:
        return  # those of its data group, which are groups of the file
    with h5py.File(tmp_path / "sorted.h5", "w") as file:
        for number, group in enumerate(("train", "val", "test")):
            file[f"{group}/id"] = np.arange(500) + 1000 * number
            file[f"{group}/y"] = np.repeat(np.arange(10), 50)
    sets = {s: Dataset(str(tmp_path / "sorted.h5"), {"id": "id", "y": "y"}, s, splits) for s in splits if splits[s]}
    ids = {name: set(data.column("id").tolist()) for name, data in sets.items()}
    assert all(not ids[a] & ids[b] for a, b in itertools.combinations(ids, 2))
    assert all(set(data.column("y").tolist()) == set(range(10)) for data in sets.values())
