"""Jobs that differ in plain values share one composition: each config is what Hydra composes, to the last bit."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hydra.core.global_hydra import GlobalHydra
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from hypothesis import given, settings, strategies as st
from omegaconf import OmegaConf, open_dict

from lab.program import PROGRAM
from samebits.config import initialize, register_resolvers, resolved
from samebits.schema import plain
from samebits.sweeps import Composer
from samebits.testing.processes import sample_of

CONF = {
    "train": """
defaults: [{model: a}, {optim: sgd}, _self_]
seed: 0
resume: null
name: x
data: {path: "${root:}/d.h5", size: [8, 8], shape: ["${seed}", "${data.size[1]}"], out: "${seen:x}", other: "${.out}"}
task: {weights: null, width: "${model.width}", all: "${optim}", text: "lr ${optim.lr}, ${oc.env:HOME}"}
deep: {er: {key: 1, list: [1, [2, "${seed}"]], none: null, by: "${deep.er.key}"}, copy: "${deep.er}"}
sweep: {name: null}
""",
    "model/a": "kind: a\nwidth: 4\ndepth: ${seed}",
    "model/b": "kind: b\nwidth: ${optim.lr}\nheads: [1, 2]",
    "optim/sgd": "lr: 0.1\nmomentum: ${optim.lr}\nnested: {a: 1, b: '${..lr}'}",
    "optim/adam": "lr: 0.001\nbetas: [0.9, 0.99]\nfirst: ${optim.betas[0]}\nnested: {a: '${seed}', b: 2}",
}
UNKNOWN = {"optim/odd": "lr: 1\nmoved: ${oc.select:seed}\nnested: {a: '${random_of_a_user:}', b: '${hydra:job.num}'}"}
VALUES = st.one_of(
    st.sampled_from(["1", "1.0", "1e-3", "true", "null", "nan", "inf", "-0.0", "text", "'1'", "'a,b'", '"x y"']),
    st.sampled_from(["${seed}", "${optim.lr}", "'\\${seed}'", "[1,2.0]", "[]", "[a,[b,null]]", "['${seed}',2]"]),
    st.sampled_from(["'${seed}'", "{a:3}", "./d.h5", "s3://x", "???", "7", "'a\\\\b'", "[]", "'null'", "''"]),
    st.integers(-3, 3).map(str),
    st.floats(allow_nan=False, allow_infinity=False).map(repr),
)  # fmt: skip
KEYS = (
    "seed", "optim.lr", "model.width", "optim.nested.a", "optim.momentum", "data.path", "data.size", "data.out",
    "task.weights", "deep.er.key", "deep.er.none", "deep.er.list", "deep.copy.key", "task.all.lr", "data.shape",
    "task.text", "optim.nested",
)  # fmt: skip
GROUPS = ("model=a", "model=b", "optim=sgd", "optim=adam")
ODD = (
    "+new.key=3",
    "+optim.extra=${seed}",
    "++seed=4",
    "~deep.er.none",
    "~optim.momentum",
    "+model.x=[1]",
    "optim=odd",
)


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Any]:
    """(Hydra's loader, the config of the whole command)"""
    folder = tmp_path_factory.mktemp("conf")
    for name, text in (CONF | UNKNOWN).items():
        (folder / f"{name}.yaml").parent.mkdir(exist_ok=True)
        (folder / f"{name}.yaml").write_text(text)
    register_resolvers(PROGRAM)
    with initialize(folder):
        loader = GlobalHydra.instance().config_loader()
        return loader, loader.load_configuration("train", [], RunMode.MULTIRUN)


@contextmanager
def composing(conf: tuple[Any, Any]) -> Iterator[Composer]:
    def resolver(name: str, _parent_: Any) -> str:
        return f"{name} of {_parent_.path} {_parent_.size}"

    OmegaConf.register_new_resolver("seen", resolver, replace=True)
    OmegaConf.register_new_resolver("random_of_a_user", lambda: "drawn", replace=True)
    before, HydraConfig.instance().cfg = HydraConfig.instance().cfg, None
    try:
        project = replace(PROGRAM, resolvers={**PROGRAM.resolvers, "seen": resolver})
        yield Composer(project, *conf, Path("/work/dir"), Path("/sweeps/s"), KEYS)
    finally:
        HydraConfig.instance().cfg = before


def hydras(loader: Any, master: Any, number: int, overrides: list[str]) -> Any:
    """The config as Hydra composes it and the project resolves it; the type of the error if that is a mistake."""
    try:
        cfg = loader.load_sweep_config(master, overrides)
        OmegaConf.set_readonly(cfg.hydra, False)
        with open_dict(cfg):
            cfg.hydra.job.num, cfg.hydra.job.id = number, str(number)
            cfg.hydra.runtime.output_dir = "/sweeps/s/job"
        HydraConfig.instance().set_config(cfg)
        with open_dict(cfg):
            del cfg["hydra"]
        return repr(plain(resolved(PROGRAM, cfg, Path("/work/dir"))))
    except Exception as error:
        return type(error)


def ours(composer: Composer, number: int, overrides: list[str]) -> Any:
    try:
        return repr(composer.config(number, "job", overrides))
    except Exception as error:
        return type(error)


jobs = st.lists(
    st.tuples(st.sampled_from(KEYS), st.lists(VALUES, min_size=2, max_size=3)), max_size=4, unique_by=lambda p: p[0]
)


choices_of_groups = st.lists(st.sampled_from(GROUPS), max_size=2, unique_by=lambda t: t[:5])


@pytest.mark.slow
@settings(max_examples=sample_of(8, 100))
@given(jobs, choices_of_groups, st.lists(st.sampled_from(ODD), max_size=2))
def test_each_job_is_what_hydra_composes(conf: Any, swept: Any, choices: list[str], more: list[str]) -> None:
    with composing(conf) as composer:
        for number in range(3):
            overrides = [*choices, *more, *(f"{key}={values[number % len(values)]}" for key, values in swept)]
            assert ours(composer, number, overrides) == hydras(*conf, number, overrides), overrides


@pytest.mark.slow
def test_plain_values_are_composed_once_and_what_follows_them_is_resolved(
    conf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader, _ = conf
    composed: list[Any] = []
    real = loader.load_sweep_config
    monkeypatch.setattr(loader, "load_sweep_config", lambda *given: composed.append(given) or real(*given))
    with composing(conf) as composer:
        found = [composer.config(i, "job", ["model=b", f"optim.lr={i}", f"seed={i}"]) for i in range(5)]
        assert len(composed) == 1
        assert [cfg["task"]["width"] for cfg in found] == [0, 1, 2, 3, 4], "by way of model.width"
        assert found[3]["task"]["all"] == {"lr": 3, "momentum": 3, "nested": {"a": 1, "b": 3}}


def test_no_job_shares_a_value_with_another(conf: Any) -> None:
    with composing(conf) as composer:
        configs = [composer.config(i, "job", [f"seed={i}", "data.size=[4,4]"]) for i in range(3)]
        for cfg in configs[:2]:
            cfg["deep"]["er"]["list"].append("mine")
            cfg["data"]["size"].append("mine")
        assert configs[2]["deep"]["er"]["list"] == [1, [2, 2]]
        assert configs[2]["data"]["size"] == [4, 4]
        assert composer.config(0, "job", ["seed=0", "data.size=[4,4]"])["data"]["size"] == [4, 4]
