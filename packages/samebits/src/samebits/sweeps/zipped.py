"""Keys whose values form pairs instead of all combinations: sweep.zip=optim,optim.lr. Does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from samebits.errors import ConfigError
from samebits.files import amount

Zip = Sequence[str | list[str]] | None
EXAMPLE = "sweep.zip=key1,key2, or for several groups of keys 'sweep.zip=[[key1,key2],[key3,key4]]'"
MAX_VALUES = 4  # values of a key that an error shows


def groups_of(zipped: Zip) -> list[list[str]]:
    """Return the groups of keys that are zipped. Raise ConfigError for another form, or a key that is given twice."""
    if not zipped:
        return []
    groups = [[str(key) for key in zipped]] if all(isinstance(one, str) for one in zipped) else list(zipped)
    if not all(isinstance(group, list) and len(group) > 1 for group in groups):
        raise ConfigError(f"sweep.zip={_listed(zipped)}: expected at least two keys, {EXAMPLE}")
    keys = [key for group in groups for key in group]
    if twice := [key for key in dict.fromkeys(keys) if keys.count(key) > 1]:
        raise ConfigError(f"sweep.zip={_listed(zipped)}: {twice[0]} is given twice - remove one")
    return groups  # type: ignore[return-value] # checked above


def axes(choices: Mapping[str, Sequence[str]], zipped: Zip) -> list[list[dict[str, str]]]:
    """Return one axis per key or group of zipped keys; an axis is a list of {key: override}. The combinations of a
    sweep are the product of the axes.

    choices: {key as typed: one override per value}. Raise ConfigError if a zipped key has no values, or if zipped keys
    have different numbers of values."""
    typed = {key.lstrip("+"): key for key in choices}
    group_of: dict[str, tuple[str, ...]] = {}
    for group in groups_of(zipped):
        for key in group:
            if key not in typed:
                raise ConfigError(
                    f"sweep.zip: {key} has no values in this command - add {key}=..., one value for each value of "
                    f"{next(other for other in group if other != key)}, or remove it from sweep.zip"
                )
        together = tuple(typed[key] for key in group)
        for other in together[1:]:
            if len(choices[other]) != len(choices[together[0]]):
                raise ConfigError(
                    f"sweep.zip: {_counted(together[0], choices)}, but {_counted(other, choices)} - give both the same "
                    "number of values"
                )
        group_of |= dict.fromkeys(together, together)
    ordered = dict.fromkeys(group_of.get(key, (key,)) for key in choices)
    return [[dict(zip(keys, texts)) for texts in zip(*(choices[key] for key in keys))] for keys in ordered]


def _counted(key: str, choices: Mapping[str, Sequence[str]]) -> str:
    number = len(choices[key])
    shown = [text.partition("=")[2] for text in choices[key][:MAX_VALUES]] + ["..."] * (number > MAX_VALUES)
    return f"{key.lstrip('+')} has {amount(number, 'value')} ({', '.join(shown)})"


def _listed(zipped: Sequence[str | list[str]]) -> str:
    return f"[{','.join(one if isinstance(one, str) else _listed(one) for one in zipped)}]"
