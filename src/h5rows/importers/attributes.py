"""Attributes of foreign formats, which are JSON, as HDF5's."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from h5rows.importers.base import printable
from h5rows.packing.account import Account

WHOLE = ((np.int64, -(1 << 63), (1 << 63) - 1), (np.uint64, 0, (1 << 64) - 1))


def attributes(found: Mapping[Any, Any], of: str, account: Account) -> dict[str, Any]:
    """Attributes of one object as HDF5 takes them; `of` and a name are said where it does not."""
    made: dict[str, Any] = {}
    account.held["attributes"] += len(found)
    for name, value in found.items():
        text = str(name)
        if not text or "\0" in text or text.encode("utf-8", "replace").decode() != text or text in made:
            account.leave("attributes", f"{of}: {printable(text)!r}", "HDF5 takes no such name")
        else:
            made[text] = attribute(value)
    return made


def attribute(value: Any) -> Any:
    """Texts, numbers and lists of one kind of these as they are; all else as JSON text."""
    if isinstance(value, (np.ndarray, np.generic)):
        return value
    if isinstance(value, str) and storable(value):
        return value
    items = value if isinstance(value, (list, tuple)) else [value]
    kinds = {type(item) for item in items}
    if kinds == {str} and all(map(storable, items)):
        return list(items)
    if len(kinds) == 1 and (dtype := number_type(items)) is not None:
        return np.array(value, dtype)
    return json.dumps(value)


def number_type(items: Iterable[Any]) -> Any:
    kind = type(next(iter(items)))
    if kind is int:
        return next((dtype for dtype, low, high in WHOLE if all(low <= item <= high for item in items)), None)
    return {bool: np.bool_, float: np.float64}.get(kind)


def storable(text: str) -> bool:
    return "\0" not in text and printable(text) == text
