"""Mix several data sets (parts): each has its own share of every batch, its own order and its own transforms.

    rows             0 ... 39 | 40 ... 1336        the rows of part a, then the rows of part b
    sample id        0 1 2 3 4 5 6 7 | 8 9 ...     position in the order of the run
    part (1 : 3)     b a b b b a b b | b a ...     depends only on the sample id and the weights, so every rank and
                                                   micro-batch has the same shares
    row of the part  each part uses its own order, data.parts.<name>.order, as if it were the only data set

A batch has the field `set`, (B,) int64: the index of the part, in the order of the config. If a part lacks a field, its
samples have -1 there (not a valid label), in unsigned integers the largest value, in floats 0, in booleans False.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from lab.config import OWN_KEYS
from lab.datasets.mixture import MixtureOrder, stages_of
from lab.project import PROJECT
from lab.transforms.parts import PartTransforms, filling
from lab.transforms.spec import described
from samebits.data import check_indexed, is_stream
from samebits.errors import ConfigError
from samebits.targets import construct, constructing

SET = "set"
Spec = dict[str, tuple[tuple[int, ...], torch.dtype]]


class Mixed:
    """A data set that concatenates the rows of its parts.

    parts: {name: a config like `data`, with its own order and transforms}; loader options of `data` apply to all parts.
    weights: {name: number, or a list of [first sample id, number]} for the parts of the training split. splits: {split:
    "all" (all parts that have the split), a list of names, or null}.
    """

    takes_remote = True

    def __init__(
        self,
        parts: Mapping[str, Mapping[str, Any]],
        weights: Mapping[str, Any],
        splits: Mapping[str, Sequence[str] | Literal["all"] | None],
        split: str,
    ) -> None:
        self.nodes, self.weights = parts, weights
        self.names = _names(parts, splits, split)
        self.parts = {name: _built(name, parts[name], split) for name in self.names}
        self._of = [list(parts).index(name) for name in self.names]  # values of `set`
        self.starts = np.cumsum([0, *map(len, self.parts.values())])
        self.specs = {name: _spec(name, part) for name, part in self.parts.items()}
        self.fields = _together(self.specs)
        self.class_names = _classes(self.parts)
        if all(hasattr(part, "gather") for part in self.parts.values()):  # otherwise the loader reads single samples
            self.spec, self.gather = self.fields, self._gather
            self.nbytes = sum(
                getattr(part, "nbytes", _bytes(self.specs[n]) * len(part)) for n, part in self.parts.items()
            )
        if all(hasattr(part, "advise") for part in self.parts.values()):
            self.advise = self._advise
            for kept in ("ahead_bytes", "kept_bytes"):  # of remote files
                setattr(self, kept, max(getattr(part, kept, 0) for part in self.parts.values()))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part_of(self, rows: np.ndarray) -> np.ndarray:
        """Return the index of the part in self.names for each row, (B,) int64 -> (B,)."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def shared_rows(self, other: Mixed) -> int:
        """Return how many rows of the parts are also rows of the parts of the other split, if their data sets of one
        type have a method `shared_rows`. If a part shares rows with several parts, only the largest number counts."""
        return sum(
            max((part.shared_rows(theirs) for theirs in other.parts.values() if type(theirs) is type(part)), default=0)
            for part in self.parts.values()
            if hasattr(part, "shared_rows")
        )

    def _places(self, rows: np.ndarray) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
        """Yield (index, name, row in the part, positions in the batch) for each part that contains some of the rows."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a split of {len(self)}")
        of = self.part_of(rows)
        for k in np.unique(of).tolist():
            at = np.flatnonzero(of == k)
            yield k, self.names[k], rows[at] - self.starts[k], at

    def _gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Read the rows of each part with its own `gather`, into their positions in the batch."""
        if out is None:
            out = {f: torch.empty((len(rows), *shape), dtype=dtype) for f, (shape, dtype) in self.fields.items()}
        out = {field: out[field][: len(rows)] for field in self.fields}
        arrays = {field: values.numpy() for field, values in out.items()}  # torch's threads hang in a forked worker
        for k, name, local, at in self._places(rows):
            part, spec = self.parts[name], self.specs[name]
            if hasattr(part, "gather_at"):
                part.gather_at(local, {field: out[field] for field in spec}, at)
            else:
                for field, values in part.gather(local, None).items():
                    arrays[field][at] = values.numpy()
            arrays[SET][at] = self._of[k]
            for field in self.fields.keys() - spec.keys() - {SET}:
                arrays[field][at] = filling(self.fields[field][1])
        return out

    def __getitem__(self, i: int) -> dict[str, Any]:
        row = range(len(self))[i]
        k = int(self.part_of(np.asarray([row]))[0])
        name = self.names[k]
        sample = self.parts[name][row - int(self.starts[k])]
        if not isinstance(sample, Mapping):
            raise ConfigError(f"data.parts.{name}: __getitem__ returned a {type(sample).__name__}; return a dict")
        missing = {field: self.fields[field] for field in self.fields.keys() - self.specs[name].keys() - {SET}}
        filled = {f: torch.full(shape, filling(dtype), dtype=dtype) for f, (shape, dtype) in missing.items()}
        return {**sample, **filled, SET: self._of[k]}

    def _advise(self, rows: np.ndarray) -> None:
        for _, name, local, _ in self._places(rows):
            self.parts[name].advise(local)

    def describe(self) -> list[str]:
        """Return a line for each field of each part: how it is read, and why."""
        return [f"{name}: {line}" for name, p in self.parts.items() if hasattr(p, "describe") for line in p.describe()]

    def batch_transform(self, training: bool, prepared: Callable[[Any], Any]) -> PartTransforms | None:
        """Return the transforms of the parts as one transform; None if there are none. prepared: compiles a transform
        if requested."""
        built = {
            name: [
                construct(PROJECT, f"data.parts.{name}.transforms.{key}", node)
                for key, node in (self.nodes[name].get("transforms") or {}).items()
            ]
            for name in self.names
        }
        if not any(built.values()):
            return None
        return PartTransforms(self.part_of, {n: list(self.specs[n]) for n in self.names}, built, training, prepared)


