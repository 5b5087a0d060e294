"""Check nodes with a `_target_`: whether it is allowed, can be imported and accepts the node's keywords."""

from __future__ import annotations

import contextlib
import importlib.util
import inspect
import pkgutil
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from samebits.errors import ConfigError
from samebits.project import Project
from samebits.schema import (
    TYPED,
    at,
    check_limits,
    check_resolved,
    describe,
    did_you_mean,
    fits,
    hints_of,
    join,
    nearest,
    one_typo,
    plain,
    show,
    walk,
)

_CLASSES_ONLY = ("torch.*", "torchmetrics.*", "optuna.*")
NEEDS_TARGET = "needs a _target_, the import path of a class"
_SPECIAL = ("_target_", "_partial_", "_args_", "_recursive_", "_convert_")


def check_targets(
    project: Project,
    cfg: Mapping[str, Any],
    single: Sequence[str],
    collections: Sequence[str],
    own: Mapping[str, Sequence[str]],
    given: Mapping[str, Sequence[str]],
    allowed: Sequence[str] = (),
    defaults: Mapping[str, Any] = types.MappingProxyType({}),
) -> None:
    """Raise ConfigError for the first node that cannot be built. allowed: allowed targets; empty: project.allowed.

    single: dotted keys of nodes that must have a `_target_`. collections: keys of nodes whose entries must all have
    one. own: {key: entries of that node that are not arguments}. given: {key: arguments that the caller adds}.
    defaults: see `complete`.
    """
    wanted = {key: at(cfg, key.split(".")) for key in single}
    for key in collections:
        entries = at(cfg, key.split(".")) or {}
        if not isinstance(entries, Mapping):
            raise ConfigError(f"{key}: expected a mapping of names, each with a _target_, got {show(entries)}")
        if "_target_" in entries:
            raise ConfigError(
                f"{key}: expected a mapping of names, e.g. {key}.x: {{_target_: ...}}, got a node with a _target_"
            )
        wanted |= {join(key, str(name)): node for name, node in entries.items()}
    for key, node in wanted.items():
        if not isinstance(node, Mapping) or "_target_" not in node:
            raise ConfigError(f"{key}: {NEEDS_TARGET}, got {show(node)}")
    for key, node in _targets(cfg):
        target = _check_node(project, node, key, allowed)
        keywords = {n: v for n, v in node.items() if n not in _SPECIAL and n not in own.get(key, ())}
        keywords |= _defaults_for(target, node, defaults, given.get(key, ()))
        _check_keywords(project, target, node, keywords, key, own.get(key, ()), given.get(key, ()))


def complete(
    project: Project, node: Any, defaults: Mapping[str, Any], given: Mapping[str, Sequence[str]], key: str = ""
) -> Any:
    """Return a copy of a plain tree in which each node with a `_target_` gets those of `defaults` that are
    parameters of its class or function without a default of their own and that the node does not set.

    given: {key: arguments that the caller adds}. A node whose target cannot be imported (a saved run's callback that
    was deleted) is not changed; building it raises the error.
    """
    if isinstance(node, list):
        return [complete(project, value, defaults, given, join(key, str(index))) for index, value in enumerate(node)]
    if not isinstance(node, Mapping):
        return node
    inner = {name: complete(project, value, defaults, given, join(key, str(name))) for name, value in node.items()}
    if "_target_" in node:
        with contextlib.suppress(ConfigError):
            inner |= _defaults_for(locate(project, node["_target_"], key), node, defaults, given.get(key, ()))
    return inner


def _defaults_for(
    target: Any, node: Mapping[str, Any], defaults: Mapping[str, Any], given: Sequence[str]
) -> dict[str, Any]:
    try:
        lacks = _missing(_parameters(target)[0], node)
    except (TypeError, ValueError):  # written in C, without a signature
        return {}
    return {name: defaults[name] for name in lacks if name in defaults and name not in given}


def check_nodes(project: Project, tree: Any) -> None:
    """Raise ConfigError if a plain tree from any source has a `_target_` that is not allowed or does not exist."""
    check_resolved(tree)
    for key, node in _targets(tree):
        _check_node(project, node, key, ())


