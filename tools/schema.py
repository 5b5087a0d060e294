#!/usr/bin/env python3
"""Write conf/schema.json, by which editors complete and check the yamls of conf/, and the line in each that names it.

    ./run schema            # after a new class, key or yaml
    ./run schema --check    # exit status 1 if something would be written

The schema is made of the groups' dataclasses, the signatures of the classes that a `_target_` may name, and the options
of each group. Descriptions are docstrings and the comments of the yamls. `${...}` and `???` are accepted for any value.
Arguments of a class of another library are checked only if a yaml of conf/ names the class.
"""

from __future__ import annotations

import argparse
import importlib
import inspect
import json
import pkgutil
import re
import sys
import types
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from math import isfinite
from pathlib import Path
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

import yaml

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "src"))
PACKAGE = next(path.parent.name for path in (ROOT / "src").glob("*/project.py") if path.parent.name != "engine")

from hydra.conf import HelpConf  # noqa: E402
from schema_prune import less, targets_of, written  # noqa: E402

from samebits.schema import DURATION, INTERVAL, POINT, Rule, describe, join, rule_of  # noqa: E402
from samebits.sweeps import PoolConfig, RayConfig, SearchConfig, SlurmConfig  # noqa: E402

CONFIG = importlib.import_module(f"{PACKAGE}.config")
PROJECT = importlib.import_module(f"{PACKAGE}.project").PROJECT
OURS = (f"{PACKAGE}.", "samebits.", "h5rows.", "hydra_plugins.")
Schema = dict[str, Any]
CONF, FILE = ROOT / "conf", "schema.json"
NO_GROUP = ("wandb_sweep.yaml",)  # read by W&B, not by Hydra
MODELINE = re.compile(r"^# yaml-language-server: \$schema=.*\n", re.MULTILINE)
HEADER = re.compile(r"(?:#\s*@.*\n)*")  # Hydra reads `# @package` only above all other lines
LATER = r"\$\{|^\?\?\?$"  # an interpolation, or a value that is still missing
FORMS = {"ep$": INTERVAL, "d]$": DURATION, "t)$": POINT}  # end of a pattern: its form in words, for messages
# key of a node with a `_target_`: the modules whose classes are offered for it. *: each entry
PLACES = {
    "model": ("models",),
    "data": ("datasets",),
    "data.order": ("samebits.data.order", "samebits.data.sampling", "samebits.data.windows"),
    "data.transforms.*": ("transforms",),
    "task": ("tasks",),
    "task.criterion": ("losses",),
    "task.metrics.*": ("metrics",),
    "optim": ("optimizers",),
    "optim.schedule": ("schedules",),
    "callback.*": ("callbacks",),
}
PLUGINS = {  # Hydra plugin: dataclass of its options
    "hydra_plugins.samebits_sweep.PoolLauncher": PoolConfig,
    "hydra_plugins.samebits_slurm.SlurmLauncher": SlurmConfig,
    "hydra_plugins.samebits_ray.RayLauncher": RayConfig,
    "hydra_plugins.samebits_optuna.OptunaSweeper": SearchConfig,
}
NAMED: Schema = {"if": {"type": "object", "required": ["_target_"]}}
SPECIAL: Schema = {
    "_partial_": {"type": "boolean", "description": "the run adds arguments of its own"},
    "_recursive_": {"type": "boolean"},
    "_convert_": {"enum": ["none", "partial", "object", "all"]},
    "_args_": {"type": "array"},
}


def ref(name: str, *inner: str) -> Schema:
    return {"$ref": "/".join(["#/definitions", name, *inner])}


# -- types -----------------------------------------------------------------------------------------------------------


