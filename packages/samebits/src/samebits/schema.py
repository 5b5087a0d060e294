"""Convert plain config nodes to dataclasses. Unknown, missing and mistyped keys become one readable line.

A schema is a frozen dataclass. Limits and options of a field are a `Rule`: `Annotated[int, Rule(at_least=1)]`. Defaults
are for saved configs that are older than the field (`completed`); `typed` requires every key.
"""

from __future__ import annotations

import math
import operator
import re
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING as MISSING_DEFAULT, asdict, dataclass, fields, is_dataclass
from difflib import get_close_matches
from functools import cache
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from omegaconf import OmegaConf

from samebits.errors import ConfigError

T = TypeVar("T")
MISSING = "???"
DURATION = "seconds (90) or a time with its unit (90s, 30m, 12h, 1.5d) or null"
INTERVAL = "steps (50) or epochs (1ep, 0.5ep) or null"
POINT = "a share of all steps (0.5), epochs (10ep) or steps (500st)"
# last part of a key in other frameworks -> the remedy
WHICH_GPUS = "CUDA_VISIBLE_DEVICES=0,1 ./run ... selects GPUs, trainer=ddp hardware.num_procs=2 their number"
TYPED = {
    **dict.fromkeys(("devices", "device_ids", "gpus", "gpu", "gpu_ids", "gpu_id"), WHICH_GPUS),
    "accelerator": "use hardware=gpu or hardware=cpu",
    "accumulate_grad_batches": "hardware.micro_batch_size is the number of samples that fit in memory",
    "batch_size": "trainer.global_batch_size is the number of samples of a step, over all processes",
    "pin_memory": "batches are always copied to pinned (page-locked) memory - remove it",
    "persistent_workers": "workers always persist for the whole run - remove it",
    "prefetch_factor": "batches are always prefetched - remove it",
    **dict.fromkeys(("val_check_interval", "check_val_every_n_epoch"), "use trainer.eval_every=0.5ep"),
    "ckpt_path": "resume=RUN continues a run, ./run evaluate RUN scores it",
    "detect_anomaly": "use debug=anomaly",
    "fast_dev_run": "use debug=fast",
    "overfit_batches": "use debug=overfit",
    "empty_cache": "training never empties the cache - remove it; hardware.micro_batch_size=auto saves memory",
}
# the same, for names that a project may have: last part of a key, or option, in other frameworks -> the project's name
SYNONYMS = {
    "gradient_clip_val": "clip_norm",
    **dict.fromkeys(("limit_val_batches", "limit_test_batches"), "max_eval_batches"),
    "limit_train_batches": "max_steps",
    "gpu": "cuda",  # "cpu" is one typo away
    "cuda": "gpu",
    "float16": "fp16",
    "float32": "fp32",
}
_WORDS = {int: "an integer", float: "a number", str: "text", bool: "true or false", type(None): "null"}


@dataclass(frozen=True)
class Rule:
    """Restrict a field beyond its type.

    words: allowed texts. at_least, at_most, above, below: limits of numbers. interval: epochs are allowed (1ep).
    duration: times with a unit are allowed (30m). point: epochs and steps with a unit are allowed (10ep, 500st). hint:
    text at the end of a message: what a number means, or an alternative.
    """

    words: tuple[str, ...] = ()
    at_least: float | None = None
    at_most: float | None = None
    above: float | None = None
    below: float | None = None
    interval: bool = False
    duration: bool = False
    point: bool = False
    hint: str = ""

    def limits(self) -> list[tuple[str, float, Callable[[float, float], bool]]]:
        """Return (sign, limit, comparison) of each limit that is set."""
        rows = [
            (">=", self.at_least, operator.ge),
            (">", self.above, operator.gt),
            ("<=", self.at_most, operator.le),
            ("<", self.below, operator.lt),
        ]
        return [(sign, limit, holds) for sign, limit, holds in rows if limit is not None]


