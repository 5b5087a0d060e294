"""Predict every sample of a split with a trained model, or with the mean over several models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.checks import checked_prediction
from lab.loaders import check_classes
from lab.restore import Restored, restore
from lab.tasks.base import Batch
from samebits.data import Loader
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.predictions import ROW
from samebits.process import write_predictions
from samebits.world import World

Rows = Iterator[tuple[np.ndarray, dict[str, Any]]]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    # over the class dimension: dimension 1 of images (B, C, H, W) and volumes, the last of (B, C) and (B, T, C)
    "softmax": lambda output: output.softmax(1 if output.dim() > 3 else -1),
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True)
class Prediction:
    """The arguments of a prediction. paths: runs or checkpoints; outputs of several are averaged, after `activation`.
    out: the file to write. overrides: key=value for the runs' configs. fields: fields of the batch to copy to `out`."""

    paths: list[Path]
    split: str
    out: Path
    overrides: list[str]
    fields: list[str]
    activation: str | None = None


def predict(request: Prediction, num_procs: int | None, overwrite: bool) -> dict[str, Any]:
    """Write the file request.out. Return {name: (shape, dtype)}: row (N,), <output> (N, ...), <field> (N, ...).

    num_procs: processes that share the samples; None: one for each GPU, or one. overwrite: replace an existing file.
    """
    if not request.paths:
        raise ConfigError("give a run directory or a checkpoint")
    for path in request.paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such run directory or checkpoint")
    facts = {"split": request.split, "runs": [str(path) for path in request.paths]}
    return write_predictions(request.out, overwrite, num_procs, partial(load, request), facts)


def load(request: Prediction, num_procs: int) -> tuple[Hardware, Callable[[World], Rows]]:
    """Return (hardware, function that predicts a rank's share of the samples). Raise ConfigError if the runs differ in
    the number of samples, the rows or the class names of the split."""
    members = [restore(path, request.split, request.overrides, num_procs) for path in request.paths]
    first = members[0]
    names = getattr(first.experiment.sets[request.split], "class_names", None) or {}
    for other in members[1:]:
        check_classes(other.experiment.sets[request.split], names.get, str(first.file), str(other.file))
        count, other_count = (len(member.experiment.sets[request.split]) for member in (first, other))
        if other_count != count:
            raise ConfigError(
                f"{other.file}: its split {request.split} has {other_count:,} samples, but {first.file} has "
                f"{count:,}: an ensemble predicts the same samples - give data.path=..."
            )
        if other_rows(first, other, request.split):
            raise ConfigError(
                f"{other.file}: its split {request.split} has other rows of the data than in {first.file}, as with "
                "another fold: an ensemble predicts the same samples - choose a split that all runs have in common, "
                "such as --split test"
            )
    first.experiment.hardware.apply(first.experiment.config.hardware)
    return first.experiment.hardware, partial(rows_of, request, members)


def other_rows(first: Restored, other: Restored, split: str) -> bool:
    """Return whether two runs read the same fields of the same data, but other rows in this split."""
    read = []
    for member in (first, other):
        data = member.experiment.config.dataset
        entry = (data.get("splits") or {}).get(split) or {}
        read.append([*map(data.get, ("_target_", "path", "fields")), entry.get("group")])
    dataset, other_dataset = (member.experiment.sets[split] for member in (first, other))
    if read[0] != read[1] or not hasattr(dataset, "shared_rows"):
        return False  # the rows of other files, fields or groups cannot be compared
    return bool(dataset.shared_rows(other_dataset) != dataset.shared_rows(dataset))


def rows_of(request: Prediction, members: list[Restored], world: World) -> Rows:
    """Yield (rows of the split (B,), {name: predictions or copied fields (B, ...)}) of this rank's share."""
    hardware = members[0].experiment.hardware
    with ExitStack() as stack:
        loaders: list[Loader] = []
        for member in members:
            member.model.to(world.device), member.task.to(world.device).eval()
            experiment = replace(member.experiment, hardware=hardware, world=world)
            loaders.append(experiment.eval_loader(request.split, all_samples=True))
            stack.callback(loaders[-1].close)
        for k, batches in enumerate(zip(*loaders)):
            rows, (size, real) = loaders[0].plan(k)[1], loaders[0].size_and_real(k)  # type: ignore[index]
            for member, loader in zip(members[1:], loaders[1:]):
                if not np.array_equal(loader.plan(k)[1], rows):  # type: ignore[index]
                    raise ConfigError(
                        f"{member.file}: reads the split {request.split} in another order or in other batches than "
                        f"{members[0].file}, as with another task.eval_lanes - predict with each and average the files"
                    )
            values = {name: copied(batches[0], name) for name in request.fields}
            predictions = averaged([outputs(member, batch, request) for member, batch in zip(members, batches)])
            if twice := ({ROW} & values.keys()) | ({ROW, *values} & predictions.keys()):
                raise ConfigError(
                    f"--out {request.out}: would have two entries {min(twice)!r}: {ROW!r} is the row in the split, and "
                    f"the model's outputs are {', '.join(predictions)} - leave this name out of --fields, or rename "
                    "the output in Task.predict"
                )
            for name, value in (values | predictions).items():
                if np.shape(value)[:1] != (size,):
                    raise ConfigError(
                        f"{name}: has the shape {np.shape(value)} for {size} samples, but the first dimension must be "
                        "the samples - leave it out of --fields, or pad it to one size per sample in Task.predict"
                    )
            yield rows[:real], {name: value[:real] for name, value in (values | predictions).items()}


@torch.no_grad()
def outputs(member: Restored, batch: Batch, request: Prediction) -> dict[str, np.ndarray]:
    """Return {name: (B, ...)} of one model, floats as float32 or wider. A single tensor from the task is named
    "output"."""
    with member.experiment.hardware.autocast():
        named = checked_prediction(member.task, member.model, batch)
    floats = {k: v.to(torch.promote_types(v.dtype, torch.float32)) for k, v in named.items() if v.is_floating_point()}
    if request.activation:
        floats = {k: ACTIVATIONS[request.activation](v) for k, v in floats.items()}
    return {k: v.cpu().numpy() for k, v in {**named, **floats}.items()}


def averaged(members: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Return the mean over the models of each output. Raise ConfigError if shapes differ or outputs are not floats."""
    if len(members) == 1:
        return members[0]
    for name, array in members[0].items():
        shapes = [member[name].shape if name in member else None for member in members]
        if set(shapes) != {array.shape}:
            raise ConfigError(f"{name}: the models' outputs differ in shape ({shapes}) and cannot be averaged")
        if not np.issubdtype(array.dtype, np.floating):
            raise ConfigError(f"{name}: the models' outputs are {array.dtype} and cannot be averaged")
    return {name: np.mean([member[name] for member in members], axis=0) for name in members[0]}


def copied(batch: Batch, name: str) -> Any:
    """Return a field of the batch, tensors as arrays (B, ...). Raise ConfigError if it is missing."""
    if name not in batch:
        raise ConfigError(f"--fields {name}: no such field (the batch has {', '.join(batch)})")
    return batch[name].cpu().numpy() if isinstance(batch[name], Tensor) else batch[name]