def mixture(dataset: Any, seed: int) -> MixtureOrder:
    """Return the order of data=mixed: each batch contains the share of each part, and each part uses its own order.
    Raise ConfigError if an order of a part has a state or pads batches."""
    if not isinstance(dataset, Mixed):
        raise ConfigError("data.order: mixture requires data=mixed - use data/order=shuffled")
    stages = stages_of(dataset.weights, dataset.names)
    orders = []
    for name, part in dataset.parts.items():
        key, node = f"data.parts.{name}.order", dataset.nodes[name]["order"]
        with about_part(name), constructing(PROJECT, key, node):
            # seeded by name, so that adding a part does not change the orders of the others
            order = construct(PROJECT, key, node)(part, seed=(seed + zlib.crc32(name.encode())) % 2**32)
        if hasattr(order, "state_dict"):
            raise ConfigError(f"{key}: an order with a state cannot be used in data=mixed - choose another")
        if getattr(order, "padded", False):
            raise ConfigError(f"{key}: drop_last=false pads batches, but a part cannot be padded - set drop_last=true")
        orders.append(order)
    return MixtureOrder(stages, orders, dataset.starts)


def _names(parts: Mapping[str, Any], splits: Mapping[str, Any], split: str) -> list[str]:
    """Return the names of the parts of a split, in the order of the config."""
    wanted, key = splits[split], f"data.splits.{split}"
    have = []  # names of the parts with this split
    for name, node in parts.items():
        own = node.get("splits")
        if not own or not isinstance(own, Mapping) or own.get(split) is not None:
            have.append(name)
    if wanted == "all":
        if lacking := [name for name in parts if name not in have and split == "train"]:
            raise ConfigError(f"data.parts.{lacking[0]}.splits.train: null, but {key}=all - list the other parts there")
        if not have:
            raise ConfigError(f"{key}=all: no part has a split {split!r} - set it to null")
        return have
    for name in wanted if isinstance(wanted, list) else [wanted]:
        if name not in parts:
            raise ConfigError(
                f"{key}={wanted}: {name!r} is not a part; parts are {', '.join(parts)} - or give all, or null"
            )
        if name not in have:
            raise ConfigError(f"data.parts.{name}.splits.{split}: null or missing, but {key} contains this part")
    if not isinstance(wanted, list) or not wanted:
        raise ConfigError(f"{key}={wanted}: give a list of parts ({', '.join(parts)}), all, or null")
    return [name for name in parts if name in wanted]


