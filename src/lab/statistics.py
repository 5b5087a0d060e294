"""Compute `mean: auto` and `std: auto` of lab.transforms.fields.Normalize from the rows of the training split.

A run computes them once, before its first step, and writes them to statistics.json in its directory. A resume, an
evaluation and a prediction read them from this file, so all use the same bits. They are the statistics of the field
after the transforms before Normalize, without random ones. NaN are ignored.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import takewhile
from pathlib import Path
from typing import Any

import numpy as np
import torch
from omegaconf import DictConfig, open_dict
from torch import Tensor

from lab.config import Config
from lab.groups import mixed_parts
from lab.loaders import make_transform, sample_seed
from lab.project import PROJECT
from lab.transforms.fields import AUTO, Batch, Normalize, Transform
from samebits.children import note_progress
from samebits.data import Loader, Stream
from samebits.errors import ConfigError, CorruptFileError
from samebits.files import read_json, write_json
from samebits.targets import locate
from samebits.world import World

FILE = "statistics.json"
# the rows are divided into this number of parts for any number of ranks, so that the sums have equal bits
SEGMENTS = 64
CHUNK = 1 << 18  # values of a batch; small enough for a core's cache as float64
SOME_ROWS = 256  # enough rows for measurements of time and memory, which do not depend on the values
EMPTY = (0.0, 0.0, 0.0, math.inf, -math.inf)  # count, mean, sum of squared deviations, lowest, highest


def with_statistics(
    config: Config, dataset: Any, world: World, directory: Path | None = None, is_new: bool = True,
    say: Callable[[str], object] = lambda line: None, max_rows: int | None = None,
) -> Config:  # fmt: skip
    """Return the config with numbers in place of auto. All ranks call this, and share the work.

    dataset: the training set. directory: the run directory; None: write no file. is_new: False to read the values in
    `directory`. say: function that logs a line. max_rows: number of rows to read from the first one on; None: all."""
    for name, node in mixed_parts(config.values["data"]).items():
        for other in entries_with_auto(node):
            raise ConfigError(
                f"data.parts.{name}.transforms.{other}: auto works only in data.transforms, which get the samples of "
                "all parts - give numbers"
            )
    statistics: dict[str, Any] = {}
    for name in entries_with_auto(config.values["data"]):
        if is_new:
            statistics[name], line = _compute(config, name, dataset, world, max_rows)
            say(line)
        else:
            assert directory is not None
            statistics[name] = _read(directory, name)
        config = Config.of(_filled(config.given, {name: statistics[name]}))
    if statistics and is_new and directory is not None and world.is_main:
        write_json(directory / FILE, {f"data.transforms.{name}": values for name, values in statistics.items()})
    return config


def with_stored(cfg: DictConfig, directory: Path) -> DictConfig:
    """Return the config of a run with its values of statistics.json in place of auto.

    Raise ConfigError if they are missing."""
    return _filled(cfg, {name: _read(directory, name) for name in entries_with_auto(cfg.data)})


def entries_with_auto(data: Any) -> list[str]:
    """Return the names of the entries of data.transforms whose mean or std is auto. data: the group, or a part."""
    nodes = data.get("transforms") or {}
    found = {name: node for name, node in nodes.items() if AUTO in (node.get("mean"), node.get("std"))}
    kinds = {name: locate(PROJECT, node["_target_"], f"data.transforms.{name}") for name, node in found.items()}
    return [name for name, kind in kinds.items() if isinstance(kind, type) and issubclass(kind, Normalize)]


def _filled(cfg: DictConfig, statistics: dict[str, Any]) -> DictConfig:
    """Return a copy of the config with the numbers. statistics: {name of a transform: its entry in statistics.json}."""
    cfg = cfg.copy()
    for name, values in statistics.items():
        node = cfg.data.transforms[name]
        with open_dict(node):
            for key in ("mean", "std"):
                numbers = values[key] if node[key] == AUTO else list(node[key])
                node[key] = numbers * len(values["mean"]) if len(numbers) == 1 else numbers
            node.dim = values["dim"]
    return cfg


def _read(directory: Path, name: str) -> Any:
    key = f"data.transforms.{name}"
    values = read_json(directory / FILE).get(key)
    if values is None:
        raise ConfigError(
            f"{key}.mean, {key}.std: auto, but {directory / FILE} does not have the values of this transform, "
            "which a run computes when it begins - copy the file from the original run, or give numbers"
        )
    lists = [values.get("mean"), values.get("std")] if isinstance(values, dict) else [None]
    if not all(isinstance(numbers, list) and numbers and {*map(type, numbers)} <= {int, float} for numbers in lists):
        raise CorruptFileError(f"{directory / FILE}: damaged, {key} needs lists of numbers as mean and std")
    return values


def _loader(
    config: Config, dataset: Any, rows: Callable[[int], np.ndarray | None], transform: Transform | None
) -> Loader:
    """Return a loader of CPU batches that keeps no copy of the data set. rows: k -> rows of batch k; None: no more."""

    def plan(k: int) -> tuple[np.ndarray, np.ndarray] | None:
        found = rows(k)
        return None if found is None else (found, found)

    kind = "threads" if hasattr(dataset, "gather") and hasattr(dataset, "spec") else config.data.loader
    workers, seed = config.data.num_workers, sample_seed(config, "train")
    return Loader(dataset, plan, torch.device("cpu"), transform, kind, workers, seed=seed, split="train")


def _batch_size(dataset: Any) -> int:
    """Return the number of rows to read together, which depends only on the shapes of the data."""
    spec = getattr(dataset, "spec", None)
    if spec is None:
        return 32
    values = sum(math.prod(max(1, side) for side in shape) for shape, _ in spec.values())
    return max(1, min(CHUNK // max(1, values), 1 << 14))


def _compute(config: Config, name: str, dataset: Any, world: World, max_rows: int | None) -> tuple[dict[str, Any], str]:
    """Return (entry of statistics.json, line for the log) of a transform."""
    key, nodes = f"data.transforms.{name}", config.data.transforms
    field = nodes[name]["field"]
    if isinstance(dataset, Stream):
        raise ConfigError(f"{key}: auto needs the rows of the training split, but a stream has none - give numbers")
    if not isinstance(field, str):
        raise ConfigError(
            f"{key}.field={list(field)}: auto computes the mean and std of one field - add a transform for each field"
        )
    before = dict(takewhile(lambda item: item[0] != name, nodes.items()))
    hardware = replace(config.hardware, compile=False, channels_last=False)
    upstream = replace(config, data=replace(config.data, transforms=before), hardware=hardware)
    transform = make_transform(upstream, False, dataset)
    size = len(dataset) if max_rows is None else min(max_rows, len(dataset))
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # batches are small
    try:
        table, shape, dim = _summed(config, name, field, dataset, world, size, transform)
    finally:
        torch.set_num_threads(threads)
    total = table[0]
    for segment in table[1:]:
        total = _merged(total, segment)
    count, mean, squares, low, high = total
    std = np.sqrt(squares / np.maximum(count, 1))
    flat = (count == 0) | (low == high) | (std < torch.finfo(torch.float32).tiny)
    std[flat] = 1
    values = {"field": field, "dim": 1 if dim is None else dim}
    for kind, computed in (("mean", mean), ("std", std)):  # the numbers that are used
        numbers = computed.tolist() if nodes[name][kind] == AUTO else list(nodes[name][kind])
        values[kind] = numbers * len(mean) if len(numbers) == 1 else numbers
    return values, _line(name, field, shape, dim, size, values, nodes[name], flat)


def _summed(
    config: Config, name: str, field: str, dataset: Any, world: World, size: int, transform: Transform | None
) -> tuple[np.ndarray, tuple[int, ...], int | None]:
    """Return (moments of each segment (SEGMENTS, 5, C), shape of a batch, dimension of the columns), on all ranks."""
    key, step = f"data.transforms.{name}", _batch_size(dataset)
    bounds = [size * k // SEGMENTS for k in range(SEGMENTS + 1)]
    own = range(world.rank, SEGMENTS, world.size)
    places = [(k, begin) for k in own for begin in range(bounds[k], bounds[k + 1], step)]

    def rows(number: int) -> np.ndarray | None:
        if not 0 < number <= len(places):
            # for the shape; as long as the longest one, because a first batch must be
            return None if number else np.resize(np.arange(min(size, step)), step)
        k, begin = places[number - 1]
        return np.arange(begin, min(begin + step, bounds[k + 1]), dtype=np.int64)

    with _loader(config, dataset, rows, transform) as loader:
        batches = iter(loader)
        x = _field(key, field, next(batches))
        shape = tuple(x.shape)
        dim = _dim(
            key, field, config.data.transforms[name].get("dim", AUTO), x, getattr(dataset, "spec", {}).get(field)
        )
        columns = _columns(x, dim).shape[1]
        table = np.zeros((SEGMENTS, len(EMPTY), columns))
        table[own] = np.array(EMPTY)[:, None]
        for (k, _), batch in zip(places, batches):
            note_progress()
            x = _field(key, field, batch)
            if tuple(x.shape[1:]) != shape[1:] or f"{field}_length" in batch:
                raise ConfigError(
                    f"{key}: the samples of {field} differ in length, and auto would include padding - give numbers"
                )
            for part in x.split(max(1, CHUNK // max(1, x[:1].numel()))):
                table[k] = _merged(table[k], _moments(key, field, _columns(part, dim)))
    # one rank has the values of a segment and the others have 0, so the sum is exact
    total = torch.from_numpy(table)
    total = total if world.size == 1 else world.all_reduce_sum(total.to(world.device)).cpu()  # mps has no float64
    return total.numpy(), shape, dim


def _field(key: str, field: str, batch: Batch) -> Tensor:
    x = batch.get(field)
    if not isinstance(x, Tensor):
        raise ConfigError(f"{key}.field={field!r}: the batch has {sorted(batch)}")
    if not x.is_floating_point():
        raise ConfigError(f"{key}: Normalize got {x.dtype}; put ToFloat before it")
    return x


def _dim(key: str, field: str, given: Any, x: Tensor, raw: Any) -> int | None:
    """Return the dimension of a batch with the columns or channels; None: one mean and std for all values."""
    shape, pixels = tuple(x.shape[1:]), raw is None or raw[1] in (torch.uint8, torch.uint16)
    if given != AUTO:
        if given is not None and not (-len(shape) <= given < 0 or 0 < given <= max(1, len(shape))):
            batch = f"(B, {', '.join(map(str, shape))})"
            raise ConfigError(f"{key}.dim={given}: {field} has the shape {batch} - give another dimension, or null")
        return given  # type: ignore[no-any-return]
    if len(shape) == 2 and raw is not None and pixels:
        return None  # (H, W)
    last = len(shape) > 2 and pixels and shape[-1] <= 4 < shape[0]
    return -1 if last else 1


def _columns(x: Tensor, dim: int | None) -> np.ndarray:
    """Return the values as float64: (N, C), or (N, C, M) if `dim` is not the last dimension."""
    values = x.contiguous().numpy().astype(np.float64)
    if dim is None or values.ndim == 1:
        return values.reshape(-1, 1)
    before, columns, after = np.split(values.shape, [dim % values.ndim, dim % values.ndim + 1])
    return values.reshape(before.prod(), *columns, *([after.prod()] if len(after) else []))


def _moments(key: str, field: str, x: np.ndarray) -> np.ndarray:
    """Return the rows of EMPTY for each column, (5, C). x: (N, C) or (N, C, M). Raise ConfigError if a value is
    infinite."""
    missing = np.isnan(x)
    some, axes = bool(missing.any()), (0, 2)[: x.ndim - 1]
    count = x.size // x.shape[1] - missing.sum(axes)
    low = (np.where(missing, np.inf, x) if some else x).min(axes)
    high = (np.where(missing, -np.inf, x) if some else x).max(axes)
    if (wrong := (np.isinf(low) | np.isinf(high)) & (count > 0)).any():
        raise ConfigError(
            f"{key}: {field} contains inf in column {int(np.flatnonzero(wrong)[0])}, so it has no mean - correct "
            "the data, or give numbers"
        )

    def away(center: np.ndarray) -> np.ndarray:
        out = x - (center if x.ndim == 2 else center[:, None])
        if some:
            out[missing] = 0
        return out

    # from the lowest value, so that a constant column has exactly its value as the mean
    base = np.where(count > 0, low, 0)
    mean = base + away(base).sum(axes) / np.maximum(count, 1)
    off = away(mean)
    return np.stack([count, mean, np.square(off, out=off).sum(axes), low, high])


def _merged(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Return the moments of the values of both (Chan, Golub and LeVeque 1979). a, b: (5, C)."""
    count, off = a[0] + b[0], b[1] - a[1]
    share = b[0] / np.maximum(count, 1)
    mean = np.where(a[0] > 0, a[1] + off * share, b[1])
    squares = a[2] + b[2] + np.square(off) * a[0] * share
    return np.stack([count, mean, squares, np.minimum(a[3], b[3]), np.maximum(a[4], b[4])])


