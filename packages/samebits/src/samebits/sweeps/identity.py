"""The identity of a sweep's job: its overrides, independent of order and spelling. Does not import torch."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Collection, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from omegaconf import OmegaConf

from samebits.config import absolute, written
from samebits.project import Project
from samebits.saved import NEVER_COMPARED, portable

NAME_DIGITS, SLUG_LENGTH, VALUE_LENGTH = 16, 80, 24


def values_of(project: Project, overrides: Sequence[str], cwd: Path | None = None) -> dict[str, Any]:
    """Return {key: canonical value} of the overrides that identify a job. Jobs whose values have the same digest are
    equal.

    1e-3 is 0.001, 7.0 is 7, 'a' is a. The value of a group is the name of its option. If a key is given twice, the last
    value counts. cwd: base of a relative data.path.
    """
    parsed = OverridesParser.create().parse_overrides(list(overrides))
    told = (keyed(project, override, cwd or Path.cwd()) for override in parsed)
    return {key: value for key, value in told if counts(project, key, ())}


def differing_keys(project: Project, jobs: Sequence[Sequence[str]]) -> list[str]:
    """Return the keys in which jobs with these overrides differ, including keys that only some of them set."""
    texts = dict.fromkeys(text for overrides in jobs for text in overrides)
    parsed = OverridesParser.create().parse_overrides(list(texts))
    told = dict(zip(texts, (keyed(project, override, Path.cwd()) for override in parsed)))
    values = [dict(told[text] for text in overrides) for overrides in jobs]
    keys = [key for key in dict.fromkeys(key for key, _ in told.values()) if counts(project, key, ())]
    return [key for key in keys if len({json.dumps(v.get(key, "-"), default=str) for v in values}) > 1]


def counts(project: Project, key: str, swept: Collection[str]) -> bool:
    """Return True if an override of this key is part of a job's identity."""
    top = re.split(r"[./@]", key.lstrip("~"), maxsplit=1)[0]
    return top not in NEVER_COMPARED and (key in swept or top not in (*project.neutral_groups, "name"))


def keyed(project: Project, override: Override, cwd: Path) -> tuple[str, Any]:
    """Return (key, canonical value) of one override with a single value. A deletion has the key ~key; +key and ++key
    have the key `key`."""
    key = override.get_key_element().lstrip("+")
    if override.is_delete():
        return key, None
    value = canonical(override.value())
    is_path = key.startswith("data.") and any(fnmatchcase(key, one) for one in project.paths)
    return key, portable(project.root, absolute(value, cwd)) if is_path else value


def canonical(value: Any) -> Any:
    """Return one spelling for equal values, as plain types."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and "${" in value:  # ${oc.env:LR} is resolved now; ${other.key} stays as it is
        try:
            return canonical(OmegaConf.to_container(OmegaConf.create({"value": value}), resolve=True)["value"])  # type: ignore
        except Exception:  # a resolver may raise any exception, and other keys cannot be resolved here
            return value
    if isinstance(value, Mapping):
        return {str(k): canonical(v) for k, v in value.items()}
    return [canonical(v) for v in value] if isinstance(value, (list, tuple)) else value


def digest(values: Mapping[str, Any]) -> str:
    """Return the SHA-256 of the values, independent of their order. Directory names end with its first digits."""
    text = json.dumps(sorted(values.items()), sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()


def directory_name(values: Mapping[str, Any], swept: Collection[str]) -> str:
    """Return a readable directory name that is safe in a shell and in an override: lr-0.001_seed-0_3fa9c2b1d07e4c55."""
    shown = {key: value for key, value in sorted(values.items()) if key in swept}
    lasts = [last_part(key) for key in shown]
    parts = []
    for key, value in shown.items():
        name = last_part(key) if lasts.count(last_part(key)) == 1 else key
        parts.append(f"{_safe(name)}-{_safe(_text(value))[:VALUE_LENGTH]}")
    slug = "_".join(parts)[:SLUG_LENGTH].strip("-_.") or "job"
    return f"{slug}_{digest(values)[:NAME_DIGITS]}"


def last_part(key: str) -> str:
    """Return the last part of a key: optim.lr -> lr."""
    return re.split(r"[./]", key)[-1]


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        return "-".join(f"{k}-{_text(v)}" for k, v in value.items())
    if isinstance(value, list):
        return "-".join(_text(v) for v in value)
    if isinstance(value, bool) or value is None:
        return written(value)
    if isinstance(value, int) and abs(value) >= 10**15:  # 1e30: print it as typed, not with 30 digits
        return f"{value:g}".replace("+", "")
    return Path(value).stem if isinstance(value, str) and "/" in value else str(value)


def _safe(text: str) -> str:
    return re.sub(r"[^A-Za-z0-9.+-]+", "-", text)
