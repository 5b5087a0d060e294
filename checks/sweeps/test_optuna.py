"""Searches: the space, the study, pruning inside a job, kills and resumes."""

from __future__ import annotations

import json
import os
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from lab.program import PROGRAM
from samebits.errors import ConfigError
from samebits.status import write_status
from samebits.sweeps.options import SearchConfig
from samebits.testing import start_run, status

optuna = pytest.importorskip("optuna", reason="needs the extra optuna")

from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution  # noqa: E402

from samebits.sweeps.search.methods import Methods  # noqa: E402
from samebits.sweeps.search.objectives import Objective, choose, read  # noqa: E402
from samebits.sweeps.search.space import parse  # noqa: E402
from samebits.sweeps.search.storage import open_study  # noqa: E402
from samebits.sweeps.search.study import Search  # noqa: E402

LOSS = [Objective("val/loss", "min")]


def settings(**changed: Any) -> SearchConfig:
    values: dict[str, Any] = dict.fromkeys(["objectives", "params", "storage", "study"])
    values |= {
        "n_trials": 8,
        "n_jobs": None,
        "seed": 0,
        "sampler": sampler("TPESampler"),
        "pruner": pruner("NopPruner"),
    }
    return SearchConfig(**{**values, **changed})


def sampler(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"optuna.samplers.{name}", **arguments}


def pruner(name: str, **arguments: Any) -> dict[str, Any]:
    return {"_target_": f"optuna.pruners.{name}", **arguments}


def a_search(config: SearchConfig, arguments: list[str], objectives: list[Objective], name: str, where: Path) -> Search:
    space = parse(arguments)
    return Search(config, space, Methods(PROGRAM, config, space), objectives, name, where)


# ---- the space
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
        ("hydra.sweeper.seed=1,2", "a search varies the experiment, not Hydra"),
    ],
)
def test_mistakes_in_a_space(override: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse([override])
    assert message in str(caught.value)


# ---- keys that are searched only where another has a certain value
OPTIM = ["optim.momentum=tag('if optim=sgd',interval(0.5,0.99))", "optim=sgd,adamw,muon"]


def test_a_key_is_drawn_only_where_its_condition_holds(tmp_path: Path) -> None:
    deep = "deep=tag('if x=0.3,4e-1','if optim=sgd',log,int,interval(1,64))"
    arguments = [*OPTIM, "x=range(0.1,0.5,0.1)", deep]
    space, seen = parse(arguments), set()
    search = a_search(settings(sampler=sampler("RandomSampler")), arguments, LOSS, "s", tmp_path)
    assert list(space.swept) == ["optim", "x", "optim.momentum", "deep"]
    for params in (search.ask().params for _ in range(40)):
        assert ("optim.momentum" in params) == (params["optim"] == "sgd")
        assert ("deep" in params) == (params["optim"] == "sgd" and params["x"] > 0.25)
        assert [text.partition("=")[0] for text in space.overrides(params)] == list(params)
        seen.add(len(params))
    assert seen == {2, 3, 4}


def test_a_condition_on_a_value_of_all_trials_holds_for_all_or_none() -> None:
    assert list(parse([OPTIM[0], "x=1,2", "optim=sgd"]).swept) == ["optim.momentum", "x"]
    momentum = "optim.momentum=tag('if optim=sgd',range(0.8,1,0.1))"
    space = parse([momentum, "x=1,2", "optim=adamw", "nesterov=tag('if optim.momentum=0.9',choice(true))"])
    assert list(space.swept) == ["x"]
    assert space.overrides({"x": "1"}) == ["optim=adamw", "x=1"]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (OPTIM[:1], "'if optim=sgd': optim is neither searched nor set here - give it too, optim=..."),
        ([OPTIM[0], "optm=1,2"], "'if optim=sgd': optim is neither searched nor set here - did you mean optm?"),
        (["a=tag('if b=z',range(3))", "b=x,y"], "'if b=z': b is never z here (it is one of: x, y)"),
        (["a=tag('if b=7',range(3))", "b=range(5)"], "'if b=7': b is never 7 here (it is one of: 0, 1, 2, 3, 4)"),
        (["a=tag('if b=0.5',range(3))", "b=interval(0,1)"], "'if b=0.5': an interval has no end of values"),
        (["a=tag('if b=interval(0,1)',range(3))", "b=1,2"], "is no condition - write 'if key=value'"),
        (["a=tag('if b',range(3))", "b=1,2"], "is no condition - write 'if key=value'"),
        (["a=tag('if b=1',range(3))", "b=tag('if a=1',range(3))"], "leads back to itself (a -> b -> a)"),
        (["a=tag('if b=1','if c=1',range(3))", "b=1,2", "c=tag('if b=2',choice(1,2))"], "exclude each other"),
    ],
)
def test_mistakes_in_a_condition(overrides: list[str], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(overrides)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "count"),
    [(["a=range(3)", "b=tag('if a=1,2',choice(x,y))", "c=tag('if b=y',range(2))"], 7),
     (["a=range(3)", "b=x,y", "c=range(0.1,0.3,0.1)"], 12)],
)  # fmt: skip
def test_every_combination_once_and_no_more(tmp_path: Path, arguments: list[str], count: int) -> None:
    search = a_search(settings(sampler=sampler("BruteForceSampler"), n_trials=50), arguments, LOSS, "s", tmp_path)
    while search.has_room():
        search.tell(search.ask().number, "complete", [0.0])
    assert len({json.dumps(t.params) for t in search.ended()}) == len(search.ended()) == count