# for arguments of classes that a config builds: `def __init__(self, width: Count, dropout: Share)`
Count = Annotated[int, Rule(at_least=1)]
Share = Annotated[float, Rule(at_least=0, at_most=1)]
Point = Annotated[
    float | str,
    Rule(
        at_least=0, at_most=1, point=True, hint="a number is a share of all steps; write epochs as 10ep, steps as 500st"
    ),
]  # a point in training, see parse_point
Positive = Annotated[float, Rule(above=0)]
NotNegative = Annotated[float, Rule(at_least=0)]
NotNegativeInt = Annotated[int, Rule(at_least=0)]


def rule_of(mark: Any) -> Rule | None:
    """Return the Rule of an Annotated type; None if `mark` is not one. A library that does not import samebits uses a
    dict instead: {"at_least": 0}."""
    return Rule(**mark) if isinstance(mark, dict) else mark if isinstance(mark, Rule) else None


def option(*words: str) -> Rule:
    """Return a Rule that allows these texts."""
    return Rule(words=words)


@cache
def hints_of(what: Any, with_rules: bool = False) -> dict[str, Any]:
    """Return get_type_hints, cached for each class or function, because it evaluates the annotations."""
    return get_type_hints(what, include_extras=with_rules)


def typed(
    cls: type[T],
    node: Any,
    key: str = "",
    moved: Mapping[str, str] = types.MappingProxyType({}),
    root: Mapping[str, Any] = types.MappingProxyType({}),
) -> T:
    """Return `node`, a mapping of plain values, as an instance of `cls`. Raise ConfigError if a key is unknown, missing
    or invalid.

    key: the node's key; empty: the root. moved: {key in older versions: current key}, and root: the whole config, for
    messages.
    """
    values = plain(node)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key}: expected a mapping, got {show(values)}")
    schema = [f.name for f in fields(cls)]  # type: ignore[arg-type]
    root = root if key else values
    for name in values:
        if name not in schema:
            raise ConfigError(no_such_key(join(key, str(name)), schema, [*root, *leaves(root)], moved))
    for name in schema:
        if name not in values:
            raise ConfigError(f"{join(key, name)}: is missing - set {join(key, name)}=...")
    hints = hints_of(cls, True)  # type: ignore[arg-type]
    return cls(**{name: _value(values[name], hints[name], join(key, name), moved, root) for name in schema})


def completed(cls: type[Any], values: Mapping[str, Any], key: str = "") -> tuple[dict[str, Any], list[str], list[str]]:
    """Update a mapping that an older version wrote.

    Return (the mapping with defaults for missing keys and without unknown keys, "key=value" of each missing key, the
    unknown keys). `typed` reports missing keys that have no default.
    """
    known = {f.name: f for f in fields(cls)}
    whole, filled = dict(values), []
    gone = [join(key, str(name)) for name in values if name not in known]
    for name, hint in hints_of(cls).items():  # type: ignore[arg-type]
        at, own = join(key, name), known[name]
        if name not in values:
            make: Any = own.default_factory
            value = make() if callable(make) else own.default
            if value is MISSING_DEFAULT:
                continue
            whole[name] = asdict(value) if is_dataclass(value) and not isinstance(value, type) else value
            filled.append(at if isinstance(whole[name], dict) else f"{at}={show(whole[name])}")
            continue
        inner = next((member for member in (hint, *get_args(hint)) if is_dataclass(member)), None)
        if inner is not None and isinstance(values[name], Mapping):
            whole[name], more, lost = completed(inner, values[name], at)  # type: ignore[arg-type]
            filled, gone = filled + more, gone + lost
    return {name: value for name, value in whole.items() if name in known}, filled, gone


