"""One file of torch.save: a tensor, a dict of tensors (of splits, too), or a tuple of them. No code in it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from engine.errors import ConfigError, first_line
from engine.packing.importers.arrays import split_names
from engine.packing.importers.base import SPLIT_NAMES, ArraySource
from engine.packing.importers.values import stamp, to_numpy
from engine.packing.options import PackOptions


def open_torch(path: Path, options: PackOptions) -> ArraySource:
    import torch

    try:
        loaded = torch.load(path, weights_only=True, map_location="cpu", mmap=True)
    except Exception as error:  # torch raises RuntimeError, UnpicklingError, EOFError ...
        if "mmap can only be used" in str(error):
            raise ConfigError(f"{path} is of the format before torch 1.6; load it and save it again") from None
        raise ConfigError(
            f"{path} cannot be read by torch.load(weights_only=True): {first_line(error)}; save plain tensors"
        ) from None
    values = flatten(loaded, path)
    if values and all(name.partition("/")[0].lower() in SPLIT_NAMES and "/" in name for name in values):
        tables: dict[str, dict[str, np.ndarray]] = {}
        for name, array in values.items():
            split, _, rest = name.partition("/")
            tables.setdefault(SPLIT_NAMES[split.lower()], {})[rest] = array
    else:
        whole = {n: a for n, a in values.items() if not options.fields or n in options.fields} or values
        tables = split_names(whole)
    return ArraySource(tables, stamp([path]), {})


def flatten(value: Any, path: Path, name: str = "") -> dict[str, np.ndarray]:
    """Nested names joined by /; what is in a tuple is called field0, field1 ..."""
    if hasattr(value, "detach"):
        if value.ndim == 0:
            raise ConfigError(f"{path}: {name or 'the tensor'} is a single number, not rows")
        try:
            return {name or path.stem: to_numpy(value)}
        except ValueError as error:
            raise ConfigError(f"{path}: {name or 'it'} {error}") from None
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (tuple, list)) and len(value) <= 100:
        items = [(f"field{k}", v) for k, v in enumerate(value)]
    else:
        raise ConfigError(
            f"{path}: {name or 'it'} is a {type(value).__name__}; tensors, dicts and short tuples are read"
        )
    out: dict[str, np.ndarray] = {}
    for key, item in items:
        out |= flatten(item, path, f"{name}/{key}" if name else key)
    return out
