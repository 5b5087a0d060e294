"""The hint for an unknown key: the key with one typo less, then an option that has it, then a plus."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from common import needs

from lab.program import PROGRAM
from samebits.config import composed, recipe_hint, unknown_key
from samebits.schema import at, walk

TYPOS = {
    "doubled": lambda name: name[:1] + name,
    "added": lambda name: f"{name}x",
    "left out": lambda name: name[:1] + name[2:],
    "swapped": lambda name: name[1::-1] + name[2:],
    "replaced": lambda name: f"{name[:-1]}0" if len(name) > 2 else name,
}


@needs("conf/optim/schedule/step_every.yaml", "conf/data/transforms/normalize.yaml", "conf/callback/summary.yaml")
@pytest.mark.parametrize("typo", TYPOS)
@pytest.mark.parametrize(
    "choices",
    [(), ("optim/schedule=step_every", "data/transforms=[to_float,normalize]", "callback=[graph,summary]")],
    ids=["default", "other"],
)
def test_a_key_with_one_typo_is_named(typo: str, choices: tuple[str, ...]) -> None:
    """In each group, also in those that accept new keys; unless the typo gives another key, or one of an older
    version."""
    cfg = {name: node for name, node in composed(PROGRAM, choices).items() if name != "hydra"}
    parts = [key.split(".") for key, _ in walk(cfg)]
    wrong = 0
    for above, name in sorted({(tuple(key[:k]), key[k]) for key in parts for k in range(len(key))}):
        there: Any = at(cfg, list(above)) if above else cfg
        typed = TYPOS[typo](name)
        if not name.isidentifier() or name.startswith("_") or not isinstance(there, dict) or typed in ("", *there):
            continue
        key, wanted = ".".join((*above, typed)), ".".join((*above, name))
        if key in PROGRAM.moved_keys:
            continue
        line = unknown_key(PROGRAM, key, [f"{key}=0"], lambda *given: cfg)
        # data.fold0 may be data.fold or data.folds
        others = [".".join((*above, other)) for other in there if name in (f"{other}s", other[:-1])]
        assert any(f" - did you mean {one}? (" in line for one in (wanted, *others)), line
        assert "with a plus" not in line
        wrong += 1
    assert wrong > 80


@needs("conf/optim/schedule/step_every.yaml", "conf/data/transforms/normalize.yaml", "conf/callback/summary.yaml")
@pytest.mark.parametrize(
    ("key", "hint"),
    {
        "data.transforms.normalise.mean": " - choose data/transforms=[to_float,normalize] (data.transforms has: "
        "to_float)",
        "callback.sumary.depth": " - choose callback=summary (callback is empty)",
        "optim.schedule.step_every": " - choose optim/schedule=step_every (optim.schedule has: warmup, final)",
        "optim.schedule.every": " - choose optim/schedule=step_every (optim.schedule has: warmup, final)",
        "optim.schedule.steps_of_my_own": " (optim.schedule has: warmup, final) - add a new key with a plus, "
        "+optim.schedule.steps_of_my_own=0, if lab.schedules.cosine.Cosine accepts it",
        "data.transforms.own.mean": " (data.transforms has: to_float) - add a new key with a plus, "
        "+data.transforms.own._target_=...",
        "data.fields.name": " (data.fields has: x, y) - add a new key with a plus, +data.fields.name=0",
        "data.order.seed": " (data.order is empty) - add a new key with a plus, +data.order.seed=0, if "
        "samebits.data.order.shuffled accepts it",
    }.items(),
)
def test_a_key_of_another_option(key: str, hint: str) -> None:
    """A plus is suggested only where no option has the key, and an entry of a list of nodes needs its class."""
    line = unknown_key(PROGRAM, key, [f"{key}=0"], composed)
    assert line.partition(": no such key")[2] == hint


@needs("conf/logger/wandb.yaml", "conf/data/transforms/crop.yaml", "conf/callback/curves.yaml")
@pytest.mark.parametrize(
    ("key", "chosen", "hint"),
    [
        ("data.transforms.flip.seed", "data/transforms=[to_float,crop]", "data/transforms=[to_float,crop,flip]"),
        ("callback.curve.x", "callback=[pictures,graph]", "callback=[pictures,graph,curves]"),
        ("callback.curve.x", "callback=pictures,graph", "callback=curves"),  # a sweep
        ("logger.wandb.project", "logger=tensorboard", "logger=wandb"),  # its options are no nodes with a class
    ],
)
def test_the_options_that_are_chosen_stay(key: str, chosen: str, hint: str) -> None:
    line = unknown_key(PROGRAM, key, [chosen, f"{key}=0"], composed)
    assert f": no such key - choose {hint} (" in line


@needs("conf/data/parquet.yaml", "conf/experiment/image_folder.yaml")
def test_the_command_of_a_yaml_is_for_who_lacks_a_part_of_it(tmp_path: Path) -> None:
    """Its placeholders and remarks are no parts, and no argument but an option is read as a file."""
    typed = ["data=parquet", "data.path=animals"]
    error, chosen = "data.fields.y: no column", {"data": "parquet", "experiment": "image_folder"}
    hint = recipe_hint(error, chosen, typed, PROGRAM.conf)
    assert hint.endswith("data=parquet data.path=FOLDER 'data.fields={x: [age, height, weight], y: species}'")
    for fields in (["data.fields={x: age, y: sort}"], ["data.fields.x=age", "data.fields.y=sort"]):
        assert recipe_hint(error, chosen, [*typed, *fields], PROGRAM.conf) == ""
    hint = recipe_hint(error, chosen, ["experiment=image_folder"], PROGRAM.conf)
    assert hint.endswith(": ./run train experiment=image_folder data.path=photos")
    assert recipe_hint(error, chosen, ["experiment=image_folder", "data.path=a"], PROGRAM.conf) == ""
    folder = tmp_path / "private"
    for name in (str(folder / "a"), "x" * 300):
        assert recipe_hint(error, chosen, [f"data.path={name}", f"{name}=1"], Refusing(PROGRAM.conf)) == ""


class Refusing(type(Path())):  # type: ignore[misc]
    """A folder of which no file may be looked at."""

    def is_file(self, **more: Any) -> bool:
        raise PermissionError(13, "Permission denied", str(self))


@needs("conf/task/mae.yaml", "conf/task/gan.yaml", "conf/task/streaming.yaml")
@pytest.mark.parametrize(
    ("task", "error", "command"),
    [
        ("mae", "task.decoder.num_inputs: there is no key model.width", "task=mae model=vit hydra.run.dir=outputs/mae"),
        ("gan", "model: generates samples of another shape", "task=gan model.input_shape=[32] model.num_outputs=64 "
         "optim.lr=1e-4 optim.betas=[0.0,0.9] trainer.clip_norm=null"),
        ("gan", "MLP was built for other samples", "task=gan model.input_shape=[32] model.num_outputs=64 "
         "optim.lr=1e-4 optim.betas=[0.0,0.9] trainer.clip_norm=null"),
        ("streaming", "data.order: has no lanes", "experiment=streaming"),
        ("gan", "task.penalty: must be >= 0, got -1", ""),
        ("mae", "hardware.device=cuda: there is no GPU", ""),
        ("classification", "model: wrong", ""),
    ],
)  # fmt: skip
def test_an_error_of_an_option_names_the_command_of_its_yaml(task: str, error: str, command: str) -> None:
    """Unless the error is about a key that this command does not set, or the command line is this command."""
    chosen = {"task": task, "model": "mlp", "data": "h5"}
    hint = recipe_hint(error, chosen, [f"task={task}"], PROGRAM.conf)
    assert hint == (command and f" - conf/task/{task}.yaml begins with a command that trains it: ./run train {command}")
    assert recipe_hint(error, chosen, [f"task={task}", *command.split()], PROGRAM.conf) == ""
    assert recipe_hint(error, chosen | {"task": "of an experiment"}, [f"task={task}"], PROGRAM.conf) == ""


def test_an_error_without_a_key_is_not_about_what_the_user_knows() -> None:
    """Of the command the user has typed the keys of the model, and the error names none of the others."""
    typed = ["task=gan", "model.input_shape=[32]", "model.num_outputs=64", "task.critic.input_shape=[3]"]
    assert recipe_hint("MLP was built for others", {"task": "gan"}, typed, PROGRAM.conf) == ""
