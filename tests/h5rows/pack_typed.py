"""The command of h5rows, typed, in this process."""

from __future__ import annotations

import contextlib
import io
import sys
from typing import NamedTuple
from unittest import mock

from h5rows import command


class Done(NamedTuple):
    status: int
    out: str
    err: str


def typed(*words: object) -> Done:
    out, err = io.StringIO(), io.StringIO()
    line = mock.patch.object(sys, "argv", ["h5rows", *map(str, words)])
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err), line:
        try:
            status = command.run(("h5rows",))
        except SystemExit as error:
            status = int(error.code or 0)
    return Done(status, out.getvalue(), err.getvalue())