def of_hint(hint: Any, exact: bool) -> Schema:
    """Return the schema of an annotation. exact: do not accept a number for text, as in arguments of a class."""
    found = alternatives(hint, Rule(), exact)
    if None in found:
        return ref("value")
    words = [word for one in found for word in one.get("enum", ())]  # type: ignore[union-attr]
    if words:  # add null, true, false to the enum
        plain = {"null": [None], "boolean": [False, True]}
        words += [word for one in found for word in plain.get(one.get("type"), ())]  # type: ignore[union-attr, arg-type]
        found = [{"enum": words}, *(one for one in found if one.get("type") not in (*plain, None))]  # type: ignore[union-attr]
    texts = {"type": "string"} in found
    form = next((one["pattern"] for one in found if one and one.get("type") == "string" and not texts), "")
    kinds = [one["type"] for one in found if "type" in one]  # type: ignore[index, operator]
    if len(kinds) < len(found) or len(set(kinds)) < len(kinds):
        return {"anyOf": [*found, *([] if texts else [ref("later")])]}
    merged: Schema = {key: value for one in found for key, value in one.items()}  # type: ignore[union-attr]
    merged["type"] = sorted({*kinds, "string"})
    if not texts:
        wanted = FORMS.get(form[-3:]) or describe(bare(hint))
        merged |= {"pattern": f"{form}|{LATER}".lstrip("|"), "patternErrorMessage": f"expected {wanted}, or ${{...}}"}
    return merged


def bare(hint: Any) -> Any:
    """Return an annotation without an outer Annotated."""
    return get_args(hint)[0] if get_origin(hint) is Annotated else hint


def alternatives(hint: Any, rule: Rule, exact: bool) -> list[Schema | None]:
    """Return a schema for each type of a union; None for a type that no value of a yaml has (a class)."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return alternatives(args[0], next((one for one in map(rule_of, args[1:]) if one), rule), exact)
    if origin in (Union, types.UnionType):
        members = [one for one in args if not getattr(one, "__module__", "").startswith("torch")]
        return [found for one in members for found in alternatives(one, rule, exact)] or [None]
    if origin is Literal:
        return [{"enum": list(args)}] if all(isinstance(one, (str, int, type(None))) for one in args) else [None]
    if hint in (int, float):
        names = {">=": "minimum", ">": "exclusiveMinimum", "<=": "maximum", "<": "exclusiveMaximum"}
        limits = {names[sign]: limit for sign, limit, _ in rule.limits()}
        return [{"type": "integer" if hint is int else "number", **limits}]
    if hint is str and rule.words:
        return [{"enum": list(rule.words)}]
    if hint is str and (rule.interval or rule.duration or rule.point):
        number = r"^\d*\.?\d+(e-?\d+)?"
        unit = "ep" if rule.interval else "(ep|st)" if rule.point else "[smhd]"
        return [{"type": "string", "pattern": f"{number}{unit}$"}]
    if hint is str:
        return [{"type": "string"}] if exact else [{"type": "string"}, {"type": "integer"}]
    if hint in (bool, type(None)):
        return [{"type": "boolean" if hint is bool else "null"}]
    if (origin or hint) in (list, tuple, Sequence):
        items = [of_hint(one, exact) for one in args if one is not Ellipsis] or [ref("value")]
        fixed = origin is tuple and Ellipsis not in args
        size = {"minItems": len(args), "maxItems": len(args)} if fixed else {}
        return [{"type": "array", "items": items[0] if all(one == items[0] for one in items) else items, **size}]
    if (origin or hint) in (dict, Mapping):
        return [{"type": "object", "additionalProperties": of_hint(args[1], exact) if args else ref("value")}]
    return [None]


def of_dataclass(cls: type, key: str = "", comments: Mapping[str, str] | None = None) -> Schema:
    """Return the schema of a dataclass. key: its key in the config, by which its comments are found."""
    hints, properties = get_type_hints(cls, include_extras=True), {}
    for one in fields(cls):
        inner = join(key, one.name)
        members = (hints[one.name], *get_args(hints[one.name]))
        nested = next((m for m in members if isinstance(m, type) and is_dataclass(m)), None)
        found = {} if nested else of_hint(hints[one.name], exact=False)
        if nested is not None:
            null = {"type": ["null", "object", "string"]} if nested is not hints[one.name] else {}
            found = {**of_dataclass(nested, inner, comments), **null}  # type: ignore[arg-type]
        properties[one.name] = {**found, **default(one.default), **described((comments or {}).get(inner, ""))}
    return {
        "type": ["object", "string"],
        "pattern": LATER,
        "patternErrorMessage": "expected keys and their values",
        **described(own_docstring(cls)),
        "properties": properties,
        "additionalProperties": False,
    }


def default(value: Any) -> Schema:
    return {"default": value} if isinstance(value, (int, str)) or (isinstance(value, float) and isfinite(value)) else {}


def described(text: str) -> Schema:
    return {"description": text} if text else {}


def own_docstring(found: Any) -> str:
    """Return the first paragraph of a docstring; "" for the one that Python generates for a dataclass."""
    text = inspect.cleandoc(found.__doc__ or "").split("\n\n")[0]
    return "" if text.startswith(f"{found.__name__}(") else " ".join(text.split())


# -- classes ---------------------------------------------------------------------------------------------------------


def located(path: str) -> Any:
    """Return the class or function; None if it does not exist, or its library is missing, too old or not allowed."""
    module, _, name = path.rpartition(".")
    if not path.startswith((*OURS, "optuna.", *(one.rstrip("*") for one in PROJECT.allowed))):
        return None
    try:
        return getattr(importlib.import_module(module), name, None)
    except ImportError:
        return None


def parameters_of(target: Any) -> list[inspect.Parameter] | None:
    """Return the parameters of a class or function; None if it does not exist or is written in C."""
    try:
        return list(inspect.signature(target).parameters.values())
    except (TypeError, ValueError):
        return None


def of_target(path: str, place: str, comments: Mapping[str, str]) -> Schema:
    """Return the schema of a node: its target's arguments, and keys that the run reads. place: a key of PLACES."""
    target, own = located(path), {"_target_": True, "defaults": True, **{name: ref(name) for name in SPECIAL}}
    if path in PLUGINS:
        held = of_dataclass(PLUGINS[path], path, comments)
        return {**held, "properties": {**own, **held["properties"]}}
    if (parameters := parameters_of(target)) is None:
        return {"type": "object", "properties": own}
    try:
        hints = get_type_hints(target.__init__ if inspect.isclass(target) else target, include_extras=True)
    except Exception:  # annotations that cannot be evaluated: check only the names
        hints = {}
    arguments: Schema = {}
    for one in parameters:
        if one.kind in (one.POSITIONAL_OR_KEYWORD, one.KEYWORD_ONLY) and one.name not in given(place):
            found = of_hint(hints.get(one.name, Any), exact=True)
            said = described(comments.get(f"{path}.{one.name}", ""))
            arguments[one.name] = {**at(f"{place}.{one.name}", found), **default(one.default), **said}
    if place in PROJECT.own:
        for name, found in of_dataclass(PROJECT.own[place], path, comments)["properties"].items():
            arguments[name] = {**at(f"{place}.{name}", found), **described(found.get("description", ""))}
    closed = not any(one.kind is one.VAR_KEYWORD for one in parameters)
    return {
        "type": "object",
        **described(own_docstring(target)),
        "properties": {**arguments, **own},
        **({"additionalProperties": False} if closed else {}),
    }


