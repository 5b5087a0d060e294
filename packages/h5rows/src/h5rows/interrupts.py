"""Ctrl-C and other signals while HDF5 writes. Uses only the standard library."""

from __future__ import annotations

import _thread
import signal
import sys
import threading
import time
from typing import Any

AGAIN_S = 0.001  # the hook has returned by then


def keep_interrupts() -> None:
    """Send Ctrl-C again, to this process, whenever Python discards the KeyboardInterrupt. Also send a signal again
    whose handler has raised an exception with the number of the signal in its attribute `signal`. If the exception has
    an attribute `handler`, install it before.

    Python discards exceptions in callbacks of weak references. h5py calls such a callback after each write, and a
    Ctrl-C that arrived during the write is raised in it, so a long repack would ignore each Ctrl-C."""
    report = sys.unraisablehook

    def hook(found: Any) -> None:
        number = getattr(found.exc_value, "signal", None)
        if number is None and issubclass(found.exc_type, KeyboardInterrupt):
            number = signal.SIGINT
        at_exit = "atexit" in (found.err_msg or "")  # a second Ctrl-C would interrupt the next cleanup, and so on
        if isinstance(number, int) and not at_exit:
            if handler := getattr(found.exc_value, "handler", None):  # it has disabled itself when it was called
                signal.signal(number, handler)
            # a Thread would wait for its start, so that the signal would be raised and discarded here
            _thread.start_new_thread(_send_again, (number,))
        else:
            report(found)

    sys.unraisablehook = hook


def _send_again(number: int) -> None:
    time.sleep(AGAIN_S)
    main = threading.main_thread().ident
    assert main is not None
    signal.pthread_kill(main, number)