def build_target(project: Project, node: Any, key: str = "", allowed: Sequence[str] = (), /, **arguments: Any) -> Any:
    """Return the object that `node` names, built from its keywords and `arguments`, with plain lists and dicts.

    All targets, including nested ones, are checked before anything is called: raise ConfigError if one is not allowed,
    with any version of Hydra. key: the node's key, for messages.
    """
    from hydra.errors import InstantiationException
    from hydra.utils import instantiate

    tree = plain(node)  # resolved once, so that the same values are checked and built
    check_resolved(tree, key)
    for path, inner in _targets(tree, key):
        _check_node(project, inner, path, allowed)
    # Hydra 1.4 warns without its own allowlist, which 1.3 does not have
    if "_execution_whitelist_" in inspect.signature(instantiate).parameters:
        arguments["_execution_whitelist_"] = tuple(allowed) or project.allowed
    try:
        return instantiate(tree, _convert_="all", **arguments)
    except InstantiationException as error:  # raise the target's own error instead
        raise (error.__cause__ or error) from None


def _check_node(project: Project, node: Mapping[str, Any], key: str, allowed: Sequence[str]) -> Any:
    """Return the class or function of a node's `_target_`. Raise ConfigError if it is not allowed."""
    path, where = node["_target_"], join(key, "_target_")
    for name, kind in (("_partial_", bool), ("_recursive_", bool), ("_convert_", str), ("_args_", list)):
        if not isinstance(node.get(name, kind()), kind):
            raise ConfigError(f"{join(key, name)}: expected {describe(kind)}, got {show(node[name])}")
    target = locate(project, path, key, allowed)
    if inspect.isclass(target) or path in (allowed or project.allowed):
        return target
    if _below(path, _CLASSES_ONLY):
        raise ConfigError(f"{where}: {path} is a function; only classes of this library are allowed")
    ours = path.split(".")[0] in ("samebits", project.package)
    if ours and not _below(path, project.factories) and node.get("_partial_") is not True:
        raise ConfigError(
            f"{where}: {path} is a function that the run calls itself - add _partial_: true, or name a class"
        )
    return target


def locate(project: Project, path: Any, key: str, allowed: Sequence[str] = ()) -> Any:
    """Return the public class or function `path`, which an allowed module must define. Raise ConfigError otherwise.
    key: the key of the node with this `_target_`, for messages."""
    where = join(key, "_target_")
    if not isinstance(path, str) or not all(part.isidentifier() for part in path.split(".")):
        raise ConfigError(f"{where}: expected an import path such as torch.nn.GELU, got {show(path)}")
    refused = _refusal(project, path, where, allowed)
    allowed = allowed or project.allowed
    # allowed by its own name, not by lab.models.*: it may be private, in a class, or any callable
    is_named = path in allowed
    if not _below(path, allowed):
        _check_renamed(project, path, where, allowed)
        raise ConfigError(refused)
    if not is_named and any(part.startswith("_") for part in path.split(".")):
        raise ConfigError(f"{where}: {path} is private: names with a leading underscore are not allowed")
    found = _walked(project.root, path, where, into_classes=is_named)
    if is_named and callable(found):
        return found
    if not (inspect.isclass(found) or inspect.isfunction(found)):
        raise ConfigError(f"{where}: {path} is not a class or function")
    # a name that the module only imports (lab.x.Path) is not defined there
    home = f"{found.__module__}.{found.__qualname__}"
    if not _below(home, allowed):
        raise ConfigError(f"{refused}: it is defined as {home}")
    return found


def _refusal(project: Project, path: str, where: str, allowed: Sequence[str]) -> str:
    """Return the line for a path that is not allowed. allowed: targets for this node only; if empty, the project's list
    is used."""
    if allowed:
        return f"{where}: {path} is not allowed ({', '.join(allowed)})"
    remedy = next((text for start, text in project.remedies.items() if path.startswith(start)), None)
    file = f"src/{project.name.replace('.', '/')}.py"
    if remedy is None and path.startswith(f"{project.package}.") and not _below(path, project.allowed):
        remedy = f"move it into one of these packages, or add {path} to `allowed` in {file}"
    remedy = remedy or f"add its library to `allowed` in {file}"
    return f"{where}: {path} is not allowed ({', '.join(project.allowed)}) - {remedy}"


def _check_renamed(project: Project, path: str, where: str, allowed: Sequence[str]) -> None:
    """Raise ConfigError for lab.models.x in a fork whose package has another name, and for a path that has moved."""
    if (now := project.moved.get(path)) is not None:
        raise ConfigError(f"{where}: {path} was renamed to {now}")
    first, _, rest = path.partition(".")
    renamed = f"{project.package}.{rest}"
    if _below(renamed, allowed) and importlib.util.find_spec(first) is None:
        with contextlib.suppress(ImportError, AttributeError):
            pkgutil.resolve_name(renamed)
            raise ConfigError(f"{where}: {path}: there is no package {first!r} - did you mean {renamed}?")