def at(key: str, otherwise: Schema) -> Schema:
    """Return the schema of a key: that of PLACES if the key, or each of its entries, is there; otherwise the given."""
    if f"{key}.*" in PLACES:
        return {"type": ["object", "string"], "pattern": LATER, "additionalProperties": ref(f"{key}.*")}
    return ref(key) if key in PLACES else otherwise


def given(place: str) -> Sequence[str]:
    return CONFIG.GIVEN_BY_RUN.get(place, ())


def offered(place: str) -> list[str]:
    """Return the import paths of the classes and functions that the modules of a place define for it."""
    found = []
    for home in PLACES.get(place, ()):
        first = importlib.import_module(home if home.startswith(OURS) else f"{PACKAGE}.{home}")
        inner = [one.name for one in pkgutil.iter_modules(getattr(first, "__path__", []))]
        for module in (first, *(importlib.import_module(f"{first.__name__}.{one}") for one in inner if one != "base")):
            for name, one in vars(module).items():
                if name.startswith("_") or getattr(one, "__module__", "") != module.__name__:
                    continue
                if inspect.isfunction(one) and place != "data.order":
                    continue
                if not callable(one) or getattr(one, "_is_protocol", False):
                    continue
                if place == "optim.schedule" and not any("__call__" in vars(base) for base in one.__mro__):
                    continue  # a module may contain optimizers too
                if set(given(place)) <= {parameter.name for parameter in parameters_of(one) or ()}:
                    found.append(f"{module.__name__}.{name}")
    return found


# -- what conf/ holds ------------------------------------------------------------------------------------------------


def yamls() -> list[Path]:
    found = [path for path in CONF.rglob("*.yaml") if path.relative_to(CONF).as_posix() not in NO_GROUP]
    # h5.yaml before captions.yaml: both build lab.datasets.h5.Dataset, whose arguments h5.yaml describes
    return sorted(found, key=lambda path: (f".{path.stem}." not in path.read_text(encoding="utf-8"), path))