def split_own(node: Any, cls: type[T], key: str) -> tuple[T, dict[str, Any]]:
    """Split a node that contains the run's own keys, and a `_target_` with its arguments. Return (own keys, the
    rest)."""
    values = plain(node)
    if not isinstance(values, Mapping):
        raise ConfigError(f"{key}: expected a mapping, got {show(values)}")
    own = {f.name for f in fields(cls)}  # type: ignore[arg-type]
    rest = {name: value for name, value in values.items() if name not in own}
    return typed(cls, {name: value for name, value in values.items() if name in own}, key), rest


def plain(node: Any, resolve: bool = True) -> Any:
    """Return the node as dicts, lists and scalars. resolve: resolve interpolations."""
    return OmegaConf.to_container(node, resolve=resolve) if OmegaConf.is_config(node) else node


def check_resolved(node: Any, key: str = "") -> None:
    """Raise ConfigError for the first text or key of a plain node that contains an interpolation (${...})."""
    for at, value in walk(node, key):
        for text in (value, at):
            if isinstance(text, str) and "${" in text:
                raise ConfigError(
                    f"{at}: {show(text)} is an interpolation, which is not supported here - write the value itself"
                )


def walk(node: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    """Yield (dotted key, value) of a plain node and everything below it, outer nodes first."""
    yield key, node
    pairs = node.items() if isinstance(node, Mapping) else enumerate(node) if isinstance(node, (list, tuple)) else ()
    for name, value in pairs:
        yield from walk(value, join(key, str(name)))


def at(node: Any, keys: Iterable[str | int]) -> Any:
    """Return the value at these nested keys; None if there is none."""
    for key in keys:
        node = node.get(key) if isinstance(node, Mapping) else None
    return node


def below_outputs(name: Any) -> str:
    """Return a run's `name` if it is a valid folder below outputs/, including numbers (2024). Otherwise raise
    ConfigError."""
    name = fits(name, str)[1] if fits(name, str)[0] else name
    if not isinstance(name, str) or not name.strip() or ".." in name.split("/") or name.startswith(("/", "~")):
        raise ConfigError(f"name: must be a folder below outputs/, got {show(name)}")
    return name


def regex(text: Any, key: str) -> re.Pattern[str]:
    """Return the compiled regular expression. Raise ConfigError if it is invalid. key: for the message."""
    try:
        return re.compile(text)
    except (re.error, TypeError) as error:
        raise ConfigError(f"{key}: {show(text)} is not a regular expression: {error}") from None


def leaves(node: Any, key: str = "") -> list[str]:
    """Return the dotted keys of all values in nested mappings, e.g. optim.lr. Top-level values are left out."""
    if not isinstance(node, Mapping):
        return [key] if "." in key else []
    return [leaf for name, value in node.items() for leaf in leaves(value, join(key, str(name)))]


def join(key: str, name: str) -> str:
    """Return the dotted key of `name` below `key`."""
    return f"{key}.{name}" if key else name


def show(value: Any) -> str:
    """Return a value as it is written in yaml, with quotes around text."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return "a mapping" if isinstance(value, Mapping) else repr(value)


def nearest(name: str, names: Iterable[str], cutoff: float = 0.6) -> str | None:
    """Return the name most similar to `name`, first of those that are one typo away; None if none is similar enough."""
    names = [str(n) for n in names]
    if (same := SYNONYMS.get(name.lower(), name)) in names:
        return same
    close = [n for n in names if one_typo(name, n) or name.lower() == n.lower()]
    matches = get_close_matches(name, close or names, n=1, cutoff=0 if close else cutoff)
    return matches[0] if matches else None


def one_typo(one: str, other: str) -> bool:
    """Return True if one letter is added, left out or replaced, or two neighboring letters are swapped."""
    start = next((k for k, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    a, b = one[start:], other[start:]
    replaced = a[1:] == b[1:] and len(one) > 2  # most names of two letters are one replacement away
    return a != b and (a[1:] == b or a == b[1:] or replaced or (a[:2] == b[1::-1] and a[2:] == b[2:]))


def did_you_mean(name: str, names: Iterable[str], prefix: str = "") -> str:
    """Return a suggestion for a misspelled name, or an empty text."""
    match = nearest(name, names)
    return f" - did you mean {join(prefix, match)}?" if match else ""


def no_such_key(
    key: str,
    siblings: Iterable[str],
    elsewhere: Sequence[str] = (),
    moved: Mapping[str, str] = types.MappingProxyType({}),
    option: str = "",
) -> str:
    """Return the message for an unknown key.

    elsewhere: dotted keys of the whole config, for suggestions. moved: {key in older versions: current key, "" if there
    is none}. option: the choice of another option of the group, which has such a key.
    """
    prefix, _, name = key.rpartition(".")
    siblings = [str(s) for s in siblings if not str(s).startswith("_")]  # no _target_
    elsewhere = [k for k in elsewhere if k != key and not k.rpartition(".")[2].startswith("_")]
    same = [k for k in elsewhere if k.rpartition(".")[2] == SYNONYMS.get(name, name)]
    if key in moved:
        hint = f" - it was renamed to {moved[key]}" if moved[key] else " - it no longer exists, leave it out"
    elif name in TYPED:
        hint = f" - {TYPED[name]}"
    elif any(one_typo(name, sibling) for sibling in siblings):
        hint = did_you_mean(name, siblings, prefix)
    elif option:
        hint = f" - choose {option}"
    elif len(same) == 1:
        hint = f" - did you mean {same[0]}?"
    elif not (hint := did_you_mean(name, siblings, prefix)) and elsewhere:
        # e.g. global_batch: suggest trainer.global_batch_size; names of one or two letters match too many
        alike = [k for k in elsewhere if len(name) > 2 and name in k.rpartition(".")[2]]
        if not alike and (match := nearest(name, [k.rpartition(".")[2] for k in elsewhere], cutoff=0.75)):
            alike = [k for k in elsewhere if k.rpartition(".")[2] == match]
        hint = f" - did you mean {' or '.join(alike[:3])}?" if alike else ""
    has = f"has: {', '.join(siblings)}" if siblings else "is empty"
    return f"{key}: no such key{hint} ({prefix or 'the config'} {has})"


def fits(value: Any, hint: Any, exact: bool = False) -> tuple[bool, Any]:
    """Return (True if a plain value has the type `hint`, the value converted to it).

    exact=False: 1e5 is an integer and 7 a text, because yaml reads them as float and int. NaN is the option "nan",
    because Hydra reads this word so.
    """
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return next((found for m in args if (found := fits(value, m, exact))[0]), (False, None))
    if origin is Literal:
        value = "nan" if isinstance(value, float) and math.isnan(value) else value
        return any(value == word and type(value) is type(word) for word in args), value
    if is_dataclass(hint) or (origin or hint) in (dict, Mapping):
        return isinstance(value, Mapping), value
    if (origin or hint) in (list, tuple, Sequence):
        return _fits_items(value, origin or hint, args, exact)
    if isinstance(value, bool) or hint is bool:
        return isinstance(value, bool) and hint is bool, value
    if hint is int:
        whole = isinstance(value, int) or (not exact and isinstance(value, float) and value.is_integer())
        return whole, int(value) if whole else None
    if hint is float:
        number = isinstance(value, (int, float)) and (exact or math.isfinite(value))
        return number, float(value) if number else None
    if hint is str:
        return isinstance(value, str) or (not exact and isinstance(value, int)), str(value)
    return hint is Any or isinstance(value, hint), value


def _fits_items(value: Any, kind: Any, args: tuple[Any, ...], exact: bool) -> tuple[bool, Any]:
    if not isinstance(value, (list, tuple)):
        return False, None
    fixed = kind is tuple and args and args[-1] is not Ellipsis
    hints = args if fixed else (args[0] if args else Any,) * len(value)
    if len(hints) != len(value):
        return False, None
    items = [fits(item, hint, exact) for item, hint in zip(value, hints, strict=True)]
    return all(good for good, _ in items), [out for _, out in items]


def holds(value: Any, hint: Any) -> bool:
    """Return True if a value of a file written by a program has the type `hint`, including its items. Nothing is
    converted. Integers must be from 0 to 2**63 - 1, numbers finite."""
    origin, args = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(holds(value, member) for member in args)
    if origin is dict:
        return isinstance(value, dict) and all(holds(k, args[0]) and holds(v, args[1]) for k, v in value.items())
    if origin is list:
        return isinstance(value, (list, tuple)) and all(holds(item, args[0]) for item in value)
    if origin is tuple:
        same = isinstance(value, (list, tuple)) and len(value) == len(args)
        return same and all(map(holds, value, args))
    if hint in (int, float):
        whole = isinstance(value, int) and not isinstance(value, bool)
        number = hint is float and isinstance(value, float) and math.isfinite(value)
        return number or (whole and 0 <= value < 1 << 63)
    return hint is Any or isinstance(value, hint)


def misfits(content: Mapping[str, Any], kinds: Mapping[str, Any]) -> list[str]:
    """Return the names whose values have another type. kinds: {name: type}; other names, and missing ones, are
    ignored."""
    return [name for name, kind in kinds.items() if name in content and not holds(content[name], kind)]


def describe(hint: Any, words: Sequence[str] = ()) -> str:
    """Return a type in words, for messages. words: the allowed texts."""
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        rules = [rule for mark in args[1:] if (rule := rule_of(mark)) is not None]
        if any(rule.point for rule in rules):
            return POINT + (" or null" if type(None) in get_args(args[0]) else "")
        limits = " and".join(f" {sign} {limit:g}" for rule in rules for sign, limit, _ in rule.limits())
        return describe(args[0], words) + limits + "".join(_says(rule) for rule in rules)
    if origin in (Union, types.UnionType):
        return " or ".join(describe(member, words) for member in args)
    if origin is Literal:
        return str(args[0]) if len(args) == 1 else f"one of {', '.join(map(str, args))}"
    if is_dataclass(hint) or (origin or hint) in (dict, Mapping):
        return "a mapping"
    if (origin or hint) in (list, tuple, Sequence):
        if kind := [a for a in args if a is not Ellipsis]:
            size = f" of {len(kind)}" if origin is tuple and len(kind) == len(args) else ""
            return f"a list{size}, each item {describe(kind[0])}"
        return "a list"
    if hint is str and words:
        return words[0] if len(words) == 1 else f"one of {', '.join(words)}"
    return _WORDS.get(origin or hint, getattr(hint, "__name__", str(hint)))


def _value(value: Any, hint: Any, key: str, moved: Mapping[str, str], root: Mapping[str, Any]) -> Any:
    rule = Rule()
    if get_origin(hint) is Annotated:
        hint, rule = get_args(hint)
    if value == MISSING:
        raise ConfigError(f"{key}: is missing (???) - set {key}=...")
    good, out = fits(value, hint)
    closed = rule.words and (not good or isinstance(out, str)) and out not in rule.words
    if closed and (len(rule.words) > 1 and isinstance(value, str)):
        # a field may also be true or false
        options = (*(("true", "false") if bool in (hint, *get_args(hint)) else ()), *rule.words)
        near = did_you_mean(str(value), options)
        raise ConfigError(f"{key}: no option {show(value)}{near} (options: {', '.join(options)}){_says(rule)}")
    if closed or not good:
        wanted = INTERVAL if rule.interval else DURATION if rule.duration else describe(hint, rule.words)
        raise ConfigError(f"{key}: expected {wanted}, got {show(value)}{_says(rule)}")
    for member in get_args(hint) if get_origin(hint) in (Union, types.UnionType) else (hint,):
        if is_dataclass(member) and out is not None:
            return typed(member, value, key, moved, root)  # type: ignore[arg-type]
    if isinstance(out, str) and rule.interval:
        check_interval(out, key)
    if isinstance(out, str) and rule.duration:
        seconds(out, key)
    check_limits(out, Annotated[hint, rule], key)
    return out


def check_limits(value: Any, hint: Any, key: str) -> None:
    """Raise ConfigError if a number, also in a list, violates the Rules in the annotation `hint`."""
    if get_origin(hint) is Annotated:
        hint, *marks = get_args(hint)
        for mark in marks:
            if (rule := rule_of(mark)) is not None:
                _check_number(value, rule, key)
    if get_origin(hint) in (Union, types.UnionType):
        for member in get_args(hint):
            check_limits(value, member, key)
    elif get_args(hint) and isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            members = [arg for arg in get_args(hint) if arg is not Ellipsis]
            check_limits(item, members[min(index, len(members) - 1)], f"{key}[{index}]")


def _check_number(value: Any, rule: Rule, key: str) -> None:
    if rule.point and isinstance(value, str):
        parse_point(value, key)
    if not isinstance(value, (int, float)) or isinstance(value, bool):
        return
    for sign, limit, holds in rule.limits():
        if not holds(value, limit):
            shown = f"{limit:,}" if isinstance(limit, int) else f"{limit:g}"
            raise ConfigError(f"{key}: must be {sign} {shown}, got {show(value)}{_says(rule)}")
    if rule.limits() and not math.isfinite(value):
        raise ConfigError(f"{key}: must be finite, got {show(value)}")


def _says(rule: Rule) -> str:
    return f"; {rule.hint}" if rule.hint else ""


def check_interval(text: str, key: str) -> float:
    """Return the epochs of an interval: '0.5ep' -> 0.5. Raise ConfigError if it is invalid."""
    try:
        epochs = float(text[:-2]) if text.endswith("ep") else math.nan
    except ValueError:
        epochs = math.nan
    if not (math.isfinite(epochs) and epochs > 0):
        raise ConfigError(f"{key}: expected {INTERVAL}, got {show(text)}")
    return epochs


def parse_point(value: float | str, key: str = "point") -> tuple[float, str]:
    """Return (number, unit) of a point in training: 0.5 -> (0.5, ""), a share of all steps; '10ep' -> (10.0, "ep");
    '500st' -> (500.0, "st"). Raise ConfigError if a text is invalid."""
    if not isinstance(value, str):
        return value, ""
    try:
        number, unit = float(value[:-2]), value[-2:]
    except ValueError:
        number, unit = math.nan, ""
    if not (math.isfinite(number) and number > 0) or unit not in ("ep", "st") or (unit == "st" and number % 1):
        raise ConfigError(f"{key}: expected {POINT}, got {show(value)}")
    return number, unit


def seconds(value: float | str | None, key: str = "duration") -> float | None:
    """Return seconds: 90 -> 90, '1.5h' -> 5400.0; None (no limit) -> None. Raise ConfigError if it is invalid."""
    if not isinstance(value, str):
        return value
    try:
        found = float(value[:-1]) * {"s": 1, "m": 60, "h": 3600, "d": 86400}[value[-1:]]
    except (KeyError, ValueError):
        found = math.nan
    if not (math.isfinite(found) and found > 0):
        raise ConfigError(f"{key}: expected {DURATION}, got {show(value)}")
    return found


def parse_interval(value: int | str | None, steps_per_epoch: float, key: str = "interval") -> float | None:
    """Return an interval in optimizer steps, at least 1; None: never. value: steps, or epochs (1ep, 0.5ep), which may
    be a fractional number of steps."""
    if value is None or isinstance(value, int):
        return value
    return max(1, check_interval(value, key) * steps_per_epoch)


def passed(step: int, every: float) -> int:
    """Return how many intervals have ended by this step. The k-th interval ends at step k * every, rounded."""
    count = int((step + 1) // every)
    return count - (round(count * every) > step)
