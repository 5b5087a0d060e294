"""Remove from conf/schema.json what a fork has left out, as ./run schema would, but without torch."""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

LIBRARIES = ("samebits", "h5rows")


def prune_schema(tree: Path) -> None:
    """Write conf/schema.json as ./run schema would, which needs torch. tree: folder of the fork."""
    path = tree / "conf/schema.json"
    if not path.exists():  # a fork has deleted it
        return
    schema = json.loads(path.read_text(encoding="utf-8"))
    conf = "\n".join(one.read_text(encoding="utf-8") for one in (tree / "conf").rglob("*.yaml"))
    gone = set()
    for target in targets_of(schema):
        package, _, inner = target.rpartition(".")[0].partition(".")
        if (tree / "src" / package).is_dir():
            left = (tree / "src" / package / f"{inner.replace('.', '/')}.py").exists()
        else:  # classes of samebits and h5rows are always offered, those of other libraries if a yaml names them
            left = package in LIBRARIES or re.search(rf"\b_target_: {re.escape(target)}\b", conf)
        gone |= set() if left else {target}
    for name, one in schema["definitions"].items():
        kind, _, group = name.partition(".")
        folder = tree / "conf" / (group if kind in ("options", "choice") else name.partition("=")[0]).replace(".", "/")
        if "=" in name:
            gone |= set() if (folder / f"{name.partition('=')[2]}.yaml").exists() else {name}
        elif kind in ("options", "choice", "hydra"):
            gone |= set() if folder.is_dir() else {name}
        if kind == "options" and name not in gone:
            listed = one["anyOf"][0]
            listed["enum"] = [option for option in listed["enum"] if (folder / f"{option}.yaml").exists()]
    path.write_text(written(less(schema, gone)), encoding="utf-8")


def targets_of(schema: dict[str, Any]) -> list[str]:
    """Return the targets whose arguments a schema has."""
    return [one["then"]["$ref"].rpartition("/")[2] for one in schema["definitions"]["built"]["allOf"]]


def less(node: Any, gone: Collection[str]) -> Any:
    """Return a part of a schema without these definitions and references to them; None if nothing is left."""
    if isinstance(node, str):
        return None if node in gone else node
    if isinstance(node, list):
        made = [(one, less(one, gone)) for one in node]
        kept = [left for one, left in made if one is None or left is not None]
        return kept if kept or not node else None
    if not isinstance(node, dict):
        return node
    if "$ref" in node and node["$ref"].split("/")[2] in gone:
        return None
    held = {key: one if one is None else less(one, gone) for key, one in node.items() if key not in gone}
    lost = {key for key, one in held.items() if one is None and node[key] is not None}
    if lost & {"then", "else", "items"} or (lost and len(lost) == len(held)):
        return None
    return {key: one for key, one in held.items() if key not in lost}


def written(schema: dict[str, Any]) -> str:
    """Return the schema as JSON text with a line for each definition."""
    lines = [f"  {json.dumps(name)}: {json.dumps(one)}" for name, one in schema["definitions"].items()]
    head = [f"{json.dumps(key)}: {json.dumps(one)}" for key, one in schema.items() if key != "definitions"]
    return "{" + ",\n".join([*head, '"definitions": {\n' + ",\n".join(lines)]) + "\n}}\n"
