"""Weights that no step changes (LoRA's base, a frozen backbone): written once, for all checkpoints of a run.

    checkpoints/frozen.pt     {"weights": {name: tensor}, "sums": {name: checksum}}, before the first checkpoint
    last_000000100.pt         "frozen": {"model": {name: checksum}, "ema": {...}}: what its "model" and "ema" lack

A weight is left out for its bits, not for what the model says of it: one that has changed since frozen.pt was written
is in each checkpoint, as those that are trained.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from samebits.checkpoints.integrity import load_verified, reading
from samebits.errors import ConfigError, CorruptFileError
from samebits.schema import misfits
from samebits.shards import checksum
from samebits.status import SHARED_WEIGHTS
from samebits.world import to_host

WEIGHTS = ("model", "ema")


class SharedWeights:
    """The weights that the checkpoints in `directory` have in common. save: writes a dict to a path, atomically."""

    def __init__(self, directory: Path, save: Callable[[dict[str, Any], Path], None]) -> None:
        self._file, self._save = directory / SHARED_WEIGHTS, save
        self._sums: dict[str, int] | None = None  # of what lies in the file

    def left_out(self, payload: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Returns the payload of a checkpoint without those of `names` that are in the file as they are here. The first
        call of a run writes the file. Waits for the device."""
        if self._sums is None and self._file.exists():
            self._sums = _read(self._file)["sums"]
        elif self._sums is None:
            weights = {name: payload["model"][name].detach().cpu() for name in names}
            sums = _sums(weights)
            self._save({"weights": weights, "sums": sums}, self._file)
            self._sums = sums
        parts: dict[str, Any] = {part: copy.copy(payload[part]) for part in WEIGHTS if payload[part]}
        shared: dict[str, dict[str, int]] = {}
        for part, state in parts.items():
            totals = _sums({name: state[name] for name in names if name in state})
            shared[part] = {name: total for name, total in totals.items() if self._sums.get(name) == total}
            for name in shared[part]:
                del state[name]
        return payload | parts | {"frozen": shared}


def with_shared(payload: dict[str, Any], path: Path) -> dict[str, Any]:
    """The payload of the checkpoint `path`, with what was left out of it. ConfigError where the file beside it is
    missing, damaged or another run's: all checkpoints of the run need it."""
    shared = payload.pop("frozen", {})
    if not shared:
        return payload
    file = path.with_name(SHARED_WEIGHTS)
    try:
        held = _read(file)
    except FileNotFoundError:
        remedy = "keep it with the checkpoints, or take what ./run export writes, one file with all weights"
        raise ConfigError(f"{file}: missing; {path.name} lacks the weights that lie there - {remedy}") from None
    except CorruptFileError as error:
        raise ConfigError(f"{error}; put a copy of it there: all checkpoints of its run need it") from error
    for part, sums in shared.items():
        if unlike := [name for name, total in sums.items() if held["sums"].get(name) != total]:
            raise ConfigError(f"{file}: is not the file that {path.name} was saved with: another {unlike[0]}")
        payload[part].update({name: held["weights"][name] for name in sums})
    return payload


def _sums(weights: Mapping[str, Tensor]) -> dict[str, int]:
    with torch.no_grad():
        totals = [checksum(value) for value in weights.values()]
    return dict(zip(weights, to_host(torch.stack(totals)))) if totals else {}


def _read(file: Path) -> dict[str, Any]:
    """FileNotFoundError, or CorruptFileError."""
    if not file.is_file():  # nor is a pipe waited for
        raise FileNotFoundError(file)
    held: dict[str, Any] = load_verified(file)
    with reading(file):
        kinds = {"weights": dict[str, Tensor], "sums": dict[str, Any]}
        whole = isinstance(held, dict) and kinds.keys() <= held.keys() and not misfits(held, kinds)
        if not whole or held["weights"].keys() != held["sums"].keys():
            raise ValueError("it holds no frozen weights")
        return held
