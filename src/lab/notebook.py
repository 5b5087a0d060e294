"""What a notebook uses, without a command line: compose, build, fit, load_run."""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
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
from samebits.status import class_names
from samebits.status import read_metrics as metrics_of
from samebits.world import World


def compose(overrides: Sequence[str] = ()) -> DictConfig:
    """Returns the config that `src/train.py <overrides>` would run, resolved and checked. Raises ConfigError."""
    if isinstance(overrides, str):
        raise ConfigError(f"compose({overrides!r}): give a list of overrides, compose([{overrides!r}])")
    cfg = compose_here(PROJECT, overrides, Path.cwd())
    check(cfg)
    return cfg


@dataclass(frozen=True)
class Parts:
    """A config's model and task, on `world.device`, and a loader for each split: `next(iter(parts.loaders["train"]))`
    is a batch as the loop gets it."""

    model: nn.Module
    task: Task
    loaders: dict[str, Loader]
    machine: Hardware
    world: World

    def close(self) -> None:
        """End the loaders' threads and processes."""
        for loader in self.loaders.values():
            loader.close()


def build(cfg: DictConfig) -> Parts:
    """Build in this process what a run of `cfg` would train, for one device, whatever trainer.strategy says: with the
    run's first weights, and random numbers that go on as its rank 0 draws them."""
    experiment = Experiment.of_first_rank(on_one_device(checked(cfg)), apply=False)
    model, task = experiment.build_model_and_task()
    machine, world = resolve_auto(experiment.machine, flop_of_sample(model, task)), experiment.world
    data = replace(experiment, machine=machine).open()
    seed_rank(experiment.config, 0)
    return Parts(model.to(world.device), task.to(world.device), {"train": data.train, **data.others}, machine, world)


def checked(cfg: DictConfig) -> Config:
    """Typed, from a copy of what `compose` has returned, which may have been changed since. Raises ConfigError."""
    if not isinstance(cfg, DictConfig):
        raise ConfigError(f"expected what compose([...]) returns, not a {type(cfg).__name__}")
    return check(cfg.copy())


def fit(cfg: DictConfig, run_dir: str | Path | None = None) -> Path:
    """Train `cfg` as `src/train.py` does, in this process if it is one rank. Returns the run directory.

    run_dir: default outputs/<name>/<time>-<suffix>; if it holds a run of this config, that is gone on with.
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
    """Returns what the run has logged: [{"step": 50, "train/loss": 0.3, ...}, {"step": 100, "val/loss": ...}, ...]."""
    if not (found := metrics_of(Path(run_dir))):
        raise ConfigError(
            f"{run_dir}/metrics.jsonl: no such file; give the directory of a run that has logged something"
        )
    return found


class TrainedRun:
    """A run's model with its preprocessing. `model, cfg = load_run(...)` takes the first two apart.

    model: on the CPU, in eval mode, with the weights that were evaluated (the EMA if the run kept one). classes:
    names of the classes of the field y; None where the data name none.
    """

    def __init__(self, path: str | Path) -> None:
        self.model, self.cfg, self.file, payload = restore_model(Path(path))
        self._config = Config.of(self.cfg)
        self._payload = payload
        self.classes = class_names(self.file.parent.parent)

    def __iter__(self) -> Iterator[Any]:
        return iter((self.model, self.cfg))

    def __getitem__(self, index: int) -> Any:
        return (self.model, self.cfg)[index]

    def __repr__(self) -> str:
        return f"TrainedRun({self.file}, {type(self.model).__name__})"

    @torch.no_grad()
    def predict(self, x: Any) -> Any:
        """x: one sample or a batch of the field x as the data hold it, before data.transforms: an array or tensor.
        Returns the task's prediction for the batch, such as logits (B, num_outputs)."""
        values = torch.as_tensor(x)
        shape = tuple(self._config.data.input_shape)
        if values.ndim == len(shape):
            values = values[None]
        if values.ndim != len(shape) + 1:
            raise ConfigError(
                f"predict: x has the shape {tuple(torch.as_tensor(x).shape)}; give one sample of {len(shape)} axes, "
                f"such as {shape}, or a batch of them"
            )
        transform = make_transform(self._config, random=False)
        batch = {"x": values}
        return self._task.predict(self.model, transform(batch, torch.arange(len(values))) if transform else batch)

    @torch.no_grad()
    def sample(self, count: int) -> Any:
        """`count` new samples, where the task draws such (Task.sample), by torch's random numbers as they stand."""
        return self._task.sample(self.model, count)

    def name(self, x: Any) -> list[str]:
        """The most likely class of each sample, by name; by number where the data name none."""
        output = self.predict(x)
        if not isinstance(output, Tensor) or output.ndim != 2:
            raise ConfigError("name: the task's prediction is not one row of class scores for each sample")
        return [self.classes[k] if self.classes else str(k) for k in output.argmax(1).tolist()]

    @property
    def _task(self) -> Task:
        if "task_" not in self.__dict__:
            self.task_ = restore_task(self._config, self.model, self.file, self._payload).eval()
        return self.task_
