"""Write weights that no step changes (the base model of LoRA, a frozen backbone) once for all checkpoints of a run.

    checkpoints/frozen.pt     {"weights": {name: tensor}, "sums": {name: checksum}}, before the first checkpoint
    last_000000100.pt         "shared": {"model": {name: checksum}, "ema": {...}}: not in its "model" and "ema"

A weight is omitted from a checkpoint only if its bits are equal to those in frozen.pt. A weight that has changed since
frozen.pt was written is in each checkpoint, like a trained weight.
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
    """Hold the weights that the checkpoints in `directory` share. save: writes a dict to a path, atomically."""

    def __init__(self, directory: Path, save: Callable[[dict[str, Any], Path], None]) -> None:
        self._file, self._save = directory / SHARED_WEIGHTS, save
        self._sums: dict[str, int] | None = None  # checksums of the weights in the file

    def left_out(self, payload: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
        """Return the payload without the weights `names` whose values are equal to those in the file.

        The first call of a run writes the file. Wait for the device.
        """
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
        return payload | parts | {"shared": shared}


def with_shared(payload: dict[str, Any], path: Path) -> dict[str, Any]:
    """Return the payload of the checkpoint `path` with the shared weights, which are read from the file next to it.

    Raise ConfigError if that file is missing, damaged or from another run: all checkpoints of the run need it.
    """
    shared = payload.pop("shared", {})
    if not shared:
        return payload
    file = path.with_name(SHARED_WEIGHTS)
    try:
        held = _read(file)
    except FileNotFoundError:
        remedy = "keep it with the checkpoints, or use ./run export, which writes all weights into one file"
        raise ConfigError(f"{file}: is missing, and {path.name} needs its weights - {remedy}") from None
    except CorruptFileError as error:
        raise ConfigError(f"{error}; restore it from a copy: all checkpoints of its run need it") from error
    for part, sums in shared.items():
        if unlike := [name for name, total in sums.items() if held["sums"].get(name) != total]:
            raise ConfigError(f"{file}: is not the file that {path.name} was saved with: {unlike[0]} differs")
        payload[part].update({name: held["weights"][name] for name in sums})
    return payload


def _sums(weights: Mapping[str, Tensor]) -> dict[str, int]:
    with torch.no_grad():
        totals = [checksum(value) for value in weights.values()]
    return dict(zip(weights, to_host(torch.stack(totals)))) if totals else {}


def _read(file: Path) -> dict[str, Any]:
    """Return the content of the file. Raise FileNotFoundError or CorruptFileError."""
    if not file.is_file():  # a read of a pipe would wait
        raise FileNotFoundError(file)
    held: dict[str, Any] = load_verified(file)
    with reading(file):
        kinds = {"weights": dict[str, Tensor], "sums": dict[str, Any]}
        whole = isinstance(held, dict) and kinds.keys() <= held.keys() and not misfits(held, kinds)
        if not whole or held["weights"].keys() != held["sums"].keys():
            raise ValueError("it contains no frozen weights")
        return held
