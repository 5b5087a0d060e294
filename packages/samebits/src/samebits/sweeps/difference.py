"""The config of a job by its difference to the first of its kind: a value that is swept changes itself and what
interpolates it, and composing and resolving all the rest again takes fifty times longer. No torch.

    first = First(project, composed config, resolved config, swept values, cwd)
    first.changed({"optim.lr": 0.1})     -> its resolved config; None: not known for certain, compose it

Not known for certain: a value with `$` or a mapping; a key within something that is interpolated as a whole; a resolver
that is not known to depend on its arguments and its group alone (`${now:}`, `${hydra:}`, the user's own).
"""

from __future__ import annotations

import copy
import inspect
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from omegaconf import AnyNode, DictConfig, ListConfig, OmegaConf

from samebits.config import absolute
from samebits.project import Project
from samebits.schema import MISSING, at, plain

Place = tuple[str | int, ...]  # ("data", "input_shape", 0)
PURE = ("root", "below_outputs", "oc.env", "oc.create", "oc.decode")  # resolvers of their arguments alone
REFERS = re.compile(r"\$\{(\.*)([A-Za-z_][\w./\[\]-]*)?(:?)")  # dots of a relative name; a name; of a resolver: `:`


class First:
    """composed: without `hydra`, not resolved; whole: the same, resolved, plain. swept: keys whose values change."""

    def __init__(
        self, project: Project, composed: DictConfig, whole: dict[str, Any], swept: Collection[str], cwd: Path
    ) -> None:
        self._project, self._whole, self._cwd = project, copy.deepcopy(whole), cwd
        self._cfg = copy.deepcopy(composed)
        OmegaConf.set_struct(self._cfg, False)
        OmegaConf.set_readonly(self._cfg, False)
        raw = plain(self._cfg, resolve=False)
        texts = {place: text for place, text in _texts(raw, ()) if not any(_covers(_place(k), place) for k in swept)}
        follows = {place: _references(project.resolvers, place, text) for place, text in texts.items()}
        self._certain = all(found is not None for found in follows.values())
        paths = {_place(key) for key in project.paths}
        self._anew: dict[str, list[Place]] = {}  # key -> the places that are resolved anew when it changes
        for key in swept:
            anew = _affected(_place(key), follows)
            if _is_plain_place(self._cfg, key) and not any(_covers(path, place) for path in paths for place in anew):
                self._anew[key] = anew
        for key in project.paths:  # as samebits.config.resolved does, before anything is resolved
            if (value := at(self._whole, _place(key))) is not None and _is_plain_place(self._cfg, key):
                OmegaConf.update(self._cfg, key, value)

    def changed(self, values: Mapping[str, Any]) -> dict[str, Any] | None:
        """The resolved config with these values, for all keys of `swept`; None: this has to be composed."""
        if not self._certain or not all(key in self._anew and _is_plain(value) for key, value in values.items()):
            return None
        new = copy.deepcopy(self._whole)
        values = {key: absolute(v, self._cwd) if key in self._project.paths else v for key, v in values.items()}
        for key, value in values.items():
            _set(new, _place(key), copy.deepcopy(value))
        anew = dict.fromkeys(place for key in values for place in self._anew[key])
        try:
            for key, value in values.items() if anew else ():
                OmegaConf.update(self._cfg, key, value, merge=True)
            for place in anew:
                _set(new, place, _resolved(self._cfg, place))
        except Exception:  # its mistake is explained where it is composed as a whole
            return None
        return new


def _texts(node: Any, place: Place) -> Iterator[tuple[Place, str]]:
    """All interpolations below a plain node."""
    if isinstance(node, (dict, list)):
        for name, value in node.items() if isinstance(node, dict) else enumerate(node):
            yield from _texts(value, (*place, name))
    elif isinstance(node, str) and "${" in node:
        yield place, node


def _references(resolvers: Mapping[str, Callable[..., Any]], place: Place, text: str) -> list[Place] | None:
    """The places that an interpolation at `place` depends on, () being all of the config; None: on more than that."""
    found: list[Place] = []
    for dots, name, resolver in REFERS.findall(text):
        if not resolver:  # without a name: ${${...}}, which may be any
            found.append((*place[: -len(dots)], *_place(name)) if dots else _place(name))
        elif name in PURE:
            continue
        elif name in resolvers and not (special := _special(resolvers[name])) - {"_parent_"}:
            found += [place[:-1]] if special else []
        else:
            return None
    return [()] if "\\" in text else found


def _special(resolver: Callable[..., Any]) -> set[str]:
    return {"_parent_", "_root_", "_node_"} & set(inspect.signature(resolver).parameters)


def _affected(key: Place, follows: Mapping[Place, Sequence[Place] | None]) -> list[Place]:
    """The interpolations that depend on `key`, directly or by others."""
    changed: list[Place] = [key]
    left = dict(follows)
    while more := [p for p, names in left.items() if any(_meet(n, c) for n in names or () for c in changed)]:
        changed += more
        for place in more:
            del left[place]
    return changed[1:]


def _place(key: str) -> Place:
    """data.size[0] -> ("data", "size", 0)"""
    parts = key.replace("[", ".").replace("]", "").split(".")
    return tuple(int(part) if part.isdecimal() else part for part in parts if part)


def _covers(above: Place, place: Place) -> bool:
    return place[: len(above)] == above


def _meet(one: Place, other: Place) -> bool:
    """Whether they are the same place, or one lies in the other."""
    return _covers(one, other) or _covers(other, one)


def _is_plain(value: Any) -> bool:
    """Whether a value stays as it is in a config."""
    if isinstance(value, list):
        return all(map(_is_plain, value))
    if isinstance(value, str):
        return "$" not in value and "\\" not in value and value != MISSING
    return value is None or isinstance(value, (bool, int, float))


def _is_plain_place(cfg: DictConfig, key: str) -> bool:
    """Whether the key leads through mappings to an untyped value that is there."""
    node: Any = cfg
    for part in key.split("."):
        if not isinstance(node, DictConfig) or node._is_interpolation() or node._is_none() or node._is_missing():
            return False
        node = node._get_node(part)
    return type(node) in (AnyNode, ListConfig)


def _set(node: Any, place: Place, value: Any) -> None:
    for part in place[:-1]:
        node = node[part]
    node[place[-1]] = value


def _resolved(cfg: Any, place: Place) -> Any:
    for part in place[:-1]:
        cfg = cfg._get_node(part)
    return plain(cfg[place[-1]])
