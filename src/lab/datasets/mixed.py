"""Several training sets in one step, each with its own share of every batch, its own order and its own transforms.

    rows             0 ... 39 | 40 ... 1336              the parts' rows, one part behind the other
    sample number    0 1 2 3 4 5 6 7 | 8 9 ...           which part a sample is from follows from its number and the
    part (1 : 3)     b a b b b a b b | b a ...           weights alone: any ranks and micro-batches have even shares
    row of the part  each part goes through its own order, data.parts.<name>.order, as if it were alone

A batch has the field `set`, (B,) int64: the number of the part, in the config's order. A field that a part lacks is
-1 there, a label that is none; in unsigned integers it is their largest value, in floats 0, in booleans False.
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
    """A data set whose rows are those of its parts.

    parts: {name: a node as `data` itself, with order and transforms of its own}; its loader is this one's. weights:
    {name: a number, or a list of [from this sample number on, a number]}, of the parts of the training split. splits:
    {split: all, for the parts that have it, or a list of names, or null}.
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
        self._of = [list(parts).index(name) for name in self.names]  # the numbers in `set`
        self.starts = np.cumsum([0, *map(len, self.parts.values())])
        self.specs = {name: _spec(name, part) for name, part in self.parts.items()}
        self.fields = _together(self.specs)
        self.class_names = _classes(self.parts)
        if all(hasattr(part, "gather") for part in self.parts.values()):  # else the loader takes sample by sample
            self.spec, self.gather = self.fields, self._gather
            self.nbytes = sum(getattr(part, "nbytes", _bytes(self.specs[n]) * len(part)) for n, part in self._items())
        if all(hasattr(part, "advise") for part in self.parts.values()):
            self.advise = self._advise
            for kept in ("ahead_bytes", "kept_bytes"):  # of what is remote
                setattr(self, kept, max(getattr(part, kept, 0) for part in self.parts.values()))

    def __len__(self) -> int:
        return int(self.starts[-1])

    def part_of(self, rows: np.ndarray) -> np.ndarray:
        """(B,) int64 rows -> (B,) which of `names`."""
        return np.searchsorted(self.starts, rows, side="right") - 1

    def _items(self) -> Iterator[tuple[str, Any]]:
        return iter(self.parts.items())

    def _places(self, rows: np.ndarray) -> Iterator[tuple[int, str, np.ndarray, np.ndarray]]:
        """(which part, its name, its own rows, their places in the batch) for each that has some of the rows."""
        if len(rows) and not 0 <= rows.min() <= rows.max() < len(self):
            raise IndexError(f"rows {rows.min()} to {rows.max()} of a split of {len(self)}")
        of = self.part_of(rows)
        for k in np.unique(of).tolist():
            at = np.flatnonzero(of == k)
            yield k, self.names[k], rows[at] - self.starts[k], at

    def _gather(self, rows: np.ndarray, out: dict[str, Tensor] | None = None) -> dict[str, Tensor]:
        """Each part's own `gather`, into the places of its samples."""
        if out is None:
            out = {f: torch.empty((len(rows), *shape), dtype=dtype) for f, (shape, dtype) in self.fields.items()}
        out = {field: out[field][: len(rows)] for field in self.fields}
        arrays = {field: values.numpy() for field, values in out.items()}  # torch's threads would hang after a fork
        for k, name, local, at in self._places(rows):
            part, spec = self.parts[name], self.specs[name]
            of_part = {field: out[field] for field in spec}
            if len(at) == len(rows):
                part.gather(local, of_part)
            elif hasattr(part, "gather_at"):
                part.gather_at(local, of_part, at)
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
        """One line a field of each part: in which way it is read, and why."""
        return [f"{name}: {line}" for name, p in self._items() if hasattr(p, "describe") for line in p.describe()]

    def batch_transform(self, training: bool, prepared: Callable[[Any], Any]) -> PartTransforms | None:
        """The parts' own transforms, each for the rows of its part alone. prepared: compiles one, where asked for."""
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
    """The order of data=mixed: of each part its share of any batch, and each part in its own order."""
    if not isinstance(dataset, Mixed):
        raise ConfigError("data.order: mixture is of the parts of data=mixed - use samebits.data.order.shuffled")
    stages = stages_of(dataset.weights, dataset.names)
    orders = []
    for name, part in dataset.parts.items():
        key, node = f"data.parts.{name}.order", dataset.nodes[name]["order"]
        with about_part(name), constructing(PROJECT, key, node):
            # by name: another part beside it leaves a part's order as it is
            order = construct(PROJECT, key, node)(part, seed=(seed + zlib.crc32(name.encode())) % 2**32)
        if hasattr(order, "state_dict"):
            raise ConfigError(f"{key}: an order with a state cannot be mixed - choose another")
        if getattr(order, "padded", False):
            raise ConfigError(f"{key}: drop_last=false pads batches, and those are of all parts - leave it true")
        orders.append(order)
    return MixtureOrder(stages, orders, dataset.starts)


