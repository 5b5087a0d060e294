"""Register the program before any test is imported."""

from __future__ import annotations

import common  # noqa: F401
import pytest

pytest_plugins = ["samebits.testing.plugin"]


@pytest.fixture(scope="session")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Counting up modulo 11, with a tenth of the tokens drawn."""
    import h5py
    import numpy as np

    path = tmp_path_factory.mktemp("gpt") / "tokens.h5"
    random = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        for split, count in (("train", 3000), ("val", 400)):
            values = np.where(random.random(count) < 0.1, random.integers(0, 11, count), np.arange(count) % 11)
            file.create_dataset(f"{split}/tokens", data=values.astype(np.uint8)).attrs["classes"] = 11
    return str(path)