def _line(
    name: str, field: str, shape: tuple[int, ...], dim: int | None, size: int, values: Any, node: Any, flat: np.ndarray
) -> str:
    """Return the line for the log, with the numbers that are used."""
    mean, std = (", ".join(f"{v:.4g}" for v in values[k][:4]) + ", ..." * (len(values[k]) > 4) for k in ("mean", "std"))
    unit, count = "column" if len(shape) == 2 else "channel", len(flat)
    where = f"one per {unit} ({count})" if dim is not None and len(shape) > 1 else "for all values"
    if len(shape) > 2 and dim is not None:
        where += f", dimension {dim} of (B, {', '.join(map(str, shape[1:]))})"
    kinds = [kind for kind in ("mean", "std") if node[kind] == AUTO]
    which = "auto" if len(kinds) == 2 else f"{kinds[0]}=auto"
    line = (
        f"data.transforms.{name}: mean [{mean}] and std [{std}] of {field}, {where}; {which}: from {size:,} training "
        "rows"
    )
    if flat.any() and "std" in kinds:
        named = ", ".join(map(str, np.flatnonzero(flat)[:4].tolist())) + ", ..." * (int(flat.sum()) > 4)
        line += f"; {int(flat.sum())} constant or without values, so their std is 1: {named}"
    return line
