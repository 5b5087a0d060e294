"""Names of 0.2: options, keys and values are still read, with a line; an attribute in a user's code is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs
from torch import nn

from lab.renamed import OF_RUN, OF_STATE, OF_TASK, check_method, check_task_names
from lab.state import RunContext, TrainState
from lab.tasks.base import Task
from samebits.errors import ConfigError, translate_arguments
from samebits.schema import plain
from samebits.testing import compose


@pytest.mark.parametrize(
    ("given", "key", "value", "line"),
    [
        ("data.values=stored", "data.decode", False, "data.values=stored: was renamed to data.decode=false"),
        ("data.values=meant", "data.decode", True, "data.values=meant: was renamed to data.decode=true"),
        ("data.masked={y: drop}", "data.missing", {"y": "drop"}, "was renamed to data.missing={y: drop}"),
        ("trainer.eval_in_step=true", "trainer.pad_eval_batches", True, "was renamed to trainer.pad_eval_batches=true"),
        (
            "process.straggler_share=0.7",
            "process.straggler_threshold",
            0.7,
            "was renamed to process.straggler_threshold=0.7",
        ),
    ],
)
def test_an_old_override_is_read(
    given: str, key: str, value: Any, line: str, capfd: pytest.CaptureFixture[str]
) -> None:
    cfg = plain(compose(given))
    for part in key.split("."):
        cfg = cfg[part]
    assert cfg == value
    assert line in capfd.readouterr().err


@needs("conf/task/finetune.yaml")
def test_the_patterns_of_a_finetuned_model_had_another_name() -> None:
    assert compose("task=finetune", "task.weights=x", "task.frozen=[a]").task.freeze == ["a"]


def test_an_old_split_is_read(tmp_path: Path) -> None:
    splits = compose("data.split=80/20", "data.input_shape=[8,8]", "data.num_outputs=10").data.splits
    assert splits.train.rows == [0, 0.8]
    assert splits.test is None


class Old(Task):
    pass


@pytest.mark.parametrize("name", sorted(OF_TASK))
def test_an_old_name_in_a_task_is_an_error(name: str) -> None:
    new, kinds = OF_TASK[name]
    kind: Any = kinds[0] if isinstance(kinds, tuple) else kinds
    value: Any = (lambda self, *rest: None) if kind not in (bool, int, tuple, dict) else kind()
    with pytest.raises(ConfigError, match=rf"^task: Mine\.{name} is called {new} since 0\.3 - rename it$"):
        check_task_names(type("Mine", (Task,), {name: value})())
    assert hasattr(Task, new)
    assert not hasattr(Task, name)
    check_task_names(Old())


def test_an_old_declaration_about_random_numbers_is_an_error() -> None:
    line = r"Mine\.draws = False is uses_rng = False since 0\.3 - rename it$"
    with pytest.raises(ConfigError, match=f"^task: {line}"):
        check_task_names(type("Mine", (Task,), {"draws": False})())
    with pytest.raises(ConfigError, match=f"^optim: {line}"):
        check_method("optim", type("Mine", (), {"draws": False})(), "eval_weight")


def test_a_module_of_the_task_may_have_an_old_name() -> None:
    task = Old()
    task.trained = nn.Linear(1, 1)
    check_task_names(task)


@pytest.mark.parametrize(("kind", "owner", "names"), [(TrainState, "state", OF_STATE), (RunContext, "run", OF_RUN)])
def test_an_old_name_in_a_callback_is_an_error(kind: type, owner: str, names: dict[str, str]) -> None:
    for old, new in names.items():
        with pytest.raises(ConfigError, match=rf"^{owner}\.{old} is called {owner}\.{new} since 0\.3 - rename it$"):
            getattr(object.__new__(kind), old)
        assert new in kind.__dataclass_fields__ or hasattr(kind, new)  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="nothing"):
        object.__new__(kind).nothing  # noqa: B018


def test_an_old_method_of_an_optimizer_is_an_error() -> None:
    made = type("Mine", (), {"scored": lambda self, p: p})()
    with pytest.raises(ConfigError, match=r"^optim: Mine\.scored is called eval_weight since 0\.3 - rename it$"):
        check_method("optim", made, "eval_weight")
    check_method("optim", torch.optim.SGD([torch.zeros(1)]), "eval_weight")


def test_an_old_option_of_a_command_is_read(capsys: pytest.CaptureFixture[str]) -> None:
    renamed = {"--with": "--fields", "--apply": "--activation"}
    assert translate_arguments(["a", "--with=y", "--apply", "x"], renamed) == ["a", "--fields=y", "--activation", "x"]
    assert capsys.readouterr().err.splitlines() == [
        "--with: was renamed to --fields - please use the new name",
        "--apply: was renamed to --activation - please use the new name",
    ]  # fmt: skip
