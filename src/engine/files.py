"""Text and JSON files: written atomically; a damaged one is reported in one line. Imports no torch."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from engine.errors import Damaged


def replace_text(path: Path, text: str) -> None:
    """Write atomically: `path` has its old content or the complete text. An OSError names `path`."""
    temporary = path.with_name(f".{path.name}.{platform.node()}.{os.getpid()}")  # hosts may share it
    try:
        temporary.unlink(missing_ok=True)
        with open(temporary, "x", opener=no_links) as file:
            file.write(text)
        temporary.replace(path)
    except OSError as error:
        error.filename, error.filename2 = str(path), None  # write() sets no filename
        raise
    finally:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)


def no_links(path: str, flags: int) -> int:
    """An opener for open(): a symbolic link at the file's name is not followed (OSError)."""
    return os.open(path, flags | os.O_NOFOLLOW, 0o666)


def as_json(value: Any, indent: int | None = None) -> str:
    """JSON has no NaN and no infinity: they are written as null."""
    return json.dumps(_finite(value), indent=indent, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _finite(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(inner) for inner in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def write_json(path: Path, value: Any) -> None:
    replace_text(path, as_json(value, indent=2) + "\n")


def read_json(path: Path) -> dict[str, Any]:
    """{} where there is no such file; Damaged where it holds no JSON object."""
    try:
        value = json.loads(path.read_bytes())
    except (FileNotFoundError, NotADirectoryError):
        return {}
    except (ValueError, RecursionError) as error:
        raise Damaged(f"{path}: damaged, it is not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise Damaged(f"{path}: damaged, it holds no JSON object but a {type(value).__name__}")
    return value


def overwrite_json(path: Path, value: dict[str, Any]) -> None:
    """On a full disk: the short values of a JSON file, written into the block that the file has already."""
    short = {key: text[:300] if isinstance(text, str) else text for key, text in value.items() if key != "traceback"}
    with suppress(OSError), open(path, "r+b", buffering=0, opener=no_links) as file:
        file.truncate(file.write(as_json(short, indent=2).encode() + b"\n"))


def records(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yields (line, record) of a metrics.jsonl; invalid lines (cut off by a kill) are left out."""
    if not path.exists():
        return
    with open(path, "rb") as file:
        for line in file:
            with suppress(ValueError, RecursionError):
                record = json.loads(line)
                if isinstance(record, dict) and isinstance(record.get("step"), int):
                    yield line.decode(), record
