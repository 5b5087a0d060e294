"""A single run is composed once, and its config is the one that Hydra composes by itself, in two compositions."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

import pytest
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra._internal.config_repository import CachingConfigRepository
from omegaconf import OmegaConf

from samebits.config import compose, quote_value, run_hydra
from samebits.project import Project

YAMLS = {
    "train": "defaults: [_self_, model: mlp, optional more: null, hydra: quiet]\nseed: 0\nfirst: ${seed}\n",
    "model/mlp": "width: 4\n",
    "model/wide": "width: 8\n",
    "more/searched": "# @package _global_\nhydra: {mode: MULTIRUN}\nseed: 7\n",
    "more/single": "# @package _global_\nhydra: {mode: RUN}\n",
    "hydra/quiet": "output_subdir: null\njob: {chdir: false}\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Project:
    for name, text in YAMLS.items():
        file = tmp_path / f"conf/{name}.yaml"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return Project("theirs.project", tmp_path, (), (), dict, {}, (), {})


def outcome(project: Project, arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> tuple[list[Any], int]:
    """Return (the jobs' whole configs or the text of the error, the number of compositions)."""
    from hydra.core.hydra_config import HydraConfig

    found: list[Any] = []
    count = 0
    load = ConfigLoaderImpl._load_configuration_impl

    def counted(*args: Any, **options: Any) -> Any:
        nonlocal count
        count += 1
        return load(*args, **options)

    def job(cfg: Any) -> None:
        hydra = OmegaConf.to_container(HydraConfig.instance().cfg, resolve=False)
        found.append([OmegaConf.to_container(cfg, resolve=True), hydra])

    monkeypatch.setattr(sys, "argv", ["train.py", f"hydra.run.dir={quote_value(f'{project.root}/run')}", *arguments])
    with monkeypatch.context() as patch:
        patch.setattr(ConfigLoaderImpl, "_load_configuration_impl", counted)
        try:
            run_hydra(project, job)
        except Exception as error:
            found.append(str(error))
    return found, count


SEARCH = "hydra/sweeper=basic hydra.sweep.dir=sweep"


@pytest.mark.parametrize(
    ("arguments", "fewer"),
    [
        ("seed=3", 1),
        ("model=wide +seeds=[1,2] hydra.job.name=mine", 1),
        ("more=single seed=2", 0),
        ("hydra.mode=RUN", 0),
        (f"more=searched {SEARCH}", 0),
        (f"hydra.mode=MULTIRUN seed=1,2 {SEARCH}", -1),
        (f"-m seed=1,2 {SEARCH}", 0),
        ("seed=1,2", 0),
        ("sead=1", 1),
        ("more=searched sead=1", 1),
        ("seed=[", 0),
        ("model=???", 0),
    ],
)
def test_a_run_is_composed_once_as_hydra_composes_it(
    project: Project, arguments: str, fewer: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(project.root)
    ours, count = outcome(project, arguments.split(), monkeypatch)
    monkeypatch.setattr(compose, "composed_once", contextlib.nullcontext)
    theirs, twice = outcome(project, arguments.split(), monkeypatch)
    assert ours
    assert ours == theirs
    assert twice - count == (0 if compose.HYDRA_14 else fewer), "how many compositions fewer than Hydra by itself"


def test_help_lists_the_options_that_hydra_lists_by_itself(
    project: Project, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    copies: list[Any] = []
    copy = CachingConfigRepository.__init__

    def counted(self: CachingConfigRepository, delegate: Any) -> None:
        copies.append(delegate)
        copy(self, delegate)

    monkeypatch.setattr(CachingConfigRepository, "__init__", counted)
    with pytest.raises(SystemExit):
        outcome(project, ["--help"], monkeypatch)
    ours, few = capsys.readouterr().out, len(copies)
    monkeypatch.setattr(compose, "composed_once", contextlib.nullcontext)
    with pytest.raises(SystemExit):
        outcome(project, ["--help"], monkeypatch)
    assert ours == capsys.readouterr().out
    assert "more: searched, single" in ours
    if not compose.HYDRA_14:
        assert few < 3 < len(copies) - few
