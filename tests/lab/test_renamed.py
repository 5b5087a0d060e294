"""An attribute or method of 0.2 in a user's code is an error with the new name."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lab.renamed import OF_RUN, OF_STATE, OF_TASK, check_method, check_task_names
from lab.state import RunContext, TrainState
from lab.tasks.base import Task
from samebits.errors import ConfigError


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
