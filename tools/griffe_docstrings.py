"""How the API pages show docstrings (mkdocs.yml): arguments as a list, `<name>` as text, comments of attributes.

An extension of griffe, which reads the code for mkdocstrings. It changes the pages only.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe


@cache
def lines_of(file: Path) -> list[str]:
    return file.read_text(encoding="utf-8").splitlines()


def comment_of(attribute: Any) -> str:
    """Return the comment at the end of an attribute's line; if there is none, the comment lines above it."""
    lines = lines_of(attribute.filepath)
    if match := re.search(r"  # (?!type:|noqa|pragma)(.+)$", lines[attribute.endlineno - 1]):
        return str(match[1])
    first = last = attribute.lineno - 1
    while lines[first - 1].lstrip().startswith("# "):
        first -= 1
    return " ".join(line.lstrip("# ") for line in lines[first:last])


def as_markdown(text: str, names: set[str]) -> str:
    """Return a docstring with `<` as text and a list item for each argument, which it writes as "name: meaning"."""
    parts = re.split(r"(```.*?```|`[^`\n]+`)", text, flags=re.S)
    parts[::2] = [re.sub(r"\b__\w+__\b", r"`\g<0>`", part.replace("<", "&lt;")) for part in parts[::2]]
    text = "".join(parts)
    if not names or "```" in text or re.search(r"^ {4}", text, re.M):
        return text
    start = re.compile(rf"(?:^|(?<=[.;])\s+|\n)`?({'|'.join(sorted(names))})`?:\s+")
    paragraphs = []
    for paragraph in text.split("\n\n"):
        before, *arguments = start.split(paragraph)
        items = [f"- `{name}`: {meaning.strip()}" for name, meaning in zip(arguments[::2], arguments[1::2])]
        # what is returned and raised is not of the last argument
        listed = re.sub(r"(?<=\.)\s+(?=(Return|Raise)s? )", "\n\n", "\n".join(items))
        paragraphs += [one for one in (before.strip(), listed) if one]
    return "\n\n".join(paragraphs)


def walk(thing: Any) -> Iterator[Any]:
    for member in thing.members.values():
        if not member.is_alias:
            yield member
            yield from walk(member)


class Docstrings(griffe.Extension):
    def on_package(self, *, pkg: Any, **_: Any) -> None:
        """Change the docstrings of a package that has been read."""
        for thing in walk(pkg):
            if thing.is_attribute and thing.parent.is_class and "property" not in thing.labels:
                if thing.docstring is None and thing.lineno and (comment := comment_of(thing)):
                    text = re.sub(r"^[a-z]+(?=[\s,:;])", lambda word: word[0].capitalize(), comment)
                    thing.docstring = griffe.Docstring(text, parent=thing)
                if "class-attribute" not in thing.labels:
                    thing.value = None  # computed in __init__
            if thing.docstring:
                made = thing.members.get("__init__", thing) if thing.is_class else thing
                names = {one.name.lstrip("*") for one in getattr(made, "parameters", ())} - {"self", "cls"}
                names |= {name for name, one in thing.members.items() if thing.is_class and one.is_attribute}
                thing.docstring.value = as_markdown(thing.docstring.value, names)