def _names(parts: Mapping[str, Any], splits: Mapping[str, Any], split: str) -> list[str]:
    """The parts of which a split consists, in the config's order."""
    asked, key = splits[split], f"data.splits.{split}"
    given = {name: node.get("splits") for name, node in parts.items()}
    have = [
        name for name, one in given.items() if not one or not isinstance(one, Mapping) or one.get(split) is not None
    ]
    if asked == "all":
        if lacking := [name for name in parts if name not in have and split == "train"]:
            raise ConfigError(f"data.parts.{lacking[0]}.splits.train: null, but {key}=all - name the others there")
        if not have:
            raise ConfigError(f"{key}=all: no part has a split {split!r} - set it to null")
        return have
    for name in asked if isinstance(asked, list) else [asked]:
        if name not in parts:
            raise ConfigError(
                f"{key}={asked}: there is no part {name!r}, only {', '.join(parts)}; or give all, or null"
            )
        if name not in have:
            raise ConfigError(f"data.parts.{name}.splits.{split}: null or missing, but {key} names this part")
    if not isinstance(asked, list) or not asked:
        raise ConfigError(f"{key}={asked}: give a list of parts ({', '.join(parts)}), all, or null")
    return [name for name in parts if name in asked]


def _built(name: str, node: Mapping[str, Any], split: str) -> Any:
    key = f"data.parts.{name}"
    inner = {k: v for k, v in node.items() if k not in OWN_KEYS["data"]}
    with about_part(name):
        part = construct(PROJECT, key, inner, object, split=split)
        if is_stream(part) or hasattr(part, "collate"):
            kind = "a stream" if is_stream(part) else "put together by its own collate"
            raise ConfigError(
                f"{key}: {type(part).__name__} is {kind}, which cannot be mixed: its samples have no rows"
            )
        check_indexed(part)
        if not len(part):
            raise ConfigError(f"{key}: its split {split!r} holds no samples - check its path and splits")
    return part


def _spec(name: str, part: Any) -> Spec:
    """Of a part's own fields, {field: (shape of a sample, dtype)}."""
    if hasattr(part, "gather"):
        spec = dict(part.spec)
    else:
        tensors = {field: torch.as_tensor(value) for field, value in part[0].items()}
        spec = {field: (tuple(value.shape), value.dtype) for field, value in tensors.items()}
    for field, (shape, _) in spec.items():
        if -1 in shape:
            raise ConfigError(
                f"data.parts.{name}.fields.{field}: its samples vary in length, which "
                "cannot be mixed - leave it out (null)"
            )
        if field == SET:
            raise ConfigError(f"data.parts.{name}.fields.{SET}: the batch has this field already - choose another name")
    return spec


def _together(specs: Mapping[str, Spec]) -> Spec:
    fields: Spec = {}
    home: dict[str, str] = {}
    for name, spec in specs.items():
        for field, kind in spec.items():
            if fields.setdefault(field, kind) != kind:
                one, other = (described(*one) for one in (kind, fields[field]))
                raise ConfigError(
                    f"data.parts.{name}.fields.{field}: {one}, but {other} in data.parts.{home[field]} - one "
                    "batch holds both, so make the files alike, or leave the field out of one (null)"
                )
            home.setdefault(field, name)
    return {**fields, SET: ((), torch.int64)}


def _classes(parts: Mapping[str, Any]) -> dict[str, list[str]]:
    first: dict[str, tuple[str, list[str]]] = {}
    for name, part in parts.items():
        for field, classes in (getattr(part, "class_names", None) or {}).items():
            home, known = first.setdefault(field, (name, classes))
            if list(known) != list(classes):
                raise ConfigError(
                    f"data.parts.{name}.fields.{field}: its classes are {', '.join(classes[:4])}, ..., and those of "
                    f"data.parts.{home} are {', '.join(known[:4])}, ...: one number would mean two things"
                )
    return {field: classes for field, (_, classes) in first.items()}


def _bytes(spec: Spec) -> int:
    return sum(int(np.prod(shape)) * dtype.itemsize for shape, dtype in spec.values())


@contextmanager
def about_part(name: str) -> Iterator[None]:
    """In this block a mistake names the part's key: its class knows only of `data`."""
    try:
        yield
    except ConfigError as error:
        text = re.sub(r"(?<![\w./-])data(?=: |\.(?!parts\.)[a-z])", f"data.parts.{name}", str(error))
        raise ConfigError(text) from error