def package_of(path: Path) -> str:
    """Return the key in the config below which the keys of a yaml are merged; "" is the root."""
    header = re.search(r"@package\s+(\S+)", HEADER.match(path.read_text(encoding="utf-8"))[0])  # type: ignore[index]
    return group_of(path) if header is None else header[1].replace("_global_", "")


def group_of(path: Path) -> str:
    """Return the group of a yaml: optim.schedule for conf/optim/schedule/step.yaml, "" for a yaml in conf/ itself."""
    return ".".join(path.parent.relative_to(CONF).parts)


def options() -> dict[str, list[str]]:
    """Return {group: the names of its yamls}."""
    found: dict[str, list[str]] = {}
    for path in yamls():
        found.setdefault(group_of(path), []).append(path.stem)
    return dict(sorted(found.items()))


def nodes(node: yaml.Node | None, key: str) -> Iterator[tuple[str, yaml.Node, yaml.Node]]:
    """Yield (dotted key, node of the key, node of the value) of a yaml, outer keys first."""
    for name, value in node.value if isinstance(node, yaml.MappingNode) else ():
        inner = f"{key}.{name.value}" if key else name.value
        yield inner, name, value
        yield from nodes(value, inner)


def comment_of(lines: list[str], name: yaml.Node, value: yaml.Node) -> str:
    """Return the comment after a value or, if there is none, above its key; "" if that is the file's header or code."""
    block = isinstance(value, yaml.CollectionNode) and not value.flow_style
    mark = name.end_mark if block else value.end_mark
    behind = lines[mark.line][mark.column :].lstrip(": ")
    if behind.startswith("#"):
        return behind.lstrip("# ")
    above, line = [], name.start_mark.line - 1
    while line >= 0 and lines[line].startswith(" " * name.start_mark.column + "# "):
        above.insert(0, lines[line].strip().lstrip("# "))
        line -= 1
    return "" if line < 0 or any(re.search(r"^\w+: ({|\S+$)|\s=|^#", one) for one in above) else " ".join(above)


def read() -> tuple[dict[str, str], dict[str, list[str]], dict[str, str]]:
    """Return ({dotted key, or target.argument: comment}, {key: its targets}, {group=option: its target})."""
    comments: dict[str, str] = {}
    used: dict[str, list[str]] = {}
    chosen: dict[str, str] = {}
    for path in yamls():
        text, package = path.read_text(encoding="utf-8"), package_of(path)
        try:
            found = list(nodes(yaml.compose(text, yaml.SafeLoader), package))
        except yaml.YAMLError as error:
            sys.exit(f"error: {path.relative_to(ROOT)}: {' '.join(str(error).split())}")
        # leave out our targets that do not exist, so that the editor marks them as a mistake
        targets = {
            key.removesuffix("_target_").rstrip("."): value.value
            for key, _, value in found
            if key.rpartition(".")[2] == "_target_" and re.fullmatch(r"\w+(\.\w+)+", str(value.value))
            if located(value.value) is not None or not value.value.startswith(OURS)
        }
        for key, name, value in found:
            said = comment_of([*text.splitlines(), ""], name, value)
            parent, _, last = key.rpartition(".")
            if package and parent in targets and parent in (package, f"callback.{parent.rpartition('.')[2]}"):
                key = f"{targets[parent]}.{last}"  # not for nested nodes, whose comments apply only to their place
            # an experiment's comments are about its values
            if said and not last.startswith("_") and (package or path.stem == "train"):
                comments.setdefault(key, said)
        for key, target in targets.items():
            used.setdefault(key, []).append(target)
        if package in targets and "." not in package:
            chosen[f"{package}={path.stem}"] = targets[package]
    return comments, used, chosen


# -- the whole -------------------------------------------------------------------------------------------------------


