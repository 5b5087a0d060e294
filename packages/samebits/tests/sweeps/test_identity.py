"""Which overrides are one job, and the names of the directories of jobs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.sweeps.identity import canonical, digest, directory_name, values_of

PROJECT: Any = SimpleNamespace(
    root=Path.cwd(), paths=("data.path",), neutral_groups=("hardware", "logger", "profiler", "callback")
)


@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        (["optim.lr=1e-3", "seed=1"], ["seed=1", "optim.lr=0.001"], True),
        (["trainer.max_steps=1e3"], ["++trainer.max_steps=1000.0"], True),
        (["optim.lr=1"], ["optim.lr=1.0"], True),
        (["x=[1,{a:2}]"], ["x=[1.0,{a:2.0}]"], True),
        (["model.hidden=[16,16]"], ["model.hidden=[16, 16]"], True),
        (["debug='nan'"], ["debug=\"nan\""], True),
        (["data.path=data/a.h5"], [f"data.path={Path.cwd()}/data/../data/a.h5"], True),
        (["data.path=data/a.h5"], ["data.path=a.h5"], False),
        (["seed=1", "seed=2"], ["seed=2"], True),
        (["seed=1", "logger=none", "hardware.num_threads=1", "hydra.x=1", "sweep.name=a"], ["seed=1"], True),
        (["seed=1"], ["seed=2"], False),
        (["seed=1"], ["seed='1'"], False),
        (["seed=1", "trainer.max_steps=3"], ["seed=1"], False),
        (["model=mlp"], ["model=gpt"], False),
        (["+x=true"], ["+x=1"], False),
        (["+x=1.5"], ["+x=1"], False),
        (["~callback.a"], ["callback.a=null"], True),
    ],
)  # fmt: skip
def test_which_overrides_are_the_same_job(one: list[str], other: list[str], same: bool) -> None:
    assert (digest(values_of(PROJECT, one)) == digest(values_of(PROJECT, other))) == same


def test_names_of_directories_are_safe(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LR", "0.5")
    values = values_of(PROJECT, ["data.path='/a b/c,d.h5'", "optim.lr=${oc.env:LR}", "x.lr=2", "model.hidden=[16,8]"])
    name = directory_name(values, list(values))
    assert name.startswith("path-c-d_hidden-16-8_optim.lr-0.5_x.lr-2_")
    assert values["optim.lr"] == "0.5"
    assert directory_name(values, ()).startswith("job_")
    huge = values_of(PROJECT, ["optim.lr=1e30"])
    assert directory_name(huge, ["optim.lr"]).startswith("lr-1e30_")
    assert repr(canonical({"a": [1.0, True, None]})) == "{'a': [1, True, None]}"  # as text: 1.0 == 1
    assert canonical("${seed}") == "${seed}"
    assert (
        len(directory_name(values_of(PROJECT, [f"a.key{i}={i}" for i in range(50)]), [f"a.key{i}" for i in range(50)]))
        < 100
    )
