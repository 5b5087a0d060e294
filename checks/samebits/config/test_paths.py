"""Paths below the project's root are saved relative to it, whatever key they stand at, and are this project's again."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from common import ROOT
from omegaconf import DictConfig

from lab.program import PROGRAM
from samebits.runs import write_config
from samebits.saved import load_flat, portable, read_config
from samebits.testing import compose


@pytest.fixture
def outside() -> Iterator[Path]:
    """A folder that is not below the project, as tmp_path is in tools/mutate.py."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def test_any_key_s_path_below_the_root_is_relative_and_no_other(outside: Path) -> None:
    (outside / "link").symlink_to(ROOT)
    node = {
        "weights": f"{ROOT}/outputs/a/checkpoints/best_1.pt",
        "shards": [f"{ROOT}/data/shard-*.h5", "/scratch/x.h5"],
        "neighbour": f"{ROOT}-2/data/x.h5",
        "linked": f"{outside}/link/data/x.h5",
        "url": "s3://bucket/x.h5",
        "root": str(ROOT),
        "out": f"{ROOT}/../x",
    }
    assert portable(PROGRAM.root, node) == {
        "weights": "${root:}/outputs/a/checkpoints/best_1.pt",
        "shards": ["${root:}/data/shard-*.h5", "/scratch/x.h5"],
        "neighbour": f"{ROOT}-2/data/x.h5",
        "linked": "${root:}/data/x.h5",
        "url": "s3://bucket/x.h5",
        "root": "${root:}",
        "out": f"{ROOT}/../x",
    }


def saved(folder: Path, **more: str) -> tuple[Path, Any]:
    cfg = compose("logger=none")
    for key, value in more.items():
        cfg.data[key] = value
    folder.mkdir()
    write_config(PROGRAM, folder, cfg)
    return folder, cfg


def test_a_saved_config_names_no_folder_of_this_machine(tmp_path: Path) -> None:
    run, cfg = saved(tmp_path / "run")
    assert yaml.safe_load((run / "config.yaml").read_text())["data"]["path"] == "${root:}/data/digits.h5"
    assert str(ROOT) not in (run / "config.yaml").read_text()
    assert read_config(PROGRAM, run) == cfg
    assert load_flat(PROGRAM, run)["data.path"] == "${root:}/data/digits.h5"


def test_a_saved_config_is_converted_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has 100 nodes, each with checks of OmegaConf's."""
    run, cfg = saved(tmp_path / "run")
    made = []
    original = DictConfig.__init__

    def init(self: DictConfig, content: Any, *rest: Any, **more: Any) -> None:
        made.append(more.get("parent"))
        original(self, content, *rest, **more)

    monkeypatch.setattr(DictConfig, "__init__", init)
    assert read_config(PROGRAM, run) == cfg
    assert made.count(None) == 1


def test_absolute_paths_of_an_older_run_are_this_project_s_where_it_has_them(tmp_path: Path) -> None:
    run, _ = saved(tmp_path / "run", path="/gone/project/data/digits.h5")
    assert read_config(PROGRAM, run).data.path == "/gone/project/data/digits.h5"
    (run / "environment.json").write_text(json.dumps({"cwd": "/gone/project/notes", "command": ["../src/train.py"]}))
    assert read_config(PROGRAM, run).data.path == f"{ROOT}/data/digits.h5"
    assert load_flat(PROGRAM, run)["data.path"] == "${root:}/data/digits.h5"
    run, _ = saved(tmp_path / "other", path="/gone/project/data/not_here.h5")
    (run / "environment.json").write_text(json.dumps({"cwd": "/gone/project", "command": ["src/train.py"]}))
    assert read_config(PROGRAM, run).data.path == "/gone/project/data/not_here.h5"
