"""Markdown for the generated pages of the docs."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).resolve().parents[1] / "docs"
GENERATED = "<!-- Written by ./run docs from the code and conf/: edit these, not this page. -->"
# code in a comment: {x: 0}, [a, b], ${...}, a command, words with signs such as a=b and a=1,2, dotted names
CODE = re.compile(
    r"`[^`]*`|\./run (?:(?!\. )[^;:()`])*[\w\]}]|'[^'\s]*[=*][^']*'"
    r"|[\w.<>/+~@-]+=(?:\[[^\[\]]*\]|\{[^{}]*\}|'[^']*')|\$?\{[^{}]*\}[^\s;,:()]*|\w*\[(?:[^\[\]]|\[[^\[\]]*\])*\]"
    r"|(?<![\w-])--[a-z][a-z-]+"
    r"|(?<![\w/])(?=\S*\w)(?:[\w.<>/+~@-]*[=<>^*|_\\$][^\s;,()]*[^\s;,.:()](?:,[^\s;,()]*[^\s;,.:()])*"
    r"|[\w.<>/+~@-]*[=_*]|[a-z]\w*(?:\.\w{2,})+)"
)


def code(text: str) -> str:
    return f"`{text}`" if text else ""


def breakable(text: str) -> str:
    """Return code for a cell. A word of 30 or more characters, and an import path of any length, because a fork renames
    it, may break after a sign, so that the table fits."""
    if not re.search(r"\S{30}|\w(\.\w+){2}(?![\w.]*=)", text):
        return code(text)
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    return f"<code>{re.sub(r'(?<=[.=,:/])(?=[^ .=,:/])', '<wbr>', text)}</code>"


def without_tags(text: str) -> str:
    """Return markdown in which `<name>` outside of code is text and not a tag of HTML, which a browser hides."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in parts)


def cell(text: str) -> str:
    """Return text as a cell of a table, in which a bar would end it."""
    return re.sub(r"(?<!\\)\|", r"\\|", text.strip())


def link(page: str, text: str = "") -> str:
    """Return a link to a page of the docs with its title; "" if there is no such page."""
    path = DOCS / page
    if not page or not path.is_file():
        return ""
    found = re.search(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return f"[{text or (found[1].replace('`', '') if found else page)}]({page})"


def sentence(text: str, end: bool = True) -> str:
    """Return a comment as a sentence of a page: code in backticks, links to pages, a capital, a full stop."""
    text = " ".join(text.split())
    parts, last = [], 0
    for found in CODE.finditer(text):
        parts += [text[last : found.start()], found[0] if found[0].startswith("`") else f"`{found[0]}`"]
        last = found.end()
    text = "".join([*parts, text[last:]])
    text = re.sub(r"`?docs/(\w+\.md)`?", lambda found: link(found[1]) or found[0], text)
    named = re.match(r"(true|false|null)\b|[a-z]+, [a-z]+[,;:]", text)  # the values of the key
    if end and re.match(r"[a-z]+([ ,.]|$)", text) and not named:
        text = text[0].upper() + text[1:]
    return text if not end or not text or text.endswith((".", ":", "!", "?")) else f"{text}."
