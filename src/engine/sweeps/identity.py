"""What tells the jobs of a sweep apart: their overrides, whatever the order and the spelling. Imports no torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from engine.config.compose import absolute
from engine.sweeps.alike import AROUND, NEVER

NAME_DIGITS, SLUG_LENGTH, VALUE_LENGTH = 16, 80, 24
OLD_DIGITS = 8  # of the names that the first version gave; its sweep.json has no `identity`


def values_of(overrides: Sequence[str], swept: Collection[str] = (), cwd: Path | None = None) -> dict[str, Any]:
    """{key: value} of the overrides that tell jobs apart; equal dicts, equal jobs.

    1e-3 is 0.001, 7.0 is 7, 'a' is a; a group's value is the name of its option; of a key given twice the last counts.
    swept: keys in which the jobs differ. cwd: what a relative data.path stands against.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    return {key: value for key, value in (keyed(o, cwd or Path.cwd()) for o in parsed) if counts(key, swept)}


def differing_keys(jobs: Sequence[Sequence[str]]) -> list[str]:
    """The keys in which jobs with these overrides differ; one that only some give is one."""
    texts = dict.fromkeys(text for overrides in jobs for text in overrides)
    told = dict(zip(texts, (keyed(o, Path.cwd()) for o in OverridesParser.create().parse_overrides(list(texts)))))
    values = [dict(told[text] for text in overrides) for overrides in jobs]
    keys = [key for key in dict.fromkeys(key for key, _ in told.values()) if counts(key, ())]
    return [key for key in keys if len({json.dumps(v.get(key, "-"), default=str) for v in values}) > 1]


def counts(key: str, swept: Collection[str]) -> bool:
    """Whether an override of this key tells jobs apart."""
    top = re.split(r"[./@]", key.lstrip("~"), maxsplit=1)[0]
    return top not in NEVER and (top not in AROUND or key in swept)


def keyed(override: Override, cwd: Path) -> tuple[str, Any]:
    """(key, canonical value) of one override that is no sweep; ~key for a deletion, +key and ++key are key."""
    key = override.get_key_element().lstrip("+")
    if override.is_delete():
        return key, None
    value = canonical(override.value())
    return key, absolute(value, cwd) if key == "data.path" else value


def canonical(value: Any) -> Any:
    """One spelling for equal values, of plain types only."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and "${" in value:  # ${oc.env:LR}: what it is now; of another key: that key's own affair
        try:
            return canonical(OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)["value"])  # type: ignore
        except Exception:  # whatever a resolver raises where its surroundings are missing
            return value
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, (list, tuple)) else value


def digest(values: Mapping[str, Any]) -> str:
    """The job's identity: the same for equal values, in whatever order; its first digits end the directory's name."""
    text = json.dumps(sorted(values.items()), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def directory_name(values: Mapping[str, Any], swept: Collection[str]) -> str:
    """Readable, safe in a shell and in an override: lr-0.001_seed-0_3fa9c2b1d07e4c55."""
    shown = {key: value for key, value in sorted(values.items()) if key in swept}
    lasts = [last_part(key) for key in shown]
    parts = []
    for key, value in shown.items():
        name = last_part(key) if lasts.count(last_part(key)) == 1 else key
        parts.append(f"{_safe(name)}-{_safe(_text(value))[:VALUE_LENGTH]}")
    slug = "_".join(parts)[:SLUG_LENGTH].strip("-_.") or "job"
    return f"{slug}_{digest(values)[:NAME_DIGITS]}"


def last_part(key: str) -> str:
    return re.split(r"[./]", key)[-1]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{k}-{_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "-".join(_text(v) for v in value)
    if isinstance(value, bool) or value is None:
        return {None: "null", True: "true", False: "false"}[value]
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text)
