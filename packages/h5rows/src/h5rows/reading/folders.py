"""URLs, the folder of each remote file on this machine, and progress messages. No torch, no h5py."""

from __future__ import annotations

import hashlib
import os
import re
import sys
from pathlib import Path

CACHE_DIR = "LAB_CACHE_DIR"

_said: set[str] = set()


def is_remote(name: str) -> bool:
    """Return True for a URL."""
    return "://" in name


def shown(url: str) -> str:
    """Return a URL without possible secrets: password and query string (a signature)."""
    if not is_remote(url):
        return url
    scheme, _, rest = url.partition("://")
    host, slash, path = rest.partition("?")[0].partition("/")
    return f"{scheme}://{host.rpartition('@')[2]}{slash}{path}"


def cache_dir() -> Path:
    """Return the folder of remote files: LAB_CACHE_DIR, otherwise lab in the user's cache folder."""
    users = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(os.environ.get(CACHE_DIR) or f"{users}/lab").expanduser().absolute()


def folder_of(url: str) -> Path:
    """Return the folder that contains the copies of a URL."""
    return cache_dir() / f"{plain(shown(url).partition('://')[2])}-{digest(url)}"


def plain(text: str) -> str:
    """Return text as a file name, of at most 80 characters and not hidden, because temporary files are hidden."""
    return re.sub(r"[^A-Za-z0-9.-]+", "_", text)[-80:].lstrip(".")


def digest(text: str) -> str:
    """Return 12 hexadecimal digits of a text's SHA-256."""
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def once(text: str) -> None:
    """Print a line to stderr, the first time that this process prints it."""
    if text not in _said:
        _said.add(text)
        say(text)


def say(text: str, end: str = "\n") -> None:
    """Print to stderr."""
    print(text, end=end, file=sys.stderr, flush=True)
