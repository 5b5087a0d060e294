"""Attributes of foreign formats, which are JSON, as HDF5's."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from h5rows.importers.base import printable
from h5rows.packing.account import Account


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
    """Numbers, and texts that HDF5 takes, as they are; all else as JSON text."""
    if isinstance(value, (np.ndarray, np.generic, bool, float)):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 64:
        return np.int64(value) if value < 1 << 63 else np.uint64(value)
    return value if isinstance(value, str) and "\0" not in value and printable(value) == value else json.dumps(value)
