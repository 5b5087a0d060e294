"""Samples one after the other are refused with the remedy: each would become a field. Types that no reader has."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import h5rows

ONE = torch.zeros(3, 2)


@pytest.mark.parametrize(
    "value",
    [
        [ONE] * 5,
        [ONE] * 500,
        [torch.zeros(k, 2) for k in range(1, 5)],
        [{"x": ONE, "y": torch.zeros(3)}] * 5,
        [(ONE, 1)] * 5,
        ((ONE, ONE),) * 5,
        {"train": [ONE] * 5, "test": [ONE] * 4},
        {str(k): ONE for k in range(5)},
        {f"{k:c}x{'y' * k}"[1:]: ONE for k in range(65, 90)},
    ],
    ids=["tensors", "many", "lengths", "dicts", "pairs", "tuple", "in a dict", "numbered", "named"],
)
def test_samples_in_one_file_of_torch(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "s.pth")
    with pytest.raises(h5rows.ConfigError, match=r"s\.pth.*if each is a sample, save .*if each is a field") as caught:
        h5rows.pack(tmp_path / "s.pth", tmp_path / "s.h5", quiet=True)
    assert str(caught.value).isprintable()
    assert not (tmp_path / "s.h5").exists()


@pytest.mark.parametrize(
    "value",
    [(ONE, torch.zeros(3)), (ONE, ONE), [ONE, torch.zeros(3, dtype=torch.int64)], {"x": ONE, "y": ONE, "z": ONE}],
)
def test_fields_in_one_file_of_torch(tmp_path: Path, value: Any) -> None:
    torch.save(value, tmp_path / "s.pth")
    assert h5rows.pack(tmp_path / "s.pth", tmp_path / "s.h5", quiet=True).exit_status == 0
    assert len(h5rows.open(str(tmp_path / "s.h5"))) == 3


def test_samples_as_arrays(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", *[np.zeros((3, 2))] * 5)
    (tmp_path / "in").mkdir()
    for k in range(5):
        np.save(tmp_path / f"in/{k:03}.npy", np.full((3, 2), k))
    for name in ("a.npz", "in"):
        with pytest.raises(h5rows.ConfigError, match=r"contains 5 arrays of \(3, 2\) .*if each is a sample"):
            h5rows.pack(tmp_path / name, tmp_path / "s.h5", quiet=True)
    h5rows.pack(tmp_path / "in", tmp_path / "s.h5", format="samples", quiet=True)
    assert len(h5rows.open(str(tmp_path / "s.h5"))) == 5
    h5rows.pack(tmp_path / "a.npz", tmp_path / "f.h5", fields={f"arr_{k}": f"f{k}" for k in range(5)}, quiet=True)
    assert sorted(h5rows.open(str(tmp_path / "f.h5")).spec) == [f"f{k}" for k in range(5)]


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float8_e4m3fn])
def test_types_that_become_float32_are_named(
    tmp_path: Path, kind: torch.dtype, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "in/a").mkdir(parents=True)
    for file in ("s.pth", "in/a/1.pth"):
        torch.save(torch.tensor([[1.5, 2.0]]).to(kind), tmp_path / file)
    for source in ("s.pth", "in"):
        h5rows.pack(tmp_path / source, tmp_path / "s.h5", quiet=True, overwrite=True)
        name = re.escape(str(kind).removeprefix("torch."))
        assert re.search(rf"^{name} becomes float32", capsys.readouterr().out, re.M)


@pytest.mark.parametrize("kind", ["V2", "g", "M8[D]", "m8[s]", "U2", "O"])
def test_types_that_no_reader_has_are_refused(tmp_path: Path, kind: str) -> None:
    np.save(tmp_path / "v.npy", np.zeros(4, kind))
    said = "Python objects" if kind == "O" else "only numbers can be stored"
    with pytest.raises(h5rows.ConfigError, match=rf"v\.npy.*{said}"):
        h5rows.pack(tmp_path / "v.npy", tmp_path / "v.h5", quiet=True)
    assert not (tmp_path / "v.h5").exists()
