"""Fields of token windows, in interpolations and in batches."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from omegaconf import OmegaConf
from test_h5_fields import ROOT

import samebits.errors
from h5rows import ConfigError, Dataset
from h5rows.integration import num_outputs, sample_shape
from lab.datasets.tokens import NextToken, TokenWindows
from lab.losses.cross_entropy import CrossEntropy
from lab.metrics.accuracy import Accuracy
from samebits.data import EvalPlan, Loader


@pytest.mark.one_quick
@pytest.mark.parametrize(
    "options", [{}, {"chunks": (64,), "compression": "gzip"}, {"chunks": (100,)}, {"dtype": ">i4"}]
)
@pytest.mark.parametrize("stride", [1, 7, 32])
def test_token_windows(options: dict[str, Any], stride: int, tmp_path: Path) -> None:
    streams = [np.random.default_rng(k).integers(0, 60000, n).astype(np.uint16) for k, n in enumerate((500, 10, 333))]
    for k, stream in enumerate(streams):
        with h5py.File(tmp_path / f"{k}.h5", "w") as file:
            file["odd"] = np.zeros(3, "u1")  # what follows is misaligned
            file.create_dataset("t", data=stream, **options if len(stream) > 10 else {})
    paths = [str(tmp_path / f"{k}.h5") for k in range(3)]
    splits = {"train": ROOT["all"], "val": ROOT["all"]}
    data = TokenWindows(paths, {"tokens": "t"}, splits, "train", window=32, stride=stride, cache_mb=1)
    consecutive = TokenWindows(paths, {"tokens": "t"}, splits, "val", window=32, stride=stride)
    assert len(consecutive) == sum((len(s) - 1) // 32 for s in streams)  # each token is a target once
    windows = [s[b : b + 33].astype(np.int64) for s in streams for b in range(0, len(s) - 32, stride)]
    assert len(data) == len(windows)
    rows = np.random.default_rng(0).integers(0, len(data), 64)
    buffer = torch.empty(70, 33, dtype=torch.int64)
    batch = data.gather(rows, {"tokens": buffer})
    assert np.array_equal(buffer[:64].numpy(), np.stack([windows[r] for r in rows]))
    shifted = NextToken("tokens")(batch, torch.arange(64))
    assert torch.equal(shifted["x"][:, 1:], shifted["y"][:, :-1])
    assert np.array_equal(data[len(data) - 1]["tokens"].numpy(), windows[-1])
    data.advise(rows)
    with pytest.raises(samebits.errors.ConfigError, match=r"data.window=9999.*longest stream has 500"):
        TokenWindows(paths, {"tokens": "t"}, ROOT, "all", window=9999, stride=1)


def test_probe(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "f.h5", "w") as file:
        file["train/image"] = np.zeros((12, 3, 4), "u1")
        file["train/label"] = np.array([0, 4, 2] * 4, "u1")
        file["train/named"] = np.zeros(12, "i8")
        file["train/named"].attrs["classes"] = [b"cat", b"dog", b"owl"]
        file["train/target"] = np.zeros((12, 5), "f4")
        file["train/scalar"] = np.zeros(12, "f8")
        file["train/yes"] = np.zeros(12, bool)
        file["train/bad"] = np.full(12, -1)
        file["train/text"] = ["a"] * 12
    names = ["image", "label", "named", "target", "scalar", "yes", "bad", "text"]
    config = {"path": str(tmp_path / "f.h5"), "fields": {n: n for n in names}, "splits": {"train": {"group": "train"}}}
    data = OmegaConf.create(config | {"shape": "${probe_shape:image}"})
    OmegaConf.register_new_resolver("probe_shape", lambda f, _parent_: sample_shape(_parent_, f), replace=True)
    assert data.shape == [3, 4]
    assert [sample_shape(config, n) for n in ("label", "target")] == [[], [5]]
    outputs = {n: num_outputs(config, n) for n in ("label", "named", "target", "scalar", "yes")}
    assert outputs == {"label": 5, "named": 3, "target": 5, "scalar": 1, "yes": 2}
    with pytest.raises(ConfigError, match=r"train/bad \(data.fields.bad\) has the negative label -1"):
        num_outputs(config, "bad")
    with pytest.raises(ConfigError, match=r"train/text \(data.fields.text\) contains text, neither classes"):
        num_outputs(config, "text")
    with pytest.raises(ConfigError, match=r"no fixed shape.*input_shape.*image files, decode them"):
        sample_shape(config, "text")
    with pytest.raises(ConfigError, match=r"data.path=/no/where.h5: no such file"):
        sample_shape(config | {"path": "/no/where.h5"}, "image")
    with pytest.raises(ConfigError, match=r"no 'labels' \(data.fields.y\); did you mean 'label'"):
        num_outputs(config | {"fields": {"y": "labels"}}, "y")
    with pytest.raises(ConfigError, match=r"no group 'trian'.*did you mean 'train'.*train/image \(12, 3, 4\)"):
        num_outputs(config | {"splits": {"train": {"group": "trian"}}}, "label")


@pytest.mark.one_quick
@pytest.mark.parametrize("kind", ["device", "threads"])
def test_fields_of_every_type_are_delivered(kind: str, tmp_path: Path) -> None:
    """torch stores types that it cannot index, compare or take as labels."""
    labels = {dtype: np.arange(40).astype(dtype) for dtype in ("u1", "u2", "u4", "i2", "f2", "c8", "?")}
    fields = labels | {f"{dtype} rows": np.tile(values[:, None], 3) for dtype, values in labels.items()}
    with h5py.File(tmp_path / "f.h5", "w") as file:
        for name, values in fields.items():
            file[name] = values
    data = Dataset(str(tmp_path / "f.h5"), {name: name for name in fields}, "all", ROOT)
    with Loader(data, EvalPlan(40, 16, 0, 1), torch.device("cpu"), kind=kind, seed=0) as loader:
        batches = list(loader)
    for field, values in fields.items():
        assert np.array_equal(np.concatenate([batch[field].numpy() for batch in batches]), values)
    logits = torch.eye(40)[:16]
    for dtype in ("u1", "u2", "u4", "i2"):
        batch = {"y": batches[0][dtype]}
        assert Accuracy()(logits, batch).min() == 1
        assert CrossEntropy(0.0)(logits, batch).isfinite().all()
