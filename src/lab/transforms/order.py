"""Raise ConfigError for transforms in an order that gives wrong values. Does not import torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from samebits.errors import ConfigError

HERE = "lab.transforms."
AUTO = "auto"
# transforms that use the last two dimensions as height and width
SIZED = [f"{HERE}fields.{name}" for name in ("RandomCrop", "Cutout", "RandomErase")]

Node = Mapping[str, Any]


class Rule(NamedTuple):
    """`first` must not come before `then` on the same field if `wrong` returns True. why: the wrong result."""

    first: Sequence[str]
    then: Sequence[str]
    wrong: Callable[[Node, Node], bool]
    why: str


def _marks_statistics(first: Node, then: Node) -> bool:
    columns = first.get("columns")
    return AUTO in (then.get("mean"), then.get("std")) and isinstance(columns, Sequence) and len(columns) > 0


RULES: list[Rule] = [
    Rule(
        (f"{HERE}missing.FillMissing",), (f"{HERE}fields.Normalize",), _marks_statistics,
        "the filled values would be in the mean and std, and the new columns of 0 and 1 would be normalized",
    ),
    Rule(
        SIZED, (f"{HERE}fields.ChannelsFirst",), lambda first, then: True,
        "the channels would be taken for the width",
    ),
    Rule(
        (f"{HERE}fields.RandomFlip",), (f"{HERE}fields.ChannelsFirst",), lambda first, then: first.get("dim") == -1,
        "dim=-1 would mirror the channels",
    ),
]  # fmt: skip


def check_order(chain: Sequence[tuple[str, Node]]) -> None:
    """Raise ConfigError for the first pair of transforms in a wrong order. chain: (key, node) of each, in order."""
    for k, (key, then) in enumerate(chain):
        for earlier, first in chain[:k]:
            if not {*_fields(first)} & {*_fields(then)}:
                continue
            for rule in RULES:
                pair = first.get("_target_") in rule.first and then.get("_target_") in rule.then
                if pair and rule.wrong(first, then):
                    name, other = (path.rpartition(".")[2] for path in (earlier, key))
                    remedy = f"put {name} after {other} in data/transforms"
                    raise ConfigError(f"{earlier}: is before {key}: {rule.why} - {remedy}")


def _fields(node: Node) -> list[str]:
    return [field for field in items_of(node.get("field")) if isinstance(field, str)]


def items_of(value: Any) -> Sequence[Any]:
    """Return the items of a list, or a list of the value. A user's own class may have a `field` of any type."""
    return value if isinstance(value, Sequence) and not isinstance(value, str) else [value]