# ---- objectives
CONFIG = {
    "monitor": {"key": "val/loss", "mode": "min"},
    "task": {"_target_": "lab.tasks.supervised.Supervised", "metrics": {"accuracy": {}}},
    "data": {},
}


def test_objectives_are_the_monitor_or_named_keys_of_a_result() -> None:
    assert choose(PROGRAM, None, CONFIG) == LOSS
    several = choose(PROGRAM, {"val/accuracy": "max", "seconds": "min"}, CONFIG)
    assert read({"val/accuracy": 0.5, "seconds": 3}, several) == ([0.5, 3.0], "")
    for result, why in [
        ({"seconds": 3}, "result.json has no number for val/accuracy"),
        ({"val/accuracy": float("nan"), "seconds": 3}, "val/accuracy is not a number (NaN)"),
        ({"val/accuracy": None, "seconds": 3}, "val/accuracy is not a number (NaN)"),  # as result.json has it
    ]:
        assert read(result, several) == ([], why)
    with pytest.raises(
        ConfigError, match=r"no 'val/acuracy' - did you mean val/accuracy\? \(it has: val/loss, val/acc"
    ):
        choose(PROGRAM, {"val/acuracy": "max"}, CONFIG)
    with pytest.raises(ConfigError, match=r"no mode 'maximum' \(modes: min, max\)"):
        choose(PROGRAM, {"val/accuracy": "maximum"}, CONFIG)


# ---- the study
SPACE = ["optim.lr=tag(log,interval(1e-4,1e-1))", "model.hidden=choice([16],[32])", "x=range(4)"]


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["TPESampler", "CmaEsSampler", "QMCSampler", "NSGAIISampler", "RandomSampler"])
def test_the_seed_says_what_is_drawn_and_a_restart_changes_nothing(tmp_path: Path, kind: str) -> None:
    """Killed with a trial begun, and started again: the draws of an undisturbed one, none where a condition is off."""
    arguments = [*OPTIM, *SPACE]

    def trials(name: str, until: int, killed: bool = False) -> list[dict[str, Any]]:
        (tmp_path / name).mkdir(exist_ok=True)
        node = sampler(kind, **({"n_startup_trials": 3} if kind == "TPESampler" else {}))
        search = a_search(settings(sampler=node), arguments, LOSS, "s", tmp_path / name)
        waiting = search.running()
        while waiting or len(search.trials()) < until:
            trial = waiting.pop() if waiting else search.ask()
            search.tell(trial.number, "complete", [trial.params["optim.lr"] + trial.params.get("optim.momentum", 0)])
        if killed:
            search._study.ask()
        return [t.params for t in search.trials()]

    straight = trials("straight", 12)
    trials("killed", 6, killed=True)
    assert trials("killed", 12) == straight
    assert {len(params) for params in straight} == {4, 5}
    with pytest.raises(ConfigError, match="holds another search"):
        a_search(settings(), [OPTIM[0].replace("sgd", "muon"), *arguments[1:]], LOSS, "s", tmp_path / "straight")


def test_a_trial_killed_while_it_was_drawn_is_drawn_to_its_end(tmp_path: Path) -> None:
    study = open_study(None, "s", tmp_path, ["min"])
    study.set_user_attr("space", None)
    a_search(settings(), SPACE, LOSS, "s", tmp_path)
    trial = study.ask()
    lr = trial.suggest_float("optim.lr", 1e-4, 1e-1, log=True)
    [asked] = a_search(settings(), SPACE, LOSS, "s", tmp_path).running()
    assert asked.params.keys() == {"optim.lr", "model.hidden", "x"}
    assert asked.params["optim.lr"] == lr


def test_failed_trials_count_and_are_tried_again_on_request(tmp_path: Path) -> None:
    search = a_search(settings(n_trials=3), SPACE, LOSS, "s", tmp_path)
    first = search.ask()
    search.tell(first.number, "fail", why="out of memory")
    assert [t.user_attrs["why"] for t in search.ended()] == ["out of memory"]
    search.retry_failed()
    assert search.ended() == []
    again = search.ask()
    assert (again.number, again.params) == (1, first.params)
    search.tell(again.number, "complete", [1.0])
    search.retry_failed()
    assert [t.number for t in search.ended()] == [1]