def _walked(root: Path, path: str, where: str, into_classes: bool) -> Any:
    """Return the object at `path`, through packages and their modules and, with into_classes, through classes."""
    above, *parts = path.split(".")
    found: Any = _import(root, above, path, where)
    for part in parts:
        if not into_classes and not isinstance(found, ModuleType):
            raise ConfigError(f"{where}: {path} is part of {above}; name a class or function itself")
        inner = getattr(found, part, None)
        if isinstance(found, ModuleType) and (inner is None or isinstance(inner, ModuleType)):
            # a module that `found` only imports (lab.x.os.system) is not part of it
            inner = _import(root, f"{above}.{part}", path, where) if hasattr(found, "__path__") else None
        if inner is None:
            raise ConfigError(f"{where}: {above} has no {part!r}{did_you_mean(part, _names(found))}")
        found, above = inner, f"{above}.{part}"
    return found


def _below(path: str, prefixes: Sequence[str]) -> bool:
    """Return True if one of the prefixes (lab.models.*) or full names matches `path`."""
    return any(path == p or (p.endswith("*") and f"{path}.".startswith(p[:-1])) for p in prefixes)


def _import(root: Path, name: str, path: str, where: str) -> ModuleType | None:
    """Return the module; None if it does not exist."""
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise ConfigError(_import_message(root, error, name, where)) from error
        if "." in name:
            return None
        raise ConfigError(f"{where}: no module {name!r} for {path} - is it installed?") from error
    except Exception as error:  # any error in the module's own code
        raise ConfigError(_import_message(root, error, name, where)) from error


def _import_message(root: Path, error: Exception, name: str, where: str) -> str:
    """Return Python's error message with file and line."""
    text = " ".join("".join(traceback.format_exception_only(type(error), error)).strip().splitlines()[-1].split())
    if isinstance(error, SyntaxError):
        file, line = error.filename, error.lineno
        text = f"{type(error).__name__}: {error.msg}"
    else:
        frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<frozen")]
        file, line = frames[-1].filename, frames[-1].lineno
    return f"{where}: {name} cannot be imported: {text} ({below(root, file)}, line {line})"


def below(root: Path, file: str | None) -> str:
    """Return a file's path relative to the root if it is below it, otherwise unchanged."""
    path = Path(file or "?")
    return str(path.relative_to(root)) if path.is_relative_to(root) else str(path)


def _names(found: Any) -> list[str]:
    """Return the names that may follow in a target path: public classes and functions, and a package's modules."""
    names = [n for n, v in vars(found).items() if callable(v) and not n.startswith("_")]
    return names + [m.name for m in pkgutil.iter_modules(getattr(found, "__path__", []))]


def _check_keywords(
    project: Project,
    target: Any,
    node: Mapping[str, Any],
    keywords: dict[str, Any],
    key: str,
    own: Sequence[str],
    given: Sequence[str],
) -> None:
    try:
        named, open_ended = _parameters(target)
    except (TypeError, ValueError):  # written in C, without a signature
        return
    path = node["_target_"]
    for name in keywords:
        if name in given and (name in named or open_ended):
            raise ConfigError(f"{join(key, name)}: the run sets this argument itself - remove it")
        if name not in named and not open_ended:
            accepts = [n for n in (*named, *own) if n not in given]
            # a key of the group, which is not an argument, only for a typo: split_by is no remedy for splits
            close = [n for n in accepts if n in named or one_typo(name, n)]
            match, remove = nearest(name, close), f"remove it, or add ~{join(key, name)} if a yaml sets it"
            hint = TYPED.get(name, f"did you mean {match!r}?" if match else remove)
            raise ConfigError(
                f"{join(key, name)}: {path} does not accept {name!r} - {hint} "
                f"(accepts: {', '.join(accepts) or 'nothing'})"
            )
    for name in given:
        if name not in named and not open_ended and not node.get("_partial_"):
            raise ConfigError(f"{join(key, '_target_')}: {path} does not accept {name!r}, which the run passes")
    if not node.get("_partial_"):
        for name in _missing(named, {**keywords, **dict.fromkeys(given), "_args_": node.get("_args_", ())}):
            raise ConfigError(f"{join(key, name)}: {path} requires {name!r} - set {join(key, name)}=...")
    _check_types(project, target, keywords, key)


