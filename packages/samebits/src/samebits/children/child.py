"""Run a function in a separate process, so that its memory, CUDA context and crashes end with that process."""

from __future__ import annotations

import multiprocessing
import os
import traceback
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from samebits.children.parent import die_with
from samebits.errors import ConfigError, RunFailed, first_line
from samebits.host import start_method


def run_in_subprocess(what: str, function: Callable[..., Any], *args: Any) -> Any:
    """Run function(*args), which must be picklable, in a new process and return its result.

    Raise its ConfigError; any other error becomes a RunFailed with one line. what: prefix of both messages, e.g.
    "tune lr".
    """
    context: Any = multiprocessing.get_context(start_method())
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_child, args=(function, args, send, os.getpid()))
    process.start()
    send.close()
    try:
        kind, value = receive.recv()
    except EOFError:
        process.join()
        kind = "failed"
        value = f"it ended with status {process.exitcode} (below 0: by that signal; -9: no memory left?)"
    finally:
        receive.close()
        process.join()
    if kind == "good":
        return value
    raise (ConfigError if kind == "mistake" else RunFailed)(f"{what}: {value}")


def _child(function: Callable[..., Any], args: tuple[Any, ...], send: Connection, parent: int) -> None:
    die_with(parent)
    try:
        send.send(("good", function(*args)))
    except ConfigError as error:
        send.send(("mistake", str(error)))
    except Exception as error:
        at = traceback.extract_tb(error.__traceback__)[-1]  # the last frame; a run prints the complete traceback
        send.send(("failed", f"{type(error).__name__}: {first_line(error)} ({at.filename}:{at.lineno})"))
    except KeyboardInterrupt:
        os._exit(130)
