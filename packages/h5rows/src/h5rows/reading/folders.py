"""Addresses, the folder of what is kept of each on this machine, and what is said on the way. No torch, no h5py."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

CACHE_DIR = "LAB_CACHE_DIR"

_said: set[str] = set()


def is_remote(name: str) -> bool:
    return "://" in name


def shown(url: str) -> str:
    """Without what may be a secret: a password, and what follows a question mark (a signature)."""
    if not is_remote(url):
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def cache_dir() -> Path:
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(CACHE_DIR) or f"{users}/lab").expanduser().absolute()


def folder_of(url: str) -> Path:
    """Where what is kept of an address lies."""
    return cache_dir() / f"{plain(shown(url).partition('://')[2])}-{digest(url)}"


def plain(text: str) -> str:
    """As a file's name: not too long, and not hidden, as are files of our own."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)[-80:].lstrip(".")


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        say(text)


def say(text: str, end: str = "\n") -> None:
    print(text, end=end, file=sys.stderr, flush=True)
