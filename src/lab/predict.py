"""Predict: the outputs of one trained model, or the mean over several, for every sample of a split."""

from __future__ import annotations

import signal
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.checks import predicted
from lab.restore import Restored, restore
from lab.run import collective_timeout_s
from lab.start import first_failure
from lab.tasks.base import Batch
from samebits.data import Loader
from samebits.errors import ConfigError, RunFailed
from samebits.host import count_gpus
from samebits.predictions import Part, Spec, assemble, check_target
from samebits.signals import STOP_SIGNALS, temporary_folder
from samebits.world import Ranks, place, process_group, recording

ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax": lambda output: output.softmax(-1),
    "sigmoid": torch.sigmoid,
}


@dataclass(frozen=True)
class Prediction:
    """What to predict. paths: runs or checkpoints; of several the mean is taken, after `activation`. overrides:
    key=value for their configs. fields: names in the batch that are copied into the file."""

    paths: list[Path]
    split: str
    out: Path
    overrides: list[str]
    fields: list[str]
    activation: str | None = None


def predict(what: Prediction, num_procs: int | None, overwrite: bool) -> Spec:
    """Write what.out. Returns {name: (shape, dtype)} of what it holds: row (N,), <output> (N, ...), <field> (N, ...).

    num_procs: processes, each of which predicts its share of the samples; None: one for each GPU, or one.
    """
    check_target(what.out, overwrite)
    if not what.paths:
        raise ConfigError("give a run directory or a checkpoint")
    for path in what.paths:
        if not path.exists():
            raise ConfigError(f"{path}: no such run directory or checkpoint")
    if place.size is not None:
        raise ConfigError("predict.py starts its processes by itself: not by torchrun or srun, but with --procs 8")
    if num_procs is not None and num_procs < 1:
        raise ConfigError(f"--procs {num_procs}: must be at least 1")
    count = num_procs or max(1, count_gpus())
    # beside the target, which may be larger than /tmp
    with temporary_folder(f".{what.out.name}-", what.out.parent) as folder:
        if count == 1:
            write_part(what, 1, folder)
        else:
            run_ranks(what, count, folder)
        parts = [folder / f"{number}.h5" for number in range(count)]
        return assemble(parts, what.out, {"split": what.split, "runs": [str(path) for path in what.paths]})


def run_ranks(what: Prediction, count: int, folder: Path) -> None:
    ranks = Ranks()
    try:
        with ranks.passing_on_signals():
            ranks.run(partial(write_recorded, what, count), folder, count)
    except RunFailed as error:
        if ranks.signalled is not None:
            raise KeyboardInterrupt from error
        raise first_failure(folder, error) from error


def write_recorded(what: Prediction, count: int, folder: Path) -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, STOP_SIGNALS)  # blocked while ranks are started
    with recording(folder, place.rank):
        write_part(what, count, folder)


def write_part(what: Prediction, num_procs: int, folder: Path) -> None:
    """Predict this rank's share of the samples, into folder/<rank>.h5."""
    members = [restore(path, what.split, what.overrides, num_procs) for path in what.paths]
    first, machine = members[0], members[0].experiment.machine
    for other in members[1:]:
        theirs, ours = (len(member.experiment.sets[what.split]) for member in (other, first))
        if theirs != ours:
            raise ConfigError(
                f"{other.file}: its {what.split} split has {theirs:,} samples, that of {first.file} "
                f"{ours:,}: several models predict the same samples - give data.path=..."
            )
    machine.apply(first.experiment.config.hardware)
    with process_group(machine.device, collective_timeout_s(None)) as world, ExitStack() as stack:
        loaders: list[Loader] = []
        for member in members:
            member.model.to(world.device), member.task.to(world.device).eval()
            experiment = replace(member.experiment, machine=machine, world=world)
            loaders.append(experiment.eval_loader(what.split, whole=True))
            stack.callback(loaders[-1].close)
        part = Part(folder / f"{world.rank}.h5")
        stack.callback(part.close)
        for k, batches in enumerate(zip(*loaders)):
            rows, counted = loaders[0].plan(k)[1], loaders[0].lengths(k)[1]  # type: ignore[index]
            values = {name: copied(batches[0], name) for name in what.fields}
            values |= averaged([outputs(member, batch, what) for member, batch in zip(members, batches)])
            part.append(rows[:counted], {name: value[:counted] for name, value in values.items()})


@torch.no_grad()
def outputs(member: Restored, batch: Batch, what: Prediction) -> dict[str, np.ndarray]:
    """{name: (B, ...)} of one model: "output" for a task that returns one tensor, else the names of its mapping."""
    with member.experiment.machine.autocast():
        named = predicted(member.task, member.model, batch)
    if what.activation:
        named = {k: ACTIVATIONS[what.activation](v.float()) if v.is_floating_point() else v for k, v in named.items()}
    # NumPy has no bfloat16
    return {k: (v.float() if v.is_floating_point() else v).cpu().numpy() for k, v in named.items()}


def averaged(members: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """The mean over the models of each output."""
    if len(members) == 1:
        return members[0]
    for name, array in members[0].items():
        shapes = [member[name].shape if name in member else None for member in members]
        if set(shapes) != {array.shape}:
            raise ConfigError(f"{name}: the models' outputs differ in shape ({shapes}), so they have no mean")
        if not np.issubdtype(array.dtype, np.floating):
            raise ConfigError(f"{name}: the models' outputs are {array.dtype}, of which there is no mean")
    return {name: np.mean([member[name] for member in members], axis=0) for name in members[0]}


def copied(batch: Batch, name: str) -> Any:
    """The field as an array (B, ...), or as it is for texts."""
    if name not in batch:
        raise ConfigError(f"--with {name}: the batch has {', '.join(batch)}")
    return batch[name].cpu().numpy() if isinstance(batch[name], Tensor) else batch[name]
