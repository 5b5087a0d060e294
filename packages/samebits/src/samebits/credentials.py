"""Keep user names and passwords of URLs out of saved files. `redacted` moves them to an environment variable of this
process, from which it and its child processes read them with `restored`. They can also be read from any other variable
that contains the whole URL, e.g. MLFLOW_TRACKING_URI."""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable
from typing import Any

HIDDEN = "***"
# in HTTP and HTTPS URLs also a token without a password; other schemes allow a user name without one
CREDENTIALS = re.compile(r"(https?://)[^/?#\s'\"]+@|([A-Za-z][\w+.-]*://)[^/?#\s'\"]*:[^/?#\s'\"]*@")


def redacted(node: Any) -> Any:
    """Return a copy of a plain node without the credentials in its URLs, which are stored in this process's
    environment."""

    def one(text: str) -> str:
        if (hidden := _hidden(text)) != text:
            os.environ[_variable(hidden)] = text
        return hidden

    return change_texts(node, one)


def restored(text: str) -> str:
    """Return a URL with its credentials; unchanged if this process does not have them."""
    if f"{HIDDEN}@" not in text:
        return text
    known = os.environ.get(_variable(text))
    return known or next((value for value in os.environ.values() if value != text and _hidden(value) == text), text)


def _hidden(text: str) -> str:
    return CREDENTIALS.sub(lambda found: f"{found[1] or found[2]}{HIDDEN}@", text)


def _variable(hidden: str) -> str:
    return f"ADDRESS_{hashlib.sha256(hidden.encode(errors='replace')).hexdigest()[:16].upper()}"


def change_texts(node: Any, change: Callable[[str], str]) -> Any:
    """Return a copy of a plain node with each text changed; keys are not changed."""
    if isinstance(node, dict):
        return {key: change_texts(value, change) for key, value in node.items()}
    if isinstance(node, (list, tuple)):
        return [change_texts(value, change) for value in node]
    return change(node) if isinstance(node, str) else node