@pytest.mark.slow
def test_the_storage_is_a_file_of_the_sweep_and_keeps_to_one_search(tmp_path: Path) -> None:
    search = a_search(settings(), [*SPACE, "trainer.max_steps=1", "logger=none"], LOSS, "digits/lr", tmp_path)
    search.ask()
    with sqlite3.connect(tmp_path / "study.db") as db:
        assert db.execute("select study_name from studies").fetchall() == [("digits/lr",)]
    # what does not say what is computed may change
    a_search(
        settings(sampler=sampler("RandomSampler"), n_trials=99),
        [*SPACE, "trainer.max_steps=1"],
        LOSS,
        "digits/lr",
        tmp_path,
    )
    for arguments, objectives in [
        ([*SPACE], LOSS),
        ([*SPACE, "trainer.max_steps=6"], LOSS),
        ([*SPACE, "trainer.max_steps=true"], LOSS),  # to Python True is 1
        (["optim.lr=interval(1,2)", "trainer.max_steps=1"], LOSS),
        ([*SPACE, "trainer.max_steps=1"], [Objective("val/loss", "max")]),
        ([*SPACE, "trainer.max_steps=1"], [*LOSS, Objective("seconds", "min")]),
    ]:
        with pytest.raises(
            ConfigError, match=r"holds another search \(optim\.lr=tag\(log,interval\(1e-4,1e-1\)\) .*val/loss min"
        ):
            a_search(settings(), arguments, objectives, "digits/lr", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampler": {"_target_": "os.system"}}, "hydra.sweeper.sampler._target_: os.system is not allowed"),
        ({"sampler": sampler("TPE")}, "optuna.samplers has no 'TPE'"),
        ({"sampler": sampler("TPESampler", n_startup=3)}, "did you mean 'n_startup_trials'?"),
        ({"sampler": sampler("BruteForceSampler")}, "an interval has no end of values"),
        ({"pruner": pruner("ThresholdPruner")}, "Either lower or upper must be specified"),
        (
            {"storage": "postgresql+nodriver://me:secret@host/db"},
            "hydra.sweeper.storage=postgresql+nodriver://***@host/db: ",
        ),
        ({"storage": "sqlite:////no/such/folder/x.db"}, "unable to open database file"),
    ],
)
def test_mistakes_of_a_search_are_one_line(tmp_path: Path, changed: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        a_search(settings(**changed), SPACE, LOSS, "s", tmp_path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_pruning_needs_one_score_that_is_known_on_the_way() -> None:
    methods = Methods(PROGRAM, settings(pruner=pruner("MedianPruner")), parse(SPACE))
    for objectives, eval_every, message in [
        ([*LOSS, Objective("seconds", "min")], 5, "several objectives"),
        ([Objective("seconds", "min")], 5, "a val/ score"),
        (LOSS, None, "trainer.eval_every is null"),
    ]:
        with pytest.raises(ConfigError, match=message):
            methods.check_pruning(objectives, {"trainer": {"eval_every": eval_every}})


# ---- pruning inside a run
def study_with_good_trials(sweep_dir: Path, evaluations: int = 20) -> Any:
    """A study whose one complete trial had no loss at all, at every evaluation."""
    study = open_study(None, "s", sweep_dir, ["min"])
    trial = study.ask()
    for evaluation in range(evaluations):
        trial.report(0.0, evaluation)
    study.tell(trial, 0.0)
    return study


def trial_directory(sweep_dir: Path, **arguments: Any) -> tuple[Path, Any]:
    study = study_with_good_trials(sweep_dir)
    trial = study.ask()
    run_dir = sweep_dir / "trial_0001"
    run_dir.mkdir()
    facts = {"study": "s", "storage": None, "trial": trial.number, "params": {}, "objective": "val/loss"}
    facts["pruner"] = pruner("MedianPruner", n_startup_trials=1, **arguments)
    (run_dir / "trial.json").write_text(json.dumps(facts))
    return run_dir, study


PRUNED = [*QUICK, "trainer.max_steps=40", "trainer.eval_every=4", "trainer.log_every=10"]


@pytest.mark.slow
def test_a_pruned_run_stops_and_stays_so(tmp_path: Path) -> None:
    """Of several ranks: test_optuna_runs.py."""
    run_dir, study = trial_directory(tmp_path, n_warmup_steps=2)
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "pruned"
    assert status(run_dir)["step"] == 12  # the third evaluation: two are never the last
    assert not (run_dir / "result.json").exists()
    assert study.trials[1].intermediate_values.keys() == {0, 1, 2}
    evaluated = [json.loads(line)["step"] for line in (run_dir / "metrics.jsonl").read_text().splitlines()]
    assert max(evaluated) == 12
    write_status(run_dir, "running")  # as one that was killed before it could say how it ended
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "pruned"
    assert not (run_dir / "result.json").exists()


@pytest.mark.slow
def test_a_run_goes_on_where_its_search_cannot_be_reached(tmp_path: Path) -> None:
    run_dir, _ = trial_directory(tmp_path)
    os.remove(tmp_path / "study.db")
    (tmp_path / "study.db").mkdir()
    start_run(run_dir, *PRUNED)
    assert status(run_dir)["status"] == "finished"
    assert (run_dir / "train.log").read_text().count("goes on without pruning") == 1
