"""Escaping of untrusted values from runs for csv cells and Markdown: shown, never interpreted."""

from __future__ import annotations

import re
from typing import Any

# first characters of what a spreadsheet runs as a formula, the full-width ones too
FORMULA = tuple("=+-@\uff1d\uff0b\uff0d\uff20")


def cell(value: Any) -> Any:
    """A csv cell: text that a spreadsheet would run as a formula gets an apostrophe in front; numbers stay numbers."""
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
    """The value as one line of Markdown, escaped: it starts no markup, link, picture, table cell or heading."""
    line = _line(value).replace("\\", "\\\\").replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    line = re.sub(r"[`|]|\](?=[(\[:])", r"\\\g<0>", line)  # hidden=[16,16] is no link and stays as it is
    return re.sub(r"^(?=[#*=~_+-]+\s)", r"\\", line)


def code(value: Any) -> str:
    """A code span of one line; its fence is longer than any run of backticks in it."""
    line = _line(value)
    fence = _fence(line, 1)
    pad = " " if line.startswith("`") or line.endswith("`") else ""
    return f"{fence}{pad}{line}{pad}{fence}"


def block(value: str, language: str) -> str:
    fence = _fence(value, 3)
    return f"{fence}{language}\n{value}\n{fence}"


def _line(value: Any) -> str:
    """The value as one line, without control characters."""
    return " ".join("".join(c if c.isprintable() else " " for c in str(value)).split())


def _fence(value: str, least: int) -> str:
    return "`" * max([least, *(len(run) + 1 for run in re.findall("`+", value))])
