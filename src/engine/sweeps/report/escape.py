"""Values that come from anybody's run, as text of a table's cell or of Markdown: shown, never interpreted."""

from __future__ import annotations

import re
from typing import Any

FORMULA = (
    "=",
    "+",
    "-",
    "@",
    "\uff1d",
    "\uff0b",
    "\uff0d",
    "\uff20",
)  # what a spreadsheet runs begins so


class Markdown(str):
    """Text that is Markdown already."""


def cell(value: Any) -> Any:
    """For a csv: a text that a spreadsheet would run gets an apostrophe before it; a number stays a number."""
    if not isinstance(value, str):
        return value
    value = value.replace("\r\n", "\n").replace("\r", "\n")  # Python's csv does not quote a lone \r
    if not (value[:1] in ("\t", "\n") or value.lstrip().startswith(FORMULA)):
        return value
    try:
        float(value)
    except ValueError:
        return f"'{value}"
    return value


def text(value: Any) -> Markdown:
    """One line that shows the value: no markup, no link, no picture, no cell of a table and no heading begins in it."""
    line = _line(value).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"[`|]|\](?=[(\[:])", r"\\\g<0>", line)  # hidden=[16,16] is no link and stays as it is
    return Markdown(re.sub(r"^(?=[#*=~_+-]+\s)", r"\\", line))


def code(value: Any) -> Markdown:
    """A code span of one line; its fence is longer than any run of backticks in it."""
    line = _line(value)
    fence = _fence(line, 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return Markdown(f"{fence}{pad}{line}{pad}{fence}")


def block(value: str, language: str) -> Markdown:
    fence = _fence(value, 3)
    return Markdown(f"{fence}{language}\n{value}\n{fence}")


def _line(value: Any) -> str:
    """Without line breaks and control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def _fence(value: str, least: int) -> str:
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", value))])
