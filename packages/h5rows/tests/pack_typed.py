"""The command of h5rows, typed, in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from h5rows import command
from h5rows.program import calling


class Done(NamedTuple):
    status: int
    out: str
    err: str


def typed(*words: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    line = mock.patch.object(sys, "argv", ["h5rows", *map(str, words)])
    name = mock.patch.multiple(calling, command=calling.command, reading=calling.reading)  # as it was, after this
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), line, name:
        try:
            status = command.run(("h5rows",))
        except SystemExit as error:
            status = int(error.code or 0)
    return Done(status, out.getvalue(), err.getvalue())
