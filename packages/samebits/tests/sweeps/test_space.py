"""The space of a search: override syntax, conditions, and mistakes in both."""

from __future__ import annotations

from typing import Any

import pytest

from samebits.errors import ConfigError

optuna = pytest.importorskip("optuna", reason="needs the extra optuna")
from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from samebits.sweeps.search.space import parse  # noqa: E402


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("a=interval(0.5,2)", FloatDistribution(0.5, 2.0)),
        ("a=interval(1,2)", FloatDistribution(1.0, 2.0)),
        ("a=tag(log,interval(1e-4,1e-1))", FloatDistribution(1e-4, 1e-1, log=True)),
        ("a=int(interval(1,4))", IntDistribution(1, 4)),
        ("a=tag(int,log,interval(1,64))", IntDistribution(1, 64, log=True)),
        ("a=range(1,5)", IntDistribution(1, 4)),
        ("a=range(3)", IntDistribution(0, 2)),
        ("a=range(1,10,4)", IntDistribution(1, 9, step=4)),
        ("a=range(9,0,-4)", IntDistribution(1, 9, step=4)),
        ("a=range(0.1,0.5,0.1)", FloatDistribution(0.1, 0.4, step=0.1)),
        ("a=choice([16],[32,32])", CategoricalDistribution(["[16]", "[32,32]"])),
        ("a=shuffle(choice(b,a))", CategoricalDistribution(["b", "a"])),
        ("a=1,1.0,true,null", CategoricalDistribution(["1", "1.0", "True", "null"])),
        ("+a='x y',z", CategoricalDistribution(["'x y'", "z"])),
    ],
)
def test_override_syntax_becomes_distributions(override: str, expected: Any) -> None:
    [found] = parse([override]).swept.values()
    assert found == expected


def test_every_value_of_a_space_is_an_override_that_reads_as_itself() -> None:
    """What is drawn goes back through Hydra's grammar to the same value, real ones to six digits."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    space = parse(["a=tag(log,interval(1e-9,1e-1))", "b=range(0.1,1,0.1)", "c='x,y',z", "d=range(5)", "e=3", "~f"])
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=0))
    steps = {0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9}
    for _ in range(20):
        params = study.ask(space.swept).params
        fixed_e, fixed_f, *drawn = space.overrides(params)
        assert (fixed_e, fixed_f) == ("e=3", "~f")
        values = {o.key_or_group: o.value() for o in OverridesParser.create().parse_overrides(drawn)}
        assert values["a"] == pytest.approx(params["a"], rel=1e-5)
        assert 1e-9 <= values["a"] <= 1e-1
        assert len(drawn[0]) <= len("a=1.23456e-09")
        assert values["b"] in steps
        assert values["c"] in ("x,y", "z")
        assert values["d"] == params["d"]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("a=interval(3,1)", "a=interval(3,1): `low <= high` must hold"),
        ("a=tag(log,interval(0,1))", "`low > 0` must hold for `log=True`"),
        ("a=tag(lgo,interval(1,2))", "no tag 'lgo' (tags: log, int, 'if key=value')"),
        ("a=range(3,3)", "this range is empty"),
        ("a=tag(log,choice(1,2))", "a choice has no scale"),
        ("hydra.sweeper.seed=1,2", "keys of Hydra cannot be searched"),
    ],
)
def test_mistakes_in_a_space(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([override])
    assert message in str(caught.value)


OPTIM = ["optim.momentum=tag('if optim=sgd',interval(0.5,0.99))", "optim=sgd,adamw,muon"]


def test_a_condition_on_a_value_of_all_trials_holds_for_all_or_none() -> None:
    assert list(parse([OPTIM[0], "x=1,2", "optim=sgd"]).swept) == ["optim.momentum", "x"]
    momentum = "optim.momentum=tag('if optim=sgd',range(0.8,1,0.1))"
    space = parse([momentum, "x=1,2", "optim=adamw", "nesterov=tag('if optim.momentum=0.9',choice(true))"])
    assert list(space.swept) == ["x"]
    assert space.overrides({"x": "1"}) == ["optim=adamw", "x=1"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (OPTIM[:1], "'if optim=sgd': optim is neither searched nor set - give it too, optim=..."),
        ([OPTIM[0], "optm=1,2"], "'if optim=sgd': optim is neither searched nor set - did you mean optm?"),
        (["a=tag('if b=z',range(3))", "b=x,y"], "'if b=z': b is never z (it is one of: x, y)"),
        (["a=tag('if b=7',range(3))", "b=range(5)"], "'if b=7': b is never 7 (it is one of: 0, 1, 2, 3, 4)"),
        (["a=tag('if b=0.5',range(3))", "b=interval(0,1)"], "'if b=0.5': an interval has infinitely many values"),
        (["a=tag('if b=interval(0,1)',range(3))", "b=1,2"], "is not a condition - write 'if key=value'"),
        (["a=tag('if b',range(3))", "b=1,2"], "is not a condition - write 'if key=value'"),
        (["a=tag('if b=1',range(3))", "b=tag('if a=1',range(3))"], "form a cycle (a -> b -> a)"),
        (["a=tag('if b=1','if c=1',range(3))", "b=1,2", "c=tag('if b=2',choice(1,2))"], "exclude each other"),
    ],
)
def test_mistakes_in_a_condition(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