def build() -> Schema:
    comments, used, chosen = read()
    groups, hints = options(), get_type_hints(PROJECT.schema)
    places = {place: offered(place) for place in PLACES}
    places |= {group: [] for group in groups if group.startswith("hydra.") and group in used}
    for key, targets in used.items():
        for place in {key, f"{key.rpartition('.')[0]}.*"} & places.keys():
            places[place] += targets
    places = {place: ordered(targets) for place, targets in places.items()}
    place_of = {target: place for place, targets in reversed(places.items()) for target in targets}
    known = ordered([*place_of, *(target for targets in used.values() for target in targets)])
    made: Schema = {
        **SPECIAL,
        "later": {"type": "string", "pattern": LATER},
        "elsewhere": {"type": "string", "pattern": rf"^(?!({'|'.join(map(re.escape, OURS))}))\w+(\.\w+)+$|{LATER}"},
        "value": {
            **NAMED,
            "then": {"properties": {"_target_": {"anyOf": [{"enum": known}, ref("elsewhere")]}}, **ref("built")},
            "else": {"additionalProperties": ref("value"), "items": ref("value")},
        },
        "built": {"allOf": [{"if": has("_target_", one), "then": ref(one)} for one in known]},
    }
    made |= {target: of_target(target, place_of.get(target, ""), comments) for target in known}
    for group, names in groups.items():
        others = [{"type": "string"}] if group.startswith("hydra.") else []  # options of Hydra and its plugins
        made[f"options.{group}"] = {"anyOf": [{"enum": names}, *others]}
        one = ref(f"options.{group}")
        made[f"choice.{group}"] = {"anyOf": [one, {"type": "array", "items": one}, {"type": "null"}, ref("later")]}
    made["choices"] = {
        "type": "object",
        "properties": {
            f"override /{name}": ref(f"choice.{group}")
            for group in groups
            if group
            for name in sorted({spelled(group), group.replace(".", "/")})
        },
        # accepted: one word (defaults_of checks it), any package, Hydra's plugins, groups that a fork has added
        "patternProperties": {rf"^\w+$|@|^optional |^override /?hydra/|^/(?!({'|'.join(hints)})$)|\$": True},
        "additionalProperties": False,
    }
    for place, targets in places.items():
        made[place] = node_of(targets, made, defaults_of(place, groups))
    made["callback"] = {"properties": {"defaults": defaults_of("callback", groups)}}
    made["callback"]["additionalProperties"] = ref("callback.*")
    made["data.transforms"] = {"properties": {"defaults": defaults_of("data.transforms", groups)}}
    made["data.transforms"]["additionalProperties"] = ref("data.transforms.*")
    made["hydra.help"] = {"properties": {one.name: True for one in fields(HelpConf)}, "additionalProperties": False}
    for name, hint in hints.items():
        if is_dataclass(hint) and name in groups:
            made[name] = of_dataclass(hint, name, comments)
            made[name]["properties"]["defaults"] = defaults_of(name, groups)
    whole = of_dataclass(PROJECT.schema, "", comments)
    whole["properties"] |= {name: ref(name) for name in hints if name in made}
    plugins = {one[6:]: ref(one) for one in places if re.fullmatch(r"hydra\.\w+", one)}
    whole["properties"]["hydra"] = {"properties": plugins}
    made["train"] = {**whole, "properties": {**whole["properties"], "defaults": defaults_of("train", groups)}}
    made |= {
        option: {**NAMED, "then": ref(package_in(option)), "else": ref(target)} for option, target in chosen.items()
    }
    # groups to check by the option in the defaults list; sorted, because a fork has other options
    narrow = dict.fromkeys(sorted(map(package_in, chosen)), True)
    made["experiment"] = {**made["train"], "properties": {**made["train"]["properties"], **narrow}}
    made["experiment"]["properties"]["defaults"] = defaults_of("experiment", groups)
    made["experiment"]["allOf"] = [
        *({**chooses(group), "else": {"properties": {group: ref(group)}}} for group in narrow),
        *({**chooses(*one.split("=")), "then": {"properties": {package_in(one): ref(one)}}} for one in chosen),
    ]
    return {
        "$schema": "http://json-schema.org/draft-07/schema#",
        "$comment": "Written by ./run schema; see docs/editors.md.",
        "definitions": made,
    }


def package_in(option: str) -> str:
    return option.partition("=")[0]


def chooses(group: str, option: str | None = None) -> Schema:
    """Return the condition that a defaults list overrides the group; option: with this option."""
    key = f"override /{group}"
    wanted = {"type": "object", "required": [key]} if option is None else has(key, option)
    return {"if": {"required": ["defaults"], "properties": {"defaults": {"contains": wanted}}}}


def has(key: str, value: str) -> Schema:
    return {"type": "object", "properties": {key: {"const": value}}, "required": [key]}


