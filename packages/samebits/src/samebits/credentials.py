"""User and password of an address are not saved: `redacted` leaves them to this process's environment, from which it
and those that it starts have them again by `restored`. So has every process whose environment holds the whole address,
as MLFLOW_TRACKING_URI does.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

HIDDEN = "***"
# also a token alone, in place of a user, where no user stands without a password
CREDENTIALS = re.compile(r"(https?://)[^/?#\s'\"]+@|([A-Za-z][\w+.-]*://)[^/?#\s'\"]*:[^/?#\s'\"]*@")


def redacted(node: Any) -> Any:
    """Returns a plain node without the credentials in its addresses, which this process's environment keeps."""

    def one(text: str) -> str:
        if (hidden := _hidden(text)) != text:
            os.environ[_variable(hidden)] = text
        return hidden

    return change_texts(node, one)


def restored(text: str) -> str:
    """Returns an address with its credentials; as it is where this process does not have them."""
    if f"{HIDDEN}@" not in text:
        return text
    known = os.environ.get(_variable(text))
    return known or next((value for value in os.environ.values() if value != text and _hidden(value) == text), text)


def _hidden(text: str) -> str:
    return CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}@", text)


def _variable(hidden: str) -> str:
    return f"ADDRESS_{hashlib.sha256(hidden.encode(errors='replace')).hexdigest()[:16].upper()}"


def change_texts(node: Any, change: Callable[[str], str]) -> Any:
    """A copy of a plain node with each text changed; keys stay."""
    if isinstance(node, dict):
        return {key: change_texts(value, change) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [change_texts(value, change) for value in node]
    return change(node) if isinstance(node, str) else node
