"""Translate the command line of a W&B sweep's agent (conf/wandb_sweep.yaml) to Hydra's syntax. Does not import torch.

The agent writes values like Python's str(): nested parameters as {'lr': 0.1}, null as None, a list as ['a', 'b'], text
without quotes. A run that W&B has queued again gets its whole config as arguments, with a key _wandb
(github.com/wandb/wandb/issues/9143); the original overrides are contained in it.
"""

from __future__ import annotations

import ast
import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from samebits.errors import ConfigError
from samebits.project import Project
from samebits.saved import flat, translate_override


def agents_run() -> tuple[str, str] | None:
    """Return W&B's ids (sweep, run) if its agent started this process, otherwise None."""
    sweep, run = os.environ.get("WANDB_SWEEP_ID"), os.environ.get("WANDB_RUN_ID")
    return (sweep, run) if sweep and run else None


def run_folder(otherwise: str) -> str:
    """Return a run's folder below its name: `otherwise`, or the ids of the agent's run, so that a retry finds it
    again."""
    return otherwise if agents_run() is None else f"{id_in('WANDB_SWEEP_ID')}/{id_in('WANDB_RUN_ID')}"


def id_in(variable: str) -> str | None:
    """Return the id of W&B in an environment variable, None if it is unset or empty. Raise ConfigError if it is not
    valid."""
    value = os.environ.get(variable)
    if value and not re.fullmatch(r"\w[\w.-]*", value):
        raise ConfigError(f"{variable}={value}: not an id of W&B that can be used as a folder name")
    return value or None


def from_agent(project: Project, arguments: Sequence[str]) -> list[str]:
    """Return the arguments in Hydra's syntax, with resume=auto; unchanged if the agent did not start this process."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return list(arguments)
    if (began_with := _recorded(project, arguments)) is not None:
        plain = (text for text in arguments if text.startswith(("hydra", "-")))
        translated = [*plain, *(text for text in began_with if not text.startswith("resume="))]
    else:
        translated = [override for argument in arguments for override in _translated(argument)]
    multirun = {"-m", "--multirun"} & set(translated)
    if agents_run() is None or multirun or any(text.startswith("resume=") for text in translated):
        return translated
    return [*translated, "resume=auto"]


def is_agent_retry(project: Project) -> bool:
    """Return True if W&B's agent has started this process to retry a run."""
    return agents_run() is not None and _recorded(project, sys.argv[1:]) is not None


def _recorded(project: Project, arguments: Sequence[str]) -> list[str] | None:
    """Return the overrides that a run's whole config contains, see samebits.loggers.wandb_log: run={'overrides':
    [...]}."""
    for argument in arguments:
        if argument.startswith("run={"):
            known = ast.literal_eval(argument.removeprefix("run="))["overrides"]
            return [translate_override(project, one) for one in known]
    return None


def _translated(argument: str) -> Iterator[str]:
    """Translate an argument: optim={'lr': 0.1, 'betas': [0.9, 0.99]} -> optim.lr=0.1 optim.betas=[0.9,0.99]."""
    key, equals, text = argument.partition("=")
    if not equals or key.startswith("-"):
        yield argument
        return
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if value is None or isinstance(value, (bool, list, tuple, dict)):
        yield from (f"{name}={written(one)}" for name, one in flat(value, key).items() if one != {})
    else:
        yield argument if _one_value(argument) else f"{key}={quote_value(text)}"


def written(value: Any) -> str:
    """Return a plain value in Hydra's syntax."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (list, tuple)):
        return f"[{','.join(map(written, value))}]"
    if isinstance(value, Mapping):
        return "{" + ",".join(f"{name}:{written(inner)}" for name, inner in value.items()) + "}"
    return repr(value) if isinstance(value, (int, float)) else quote_value(value)


def quote_value(text: str) -> str:
    """Return any text as a quoted string of Hydra's grammar."""
    # a backslash is literal, except in a sequence of backslashes before a quote
    escaped = re.sub(r"(\\+)(?=\Z|')", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def _one_value(argument: str) -> bool:
    """Return True if Hydra reads it as one value: "a,b" is a sweep, "a: {" a syntax error."""
    # imported here, because reports use this file without Hydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return not OverridesParser.create().parse_override(argument).is_sweep_override()
    except HydraException:
        return False