def ordered(targets: Iterable[str]) -> list[str]:
    """Return the targets sorted, the project's first, so that the order does not depend on the package's name."""
    return sorted(set(targets), key=lambda one: (not one.startswith(f"{PACKAGE}."), one))


def node_of(targets: list[str], made: Schema, defaults: Schema) -> Schema:
    """Return the schema of a node. Without a `_target_`, as in an experiment, the arguments of all targets are keys."""
    union: dict[str, list[Schema]] = {}
    for target in targets:
        for name in made[target]["properties"]:
            if name not in ("_target_", "defaults"):
                union.setdefault(name, []).append(ref(target, "properties", name))
    # only our classes decide, because those of other libraries depend on what is installed
    closed = all("additionalProperties" in made[target] for target in targets if target.startswith(OURS))
    return {
        "type": ["object", "string"],
        "pattern": LATER,
        "properties": {"_target_": {"anyOf": [{"enum": targets}, ref("elsewhere")]}, "defaults": defaults},
        **NAMED,
        "then": ref("built"),
        "else": {
            "properties": {"defaults": True, **{name: {"anyOf": found} for name, found in union.items()}},
            **({"additionalProperties": False} if closed else {}),
        },
    }


def spelled(group: str) -> str:
    """Return a group as a defaults list names it: nested groups, except Hydra's, with their package."""
    path = group.replace(".", "/")
    return f"{path}@{group}" if "." in group and not group.startswith("hydra.") else path


def defaults_of(name: str, groups: Mapping[str, list[str]]) -> Schema:
    """Return the schema of a defaults list. name: a group; "experiment" for experiments and debug; "train"."""
    inner = {group.removeprefix(f"{name}."): group for group in groups if group.startswith(f"{name}.")}
    if name == "train":
        inner = {group: group for group in groups if group and "." not in group}
    listed = {"train": [""], "experiment": ["experiment", "debug"]}.get(name, [name] if name in groups else [])
    words = {"properties": {key: ref(f"choice.{group}") for key, group in inner.items()}} if inner else {}
    mapping = {"allOf": [ref("choices"), {**words, "patternProperties": {r"\W": True}, "additionalProperties": False}]}
    texts = [
        {"enum": ["_self_"]},
        *(ref(f"options.{group}") for group in listed),
        {"type": "string", "pattern": "[/@$]"},
    ]
    return {"type": "array", "items": {"if": {"type": "object"}, "then": mapping, "else": {"anyOf": [*texts, mapping]}}}


# -- files -----------------------------------------------------------------------------------------------------------


def with_modeline(path: Path, names: Collection[str]) -> str:
    """Return a yaml's text with the line that names its schema, after `# @package`. names: those of the definitions."""
    name = package_of(path) or ("train" if path == CONF / "train.yaml" else "experiment")
    name = name if name in names else "value"  # a group that a fork has added
    up = "../" * (len(path.relative_to(CONF).parts) - 1) or "./"
    text = MODELINE.sub("", path.read_text(encoding="utf-8"), count=1)
    end = HEADER.match(text).end()  # type: ignore[union-attr]
    return f"{text[:end]}# yaml-language-server: $schema={up}{FILE}#/definitions/{name}\n{text[end:]}"


def comparable(schema: Schema) -> Schema:
    """Return the schema without classes of other libraries, whose arguments depend on their version."""
    return less(schema, {one for one in targets_of(schema) if not one.startswith(OURS)})


def main() -> int:
    parser = argparse.ArgumentParser(
        "./run schema", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False
    )
    parser.add_argument("--check", action="store_true", help="write nothing; exit status 1 if something would be")
    check = parser.parse_args().check
    made, file = build(), CONF / FILE
    texts = {path: with_modeline(path, made["definitions"]) for path in yamls()}
    stale = [path for path, text in texts.items() if text != path.read_text(encoding="utf-8")]
    try:
        current = comparable(json.loads(file.read_text(encoding="utf-8"))) == comparable(made)
    except (FileNotFoundError, ValueError):  # no file, or one with merge conflicts
        current = False
    for path in [*stale, *([] if current else [file])]:
        if not check:
            path.write_text(written(made) if path == file else texts[path], encoding="utf-8")
        print(f"{path.relative_to(ROOT)}: {'not current - ./run schema' if check else 'written'}")
    return int(check and bool(stale or not current))


if __name__ == "__main__":
    sys.exit(main())
