"""Check that options have their declared types, for the command line, Hydra and Python."""

from __future__ import annotations

import collections.abc
import numbers
import types
from collections.abc import Mapping
from typing import Any, Literal, Union, get_args, get_origin

from h5rows.errors import ConfigError


def check_options(hints: Mapping[str, Any], values: Mapping[str, Any]) -> None:
    """Raise ConfigError for the first value that its type hint does not allow.

    hints: name -> type hint. values: name -> value.
    """
    for name, value in values.items():
        if not fits(value, hints[name]):
            raise ConfigError(f"{name}={value!r}: must be {said(hints[name])}")


def fits(value: Any, hint: Any) -> bool:
    """Return True if the value has the type of the hint. hint: a type, Literal, |, Annotated, tuple, Sequence or
    Mapping of such."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, one) for one in inner)
    if origin is Literal:
        return any(value == one and type(value) is type(one) for one in inner)
    if origin is collections.abc.Mapping:
        return isinstance(value, Mapping) and all(fits(k, inner[0]) and fits(v, inner[1]) for k, v in value.items())
    if origin is collections.abc.Sequence:
        several = isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes))
        return several and all(fits(one, inner[0]) for one in value)
    if origin is tuple:
        several = isinstance(value, collections.abc.Sequence) and not isinstance(value, (str, bytes))
        each = inner[:1] * len(value) if several and inner[-1] is ... else inner
        return several and len(each) == len(value) and all(map(fits, value, each))
    if hasattr(hint, "__metadata__"):  # Annotated
        return fits(value, hint.__origin__)
    if hint in (int, float):
        kind = numbers.Integral if hint is int else numbers.Real
        return isinstance(value, kind) and not isinstance(value, bool)
    return isinstance(value, hint)


def said(hint: Any) -> str:
    """Return a type hint in words."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(said, inner))
    if origin is Literal:
        return " or ".join(map(repr, inner))
    if hasattr(hint, "__metadata__"):
        return said(hint.__origin__)
    if origin is not None:
        return str(hint).removeprefix("collections.abc.")
    return {int: "a whole number", float: "a number", str: "a text", bool: "True or False", type(None): "None"}[hint]
