"""The functions for notebooks: compose, build, fit, load_run, read_metrics."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor, nn

from lab.builders import seed_rank
from lab.config import Config, check
from lab.experiment import Experiment, flop_of_sample, on_one_device
from lab.loaders import make_transform
from lab.model_io import restore_model
from lab.program import start
from lab.project import PROJECT
from lab.restore import restore_task
from lab.tasks.base import Task
from samebits.config import compose_here, remove_if_empty
from samebits.data import Loader
from samebits.device import Hardware, resolve_auto
from samebits.errors import ConfigError
from samebits.status import class_names, read_metrics as metrics_of
from samebits.world import World


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Return the config that `./run train <overrides>` would use, resolved. Raise ConfigError for a mistake in it."""
    if isinstance(overrides, str):
        raise ConfigError(f"compose({overrides!r}): give a list of overrides, compose([{overrides!r}])")
    cfg = compose_here(PROJECT, overrides, Path.cwd())
    check(cfg)
    return cfg


@dataclass(frozen=True)
class Parts:
    """A config's model and task, on `world.device`, and a loader of each split: `next(iter(parts.loaders["train"]))` is
    a batch as in the training loop."""

    model: nn.Module
    task: Task
    loaders: dict[str, Loader]
    hardware: Hardware
    world: World

    def close(self) -> None:
        """Stop the threads and processes of the loaders."""
        for loader in self.loaders.values():
            loader.close()


def build(cfg: DictConfig) -> Parts:
    """Build model, task and loaders of `cfg` in this process, for one device, whatever trainer.strategy is.

    The weights are the run's initial ones, and torch's random numbers are the same as on its rank 0."""
    experiment = Experiment.of_first_rank(on_one_device(checked(cfg)), apply=False)
    model, task = experiment.build_model_and_task()
    hardware, world = resolve_auto(experiment.hardware, flop_of_sample(model, task)), experiment.world
    data = replace(experiment, hardware=hardware).open()
    seed_rank(experiment.config, 0)
    return Parts(
        model.to(world.device), task.to(world.device), {"train": data.train, **data.eval_loaders}, hardware, world
    )


def checked(cfg: DictConfig) -> Config:
    """Check a config from `compose`, which may have been changed since. Return it typed. Raise ConfigError."""
    if not isinstance(cfg, DictConfig):
        raise ConfigError(f"expected a config from compose([...]), got a {type(cfg).__name__}")
    return check(cfg.copy())


def fit(cfg: DictConfig, run_dir: str | Path | None = None) -> Path:
    """Train `cfg` as `./run train` does, in this process if there is one rank. Return the run directory.

    run_dir: default outputs/<name>/<time>-<suffix>; if it contains a run of this config, that run is resumed.
    """
    config = checked(cfg)
    if run_dir is None:
        run_dir = PROJECT.root / "outputs" / cfg.name / f"{time.strftime('%Y-%m-%d_%H-%M-%S')}-{secrets.token_hex(3)}"
    folder = Path(run_dir).absolute()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        start(config.given, folder, [], own_process=False)
    except ConfigError:
        remove_if_empty(PROJECT.root, folder)
        raise
    return folder


def read_metrics(run_dir: str | Path) -> list[dict[str, Any]]:
    """Return the run's metrics.jsonl: [{"step": 50, "train/loss": 0.3, ...}, {"step": 100, "val/loss": ...}, ...]."""
    if not (found := metrics_of(Path(run_dir))):
        raise ConfigError(
            f"{run_dir}/metrics.jsonl: is missing or empty; give the directory of a run that has logged something"
        )
    return found


class TrainedRun:
    """A trained model with its preprocessing. `model, cfg = load_run(path)` works too.

    path: a run directory or one of its checkpoints. model: on the CPU, in eval mode, with the evaluated weights (the
    weight average if the run has one). classes: names of the classes of the field y; None if the data have no names.
    """

    def __init__(self, path: str | Path) -> None:
        self.model, self.cfg, self.file, payload = restore_model(Path(path))
        self._config, self._payload = Config.of(self.cfg), payload
        self.classes = class_names(self.file.parent.parent)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.cfg))

    def __getitem__(self, index: int) -> Any:
        return (self.model, self.cfg)[index]

    def __repr__(self) -> str:
        return f"TrainedRun({self.file}, {type(self.model).__name__})"

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """Return the task's prediction for a batch, such as logits (B, num_outputs).

        x: array or tensor, one sample or a batch of the field x as in the data file, before data.transforms. Raise
        ConfigError if its shape does not fit."""
        values = torch.as_tensor(x)
        shape = tuple(self._config.data.input_shape)
        if values.ndim == len(shape):
            values = values[None]
        if values.ndim != len(shape) + 1:
            raise ConfigError(
                f"predict: x has the shape {tuple(torch.as_tensor(x).shape)}; give one sample of {len(shape)} "
                f"dimensions, such as {shape}, or a batch of samples"
            )
        transform = make_transform(self._config, random=False)
        batch = {"x": values}
        return self._task.predict(self.model, transform(batch, torch.arange(len(values))) if transform else batch)

    @torch.no_grad()
    def sample(self, count: int) -> Any:
        """Return `count` new samples from Task.sample, with torch's present random numbers."""
        return self._task.sample(self.model, count)

    def predict_names(self, x: Any) -> list[str]:
        """Return the name of the most likely class of each sample, or its number if the data have no names."""
        output = self.predict(x)
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise ConfigError("predict_names: the prediction is not (B, number of classes) - use predict")
        return [self.classes[k] if self.classes else str(k) for k in output.argmax(1).tolist()]

    @cached_property
    def _task(self) -> Task:
        return restore_task(self._config, self.model, self.file, self._payload).eval()
