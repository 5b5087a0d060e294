"""The yaml of a run is made in parts, as OmegaConf would make it whole."""

from __future__ import annotations

import sys
from types import ModuleType

import pytest
from omegaconf import OmegaConf

from samebits.runs.directory import to_yaml
from samebits.saved.config import LoaderOfC, config_loader


def test_the_loader_of_configs_is_found_where_omegaconf_2_4_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its loader uses libyaml, and a class of libyaml's loader and a subclass of it has no order of methods."""

    class Rules(LoaderOfC):  # type: ignore[misc, valid-type]
        pass

    module = ModuleType("omegaconf._yaml")
    module.get_yaml_loader = lambda: Rules  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.delattr("omegaconf._utils.get_yaml_loader", raising=False)
    assert config_loader() is Rules


def test_yaml_in_parts_is_the_yaml_of_the_whole() -> None:
    cfg = OmegaConf.create(
        {
            "seed": 0,
            "trainer": {"strategy": "fsdp", "fsdp": {"wrap": "auto", "replicas": 1}, "clip_norm": None},
            "model": {"odd": {"a": "null", "b1": [1, 1.0, True, "x: y", None], "e": 1e-10}, "hidden": [16]},
            "data": {"path": "${root:}/data/digits.h5", "shape": "${x.y}", "empty": {}, "none": []},
        }
    )
    assert to_yaml(OmegaConf.to_container(cfg)) == OmegaConf.to_yaml(cfg)
    assert to_yaml({}) == OmegaConf.to_yaml({})
    texts = ["optim.lr=1e-3", "a='x, y'", "b={c: 1}", "~d", "1", "null"]
    assert to_yaml(texts) == OmegaConf.to_yaml(texts)
    assert to_yaml([]) == OmegaConf.to_yaml([])
