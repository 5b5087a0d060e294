"""Escape untrusted values of runs for csv cells and Markdown, so that they are shown and never interpreted."""

from __future__ import annotations

import re
from typing import Any

# a spreadsheet interprets text that begins with one of these characters as a formula, full-width forms included
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def cell(value: Any) -> Any:
    """Return the value of a csv cell. Text that a spreadsheet would run as a formula is prefixed with an apostrophe;
    numbers are unchanged."""
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


def text(value: Any) -> str:
    """Return the value as one escaped line of Markdown, without markup, links, pictures, table cells or headings."""
    line = _line(value).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"[`|]|\](?=[(\[:])", r"\\\g<0>", line)  # hidden=[16,16] is not a link and is not escaped
    return re.sub(r"^(?=[#*=~_+-]+\s)", r"\\", line)


def code(value: Any) -> str:
    """Return a code span of one line; its fence is longer than any run of backticks in it."""
    line = _line(value)
    fence = _fence(line, 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def block(value: str, language: str) -> str:
    """Return a fenced code block; its fence is longer than any run of backticks in it."""
    fence = _fence(value, 3)
    return f"{fence}{language}\n{value}\n{fence}"


def _line(value: Any) -> str:
    """Return the value as one line without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def _fence(value: str, least: int) -> str:
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", value))])