@cache
def _parameters(target: Any) -> tuple[dict[str, inspect.Parameter], bool]:
    """Return (the parameters that a yaml can set by name, whether it accepts others)."""
    parameters = inspect.signature(target).parameters
    named = {n: p for n, p in parameters.items() if p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY)}
    return named, any(p.kind is p.VAR_KEYWORD for p in parameters.values())


def _missing(named: Mapping[str, inspect.Parameter], node: Mapping[str, Any]) -> list[str]:
    """Return the parameters without a default that a node does not set."""
    left = list(named.values())[len(node.get("_args_", ())) :]
    return [p.name for p in left if p.default is p.empty and p.name not in node]


def _check_types(project: Project, target: Any, keywords: dict[str, Any], key: str) -> None:
    """Check plain values against the target's annotations, as far as these restrict plain values."""
    try:
        function = target.__init__ if inspect.isclass(target) else target
        hints, ruled = hints_of(function), hints_of(function, True)
    except Exception:  # annotations that cannot be evaluated are not an error of the config
        return
    for name, value in keywords.items():
        for where, wrong in _unbuilt(project, value, hints.get(name, Any), join(key, name)):
            raise ConfigError(f"{where}: {NEEDS_TARGET}, got {show(wrong)}")
        hint = _plain_part(hints.get(name, Any))
        built = isinstance(value, Mapping) and "_target_" in value
        if hint is not None and not built and not fits(value, hint, exact=True)[0]:
            items = hint if hint != hints[name] or hints[name] == ruled[name] else ruled[name]  # with limits of items
            wanted = describe(get_args(items)[0] if get_origin(items) is Annotated else items)
            raise ConfigError(f"{join(key, name)}: expected {wanted}, got {show(value)}")
        check_limits(value, ruled.get(name, Any), join(key, name))


def _unbuilt(project: Project, value: Any, hint: Any, key: str) -> Iterator[tuple[str, Any]]:
    """Yield (key, value) of values without a _target_ whose annotation requires an object (Callable, nn.Module, a class
    of the project), also in mappings and lists."""
    if isinstance(value, Mapping) and "_target_" in value:
        return
    members = get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,)
    for member in members:
        inner = [arg for arg in get_args(member) if arg is not Ellipsis]
        if isinstance(value, Mapping) and get_origin(member) in (dict, Mapping) and len(inner) == 2:
            for name, item in value.items():
                yield from _unbuilt(project, item, inner[1], join(key, str(name)))
            return
        if isinstance(value, list) and get_origin(member) in (list, tuple, Sequence) and inner:
            for index, item in enumerate(value):
                yield from _unbuilt(project, item, inner[0], f"{key}[{index}]")
            return
    others = [_plain_part(member) for member in members if not _is_built(project, member)]
    if len(others) < len(members) and not any(part is None or fits(value, part, exact=True)[0] for part in others):
        yield key, value


def _is_built(project: Project, hint: Any) -> bool:
    """Return True if an annotation means an object that a yaml cannot contain."""
    if hint is Callable or get_origin(hint) is Callable:
        return True
    homes = {kind.__module__ for kind in getattr(hint, "__mro__", ())} if inspect.isclass(hint) else set()
    ours = any(home.split(".")[0] in ("samebits", project.package) for home in homes)
    return ours or bool(homes & {"torch.nn.modules.module", "torch.optim.optimizer"})


def _plain_part(hint: Any) -> Any:
    """Return the part of an annotation that yaml values can match (float | Tensor -> float); None: cannot be
    checked."""
    origin, args = get_origin(hint), get_args(hint)
    if hint in (int, float, str, bool, type(None), list, tuple, dict) or origin is Literal:
        return hint
    if origin in (Union, types.UnionType):
        # a yaml cannot contain tensors, so members of torch cannot match
        members = [_plain_part(m) for m in args if not getattr(m, "__module__", "").startswith("torch")]
        return None if None in members or not members else Union[tuple(members)]  # noqa: UP007 - built at run time
    if origin in (list, tuple, Sequence):
        items = [a if a is Ellipsis else _plain_part(a) for a in args]
        return None if None in items else origin[tuple(items)]
    return dict if origin in (dict, Mapping) else None


def _targets(tree: Any, key: str = "") -> list[tuple[str, Mapping[str, Any]]]:
    """Return all nodes with a `_target_`, outer ones first."""
    return [(at, node) for at, node in walk(tree, key) if isinstance(node, Mapping) and "_target_" in node]
