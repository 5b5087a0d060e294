#!/usr/bin/env python3
"""Find words that make prose hard to read. `./run lint` rejects texts that contain many of them.

    ./run python tools/prose.py              # exit status 1 if a kind of text, or a file, is above its limit
    ./run python tools/prose.py --report     # rates per 1,000 words
    ./run python tools/prose.py FILE...      # each place in these files, with a plainer word

Kinds of text: pages (Markdown without code), docstrings and comments of Python, messages of errors and warnings, and
comments of conf/. A rate counts word forms, so some hits are plain English: rewrite for a reader, not for the number.
"""

from __future__ import annotations

import ast
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMITS = {"pages": 3.5, "docstrings": 4.0, "messages": 2.5, "conf": 4.0}  # hits per 1,000 words, in all files
ONE_FILE, FEW = 3, 4  # a single file may have this many times the limit; this many hits are never too many
PLAIN = {  # pattern: what to write instead
    r"go(?:es|ing|ne)? on|went on": "continue, resume",
    r"anew": "again",
    r"lies?|lay|lying|stands?|stood": "is, is in",
    r"beside|behind": "next to, in addition to, in the background, after",
    r"alone": "only",
    r"alike|as ever|in vain|whoever|meanwhile|somebody": "equal, as before, without effect, any, in the meantime",
    r"says?|said|asks?|asked|knows?|wants?|told|tells?": "prints, reads, requires, accepts, raises",
    r"owe[sd]?|pays?|paid|settle[sd]?|hearts?|takes? up": "pending, resolve, resume",
    r"(?:is|are|was|were) no (?!longer|more|need|way)\w+|none of": "is not a",
    r"(?:that|those) of|(?:ones? )?of (?:its|their|your|one's) own": "repeat the noun",
    r"(?:those|ones?|such|all|any|some) that": "repeat the noun",
    r"(?:by|of|in|from|on|with|for|to) (?:which|whose|whom)": "two sentences, or `whose`",
    r"what (?!to|if|is|are|do|does|you|we|happens)\w+": "name the thing",
    r"where (?:it|there|an?|the|they|no|one|this|its|each|some)": "if, when",
    r"(?<!or )(?<!any)(?<!some)(?<!no)else": "otherwise",
    r"(?-i:(?<=[.;:] )|(?<=^)|(?<=\n))Of (?:an?|the|several|its|any|all|each|two|this)": "begin with the subject",
    r"ours|the peer|the rival|by us": "Samebits, the alternative",
}
WORDS = [(re.compile(rf"(?<![\w-])(?:{pattern})(?![\w-])", re.IGNORECASE), plain) for pattern, plain in PLAIN.items()]
RAISES = ("ConfigError", "RunFailed", "DataFailed", "ValueError", "TypeError", "SystemExit", "warn", "warning", "say")


def page(text: str) -> Iterator[str]:
    """Yield the prose of a Markdown page."""
    yield re.sub(r"`[^`\n]*`", "x", re.sub(r"(```|~~~).*?\1", "", text, flags=re.DOTALL))


def docstrings(path: Path) -> Iterator[str]:
    """Yield the docstrings and comments of a Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)) and (text := ast.get_docstring(node)):
            yield text
    with path.open("rb") as file:
        yield from (one.string for one in tokenize.tokenize(file.readline) if one.type == tokenize.COMMENT)


def messages(path: Path) -> Iterator[str]:
    """Yield the texts of errors and warnings in a Python file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in RAISES:
            parts = (part for argument in node.args for part in ast.walk(argument) if isinstance(part, ast.Constant))
            yield " ".join(part.value for part in parts if isinstance(part.value, str))


def texts(root: Path) -> Iterator[tuple[str, Path, str]]:
    """Yield (kind, file, text) for all prose of the project."""
    for path in [*sorted(root.glob("*.md")), *sorted(root.glob("docs/*.md")), *sorted(root.glob("packages/*/*.md"))]:
        yield from (("pages", path, text) for text in page(path.read_text()))
    for path in [*sorted(root.glob("src/**/*.py")), *sorted(root.glob("packages/*/src/**/*.py"))]:
        yield from (("docstrings", path, text) for text in docstrings(path))
        yield from (("messages", path, text) for text in messages(path))
    for path in sorted(root.glob("conf/**/*.yaml")):
        comments = (line.partition("#")[2] for line in path.read_text().splitlines() if "#" in line)
        yield from (("conf", path, text) for text in comments if not re.match(r" (yaml-language|@package)", text))


def hits(text: str) -> list[tuple[str, str]]:
    """Return (the words around a pattern, what to write instead) for each hit in a text."""
    found = ((match, plain) for pattern, plain in WORDS for match in pattern.finditer(text))
    return [(" ".join(text[max(0, m.start() - 40) : m.end() + 40].split()), plain) for m, plain in found]


def main(arguments: list[str]) -> int:
    """Check the project, or list the hits in files. Return the exit status."""
    chosen = {Path(name).resolve() for name in arguments if not name.startswith("--")}
    words: dict[str | tuple[str, Path], int] = {}
    counts: dict[str | tuple[str, Path], int] = {}
    for kind, path, text in texts(ROOT):
        found = hits(text)
        for key in (kind, (kind, path)):
            words[key] = words.get(key, 0) + len(text.split())
            counts[key] = counts.get(key, 0) + len(found)
        if path in chosen:
            print("".join(f"{path.relative_to(ROOT)}: ...{around}... - {plain}\n" for around, plain in found), end="")
    problems = []
    for key, count in counts.items():
        kind, path = key if isinstance(key, tuple) else (key, None)
        limit = LIMITS[kind] * words[key] / 1000
        if path is None and "--report" in arguments:
            print(f"{kind:10s} {words[key]:7,d} words, {1000 * count / max(1, words[key]):4.1f} hits per 1,000")
        if count > (limit if path is None else max(FEW, ONE_FILE * limit)):
            problems.append(f"{path.relative_to(ROOT) if path else 'all files'}: {kind} have {count} hard words")
    if problems and not chosen:
        print("\n".join([*problems, "./run python tools/prose.py FILE lists them"]), file=sys.stderr)
    return int(bool(problems) and not chosen)


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
