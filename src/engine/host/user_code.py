"""What user's code this thread is in, for the message if that code ends the process. Imports no torch."""

from __future__ import annotations

import threading

_thread = threading.local()


def set_place(place: object) -> None:
    """place: str() of it says where, computed only if it is asked for; None: in no such code any more."""
    _thread.place = place


def place() -> str:
    """Empty outside of such code."""
    found = getattr(_thread, "place", None)
    return "" if found is None else str(found)