def _built(name: str, node: Mapping[str, Any], split: str) -> Any:
    """Build the data set of one part. Raise ConfigError if it cannot be mixed."""
    key = f"data.parts.{name}"
    inner = {k: v for k, v in node.items() if k not in OWN_KEYS["data"]}
    with about_part(name):
        part = construct(PROJECT, key, inner, object, split=split)
        if is_stream(part) or hasattr(part, "collate"):
            kind = "a stream" if is_stream(part) else "collated by its own function"
            raise ConfigError(f"{key}: {type(part).__name__} is {kind}; data=mixed requires a data set with rows")
        check_indexed(part)
        if not len(part):
            raise ConfigError(f"{key}: its split {split!r} is empty - check its path and splits")
    return part


def _spec(name: str, part: Any) -> Spec:
    """Return {field: (shape of a sample, dtype)} of the fields of a part."""
    if hasattr(part, "gather"):
        spec = dict(part.spec)
    else:
        tensors = {field: torch.as_tensor(value) for field, value in part[0].items()}
        spec = {field: (tuple(value.shape), value.dtype) for field, value in tensors.items()}
    for field, (shape, _) in spec.items():
        if -1 in shape:
            raise ConfigError(
                f"data.parts.{name}.fields.{field}: its samples vary in length, which "
                "data=mixed does not support - remove it (null)"
            )
        if field == SET:
            raise ConfigError(
                f"data.parts.{name}.fields.{SET}: data=mixed adds a field of this name - choose another name"
            )
    return spec


def _together(specs: Mapping[str, Spec]) -> Spec:
    """Return the fields of all parts, and `set`. Raise ConfigError if a field has different shapes or dtypes."""
    fields: Spec = {}
    home: dict[str, str] = {}
    for name, spec in specs.items():
        for field, kind in spec.items():
            if fields.setdefault(field, kind) != kind:
                here, there = described(*kind), described(*fields[field])
                raise ConfigError(
                    f"data.parts.{name}.fields.{field}: {here}, but {there} in data.parts.{home[field]} - all "
                    "parts of a batch must agree: change the files, or remove the field from one part (null)"
                )
            home.setdefault(field, name)
    return {**fields, SET: ((), torch.int64)}


def _classes(parts: Mapping[str, Any]) -> dict[str, list[str]]:
    """Return {field: class names}. Raise ConfigError if two parts have different ones."""
    first: dict[str, tuple[str, list[str]]] = {}
    for name, part in parts.items():
        for field, classes in (getattr(part, "class_names", None) or {}).items():
            home, known = first.setdefault(field, (name, classes))
            if list(known) != list(classes):
                raise ConfigError(
                    f"data.parts.{name}.fields.{field}: its classes are {', '.join(classes[:4])}, ..., but those of "
                    f"data.parts.{home} are {', '.join(known[:4])}, ...: the same label would mean two classes"
                )
    return {field: classes for field, (_, classes) in first.items()}


def _bytes(spec: Spec) -> int:
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in spec.values())


@contextmanager
def about_part(name: str) -> Iterator[None]:
    """In this block, replace `data`, which the messages of a data set's class name, by data.parts.<name>."""
    try:
        yield
    except ConfigError as error:
        text = re.sub(r"(?<![\w./-])data(?=: |\.(?!parts\.)[a-z])", f"data.parts.{name}", str(error))
        raise ConfigError(text) from error
