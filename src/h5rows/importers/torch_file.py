"""One file of torch.save: a tensor, a dict of tensors (of splits, too), or a tuple of them. No code in it is run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from h5rows.errors import ConfigError, first_line, printable
from h5rows.importers.arrays import places_of, tables_of
from h5rows.importers.base import ArraySource
from h5rows.importers.values import to_numpy
from h5rows.packing.account import Account
from h5rows.packing.options import PackOptions


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
    account = Account()
    values = flatten(loaded, path, account)
    if not values:
        named = next(iter(account.left.get("values", [])), "nothing")
        raise ConfigError(f"{path} holds no tensors with rows, only {printable(named)}")
    return ArraySource(tables_of(values, places_of(values, path, options)), account=account)


def flatten(value: Any, path: Path, account: Account, name: str = "") -> dict[str, np.ndarray]:
    """Nested names joined by /; what is in a tuple is called field0, field1 ... What is no tensor is left out."""
    if hasattr(value, "detach"):
        if value.ndim == 0:
            account.leave("values", name or "the tensor", f"the single number {value.item()}")
            return {}
        try:
            return {name or path.stem: to_numpy(value)}
        except ValueError as error:
            raise ConfigError(f"{path}: {name or 'it'} {error}") from None
    if isinstance(value, dict):
        items = [(str(k), v) for k, v in value.items()]
    elif isinstance(value, (tuple, list)) and len(value) <= 100:
        items = [(f"field{k}", v) for k, v in enumerate(value)]
    else:
        account.leave("values", name or "it", f"a {type(value).__name__}, no tensor")
        return {}
    out: dict[str, np.ndarray] = {}
    for key, item in items:
        found = flatten(item, path, account, f"{name}/{key}" if name else key)
        if twice := next((n for n in found if n in out), None):
            raise ConfigError(f"{path} holds two tensors of the name {twice!r}; rename one")
        out |= found
    return out
