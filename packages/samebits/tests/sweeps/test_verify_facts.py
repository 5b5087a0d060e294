"""What a comparison may call equal, and which surroundings it names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from samebits.code import environment
from samebits.sweeps.verify import compare, recompute


def test_what_compared_no_weights_is_not_equal() -> None:
    some, none = (compare.Part(f"checkpoints/last_{step:09}.pt", text) for step, text in ((20, "4 tensors"), (24, "")))
    logged = compare.Part("metrics.jsonl", "16 values of 5 records")
    verdicts = [recompute.Verdict(20, "", 0.0, [], parts, []) for parts in ([logged], [logged, none], [logged, some])]
    assert [found.equal for found in verdicts] == [False, False, True]


def test_of_a_package_that_lies_on_the_path_twice_the_imported_one_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """setuptools appends its own copies to the path."""
    known = environment.imported_packages()["numpy"]
    (own := tmp_path / "numpy-0.1.dist-info").mkdir()
    (own / "METADATA").write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.1\n")
    (own / "top_level.txt").write_text("numpy\n")
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path)])
    assert environment.imported_packages()["numpy"] == known
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert environment.imported_packages()["numpy"] == "0.1"


def test_packages_of_other_versions_are_named() -> None:
    began: dict[str, Any] = {
        "packages": {"engine": "0.1", "torch": "1", "h5py": "3.0", "numpy": "1", "gone": "1.0", "same": "1"}
    }
    now: dict[str, Any] = {"packages": {"samebits": "0.2", "torch": "2", "h5py": "3.0", "same": "1"}}
    assert recompute.other_packages(began, now) == ["package samebits 0.1 -> 0.2", "package gone 1.0 -> unknown"]
    for one in (began, now):
        one["libraries"] = {"samebits": {}}  # is said with the surroundings
    assert recompute.other_packages(began, now) == ["package gone 1.0 -> unknown"]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"machine": {"torch": "2.8.0", "cpu": "Z80"}}, ["cpu Z80 -> 6502", "torch 2.8.0 -> 2.9.0"]),
        (
            {"packages": {"numpy": "1.26", "wandb": "0.1"}, "threads": {"count": 8}},
            ["numpy 1.26 -> 2.0", "threads 8 -> 1"],
        ),
        ({}, []),
    ],
)
def test_other_surroundings_are_named(tmp_path: Path, change: dict[str, Any], said: list[str]) -> None:
    """And a GPU, which computes to rounding unless it is told to be deterministic."""
    now: dict[str, Any] = {"machine": {"torch": "2.9.0", "cpu": "6502"}, "packages": {"numpy": "2.0", "wandb": "0.2"}}
    now["threads"] = {"count": 1}
    assert recompute.surroundings_differ({**now, **change}, now, None, 2, tmp_path) == said  # type: ignore[arg-type]
    gpu = {"machine": {"gpu": {"name": "H100"}, "gpus": ["H100"]}}
    for deterministic, of_gpu in ((False, ["hardware.deterministic=false on a GPU"]), (True, [])):
        cfg = OmegaConf.create({"hardware": {"deterministic": deterministic}})
        assert recompute.surroundings_differ(gpu, gpu, cfg, 1, tmp_path) == of_gpu
