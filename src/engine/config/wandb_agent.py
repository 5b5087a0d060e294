"""Translate the command line of a W&B sweep's agent (conf/wandb_sweep.yaml) into Hydra's syntax.

The agent writes values as Python's str() does: nested parameters as {'lr': 0.1}, null as None, a list as ['a', 'b'],
text without quotes. Imports no torch.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


def from_agent(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments in Hydra's syntax; unchanged if the agent did not start this process."""
    if not os.environ.get("WANDB_SWEEP_ID"):
        return list(arguments)
    return [override for argument in arguments for override in _translated(argument)]


def _translated(argument: str) -> Iterator[str]:
    """optim={'lr': 0.1, 'betas': [0.9, 0.99]} -> optim.lr=0.1 optim.betas=[0.9,0.99]"""
    key, equals, text = argument.partition("=")
    if not equals or key.startswith("-"):
        yield argument
        return
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    if isinstance(value, Mapping):
        yield from _flat(key, value)
    elif value is None or isinstance(value, (bool, list, tuple)):
        yield f"{key}={written(value)}"
    else:
        yield argument if _one_value(argument) else f"{key}={quote_value(text)}"


def _flat(key: str, value: Any) -> Iterator[str]:
    if not isinstance(value, Mapping):
        yield f"{key}={written(value)}"
        return
    for name, inner in value.items():
        yield from _flat(f"{key}.{name}", inner)


def written(value: Any) -> str:
    """Returns a plain value in Hydra's syntax."""
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
    """As a string for Hydra's grammar, whatever is in it."""
    # backslashes count as such, but for a run of them before a quote
    escaped = re.sub(r"(\\+)(?=\Z|')", r"\1\1", text).replace("'", "\\'")
    return f"'{escaped}'"


def _one_value(argument: str) -> bool:
    """Whether Hydra reads it as one value: "a,b" is a sweep, "a: {" a syntax error."""
    # imported here, as a report needs the rest of this file and no Hydra
    from hydra.core.override_parser.overrides_parser import OverridesParser
    from hydra.errors import HydraException

    try:
        return not OverridesParser.create().parse_override(argument).is_sweep_override()
    except HydraException:
        return False
