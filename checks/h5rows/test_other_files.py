"""Files that show data of others, in runs and token windows."""

from __future__ import annotations

import inspect as signatures
import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import h5py
import numpy as np
import pytest
import yaml
from common import ROOT as PROJECT
from h5_judge import in_a_fork
from test_h5_external import ALL, SECRET, VALUES, WAYS, home, made  # noqa: F401 - home is a fixture

import samebits.errors
from h5rows import ConfigError, Dataset
from h5rows.integration import PackOptions, num_outputs
from lab.datasets.tokens import TokenWindows


@pytest.mark.slow
@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("way", WAYS)
def test_other_files_are_refused_or_read_by_hdf5(way: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path, said = made(tmp_path, way), WAYS[way][1] + ".*: refused - .*data.external=allow"
    for use in (
        lambda: Dataset(str(path), {"x": "x"}, "all", ALL),
        lambda: Dataset(str(path), {"y": "whole"}, "all", {"all": {"group": "/", "index": "x"}}),
        lambda: TokenWindows(str(path), {"x": "x"}, ALL, "all", window=4, stride=1),
        lambda: num_outputs({"path": str(path), "fields": {"x": "x"}, "splits": ALL}, "x"),
    )[: 1 if "group" in way else None]:
        with pytest.raises((ConfigError, samebits.errors.ConfigError), match=rf"f\.h5: .*{said}"):
            use()
    data = Dataset(str(path), {"x": "x"}, "all", ALL, external="allow")
    with h5py.File(path) as file:
        group = "group" in way
        values = file["x/values" if group else "x"][:]
    assert values.any()
    rows = np.arange(2) if group else np.random.default_rng(0).integers(0, 64, 99)
    wanted = [values[:10], values[10:]] if group else values[rows]
    descriptors = len(os.listdir("/dev/fd"))

    def read(here: Dataset = data) -> str:
        batch = here.gather(rows)
        found = [x[:n] for x, n in zip(batch["x"], batch["x_length"])] if group else batch["x"]
        same = all(map(np.array_equal, found, wanted)) if group else np.array_equal(found, wanted)
        return "" if same else f"{batch}"

    for _ in range(2):
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(lambda _: read(), range(4))) == [""] * 4
        assert read(pickle.loads(pickle.dumps(data))) == in_a_fork(read) == ""
    assert len(os.listdir("/dev/fd")) <= descriptors + 2  # the field's own file, held from its first use on; another


@pytest.mark.parametrize("name", ["h5", "tokens", "sequences"])
def test_the_default_is_one(name: str) -> None:
    """A config that was saved before there was this key is read as conf/ says today."""
    assert yaml.safe_load((PROJECT / f"conf/data/{name}.yaml").read_text())["external"] == "refuse"
    for kind in (Dataset, TokenWindows, PackOptions):
        assert signatures.signature(kind).parameters["external"].default == "refuse"
