"""Searches: the space, the study, pruning inside a job, kills and resumes."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.project import Program
from samebits.sweeps.options import SearchConfig
from samebits.sweeps.report import Objective
from samebits.sweeps.search.methods import Methods
from samebits.sweeps.search.objectives import choose, read
from samebits.sweeps.search.space import parse
from samebits.sweeps.search.storage import open_study
from samebits.sweeps.search.study import Search

PROGRAM = Program(
    name="theirs.project", root=Path(__file__).parent, allowed=(), factories=(), schema=object, own={}, paths=(),
    resolvers={}, check=lambda cfg: None, read=lambda cfg: cfg, fetch=lambda *_: {}, measure=lambda *_: {},
    training=lambda: lambda rank: {},
    scores=lambda cfg, *splits: [f"{split}/{name}" for split in splits for name in ("loss", "accuracy")],
)  # fmt: skip
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
        ConfigError,
        match=r"'val/acuracy' is not in result\.json - did you mean val/accuracy\? \(it contains: val/loss, val/acc",
    ):
        choose(PROGRAM, {"val/acuracy": "max"}, CONFIG)
    with pytest.raises(ConfigError, match=r"unknown mode 'maximum' \(modes: min, max\)"):
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
    with pytest.raises(ConfigError, match="contains another search"):
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
            ConfigError, match=r"contains another search \(optim\.lr=tag\(log,interval\(1e-4,1e-1\)\) .*val/loss min"
        ):
            a_search(settings(), arguments, objectives, "digits/lr", tmp_path)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"sampler": {"_target_": "os.system"}}, "hydra.sweeper.sampler._target_: os.system is not allowed"),
        ({"sampler": sampler("TPE")}, "optuna.samplers has no 'TPE'"),
        ({"sampler": sampler("TPESampler", n_startup=3)}, "did you mean 'n_startup_trials'?"),
        ({"sampler": sampler("BruteForceSampler")}, "an interval has infinitely many values"),
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
