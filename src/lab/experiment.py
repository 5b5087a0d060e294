"""Build the objects of a config in one process: data sets and loaders, then model and task, then the training state.

All commands use it, so that a run, a check before a sweep and a restored run build the same objects.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from lab.builders import check_task, make_model_of_rank, make_state, make_task, task_run
from lab.checks import check_holds_no_weights, check_registered
from lab.config import Config, set_processes
from lab.frozen_networks import provide_frozen
from lab.loaders import make_datasets, make_eval_loader, make_train_loader
from lab.model_io import make_model
from lab.objective import LossModule
from lab.optimizer_step import requires_grad_only
from lab.project import PROJECT
from lab.schedules.constant import Epochs
from lab.state import TrainState
from lab.statistics import with_statistics
from lab.tasks.base import Batch, Task
from samebits.data import Loader, Stream
from samebits.device import Hardware, resolve_hardware, rough_flop
from samebits.errors import ConfigError
from samebits.loggers import Logger
from samebits.process import ready_net
from samebits.steps import restored_rng, seed_everything, warn_of_new_seed
from samebits.targets import constructing
from samebits.world import World, dist_env, world_of_one


@dataclass(frozen=True)
class Data:
    """Data sets and loaders. sets: {split: data set}. train: the training loader. eval_loaders: {split: loader}."""

    sets: dict[str, Any]
    train: Loader
    eval_loaders: dict[str, Loader]
    opened: list[Loader] = field(default_factory=list)  # further loaders that `close` closes

    @property
    def val_loaders(self) -> dict[str, Loader]:
        """The splits val*, which are evaluated during training. At the end, all splits except train are evaluated."""
        return {split: loader for split, loader in self.eval_loaders.items() if split.startswith("val")}

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all loaders."""
        for loader in (self.train, *self.eval_loaders.values(), *self.opened):
            loader.close()


@dataclass(frozen=True)
class Experiment:
    """A config with its data sets, in one process.

    hardware: every `auto` is resolved, except those that depend on the model. world: the ranks that share a global
    batch. sets: {split: data set}."""

    config: Config
    hardware: Hardware
    world: World
    sets: dict[str, Any]

    @staticmethod
    def of_first_rank(config: Config, apply: bool = True, max_rows: int | None = None) -> Experiment:
        """Return the experiment of rank 0 of the run, in this process, without the other ranks. apply: set torch's
        global switches from the config's `hardware`. max_rows: see lab.statistics.with_statistics."""
        hardware = resolve_hardware(config.hardware, config.trainer)
        if apply:
            hardware.apply(config.hardware)
        world = World(0, hardware.num_procs, 0, dist_env.device(hardware.device))
        sets = make_datasets(config)
        return Experiment(
            with_statistics(config, sets["train"], world_of_one(), max_rows=max_rows), hardware, world, sets
        )

    @property
    def this_process(self) -> World:
        """This process as the only rank, on the device of `world`."""
        return world_of_one(self.hardware.device)

    def in_one_process(self) -> Experiment:
        """Return the experiment with the whole model in this process as the only rank. `hardware` does not change, so a
        batch has as many samples as on one rank of the run."""
        return replace(self, config=on_one_device(self.config), world=self.this_process)

    def open(self, samples: int = 0, order: dict[str, Any] | None = None) -> Data:
        """Return a loader for each of `sets`. samples, order: see `train_loader`."""
        train = self.train_loader(samples, order)
        eval_loaders = {split: self.eval_loader(split, train) for split in self.sets if split != "train"}
        return Data(self.sets, train, eval_loaders)

    def train_loader(self, samples: int = 0, order: dict[str, Any] | None = None) -> Loader:
        """Return the training loader. samples: first sample id. order: the state of data.order, if it has one."""
        return make_train_loader(self.config, self.hardware, self.sets["train"], self.world, samples, order)

    def eval_loader(self, split: str, train: Loader | None = None, all_samples: bool = False) -> Loader:
        """Return the loader of a split. train: loader whose number of workers is used. all_samples: ignore
        trainer.max_eval_batches."""
        return make_eval_loader(self.config, self.hardware, self.sets[split], split, self.world, train, all_samples)

    def build_model_and_task(
        self, logger: Logger | None = None, is_new: bool = True, directory: Path | None = None
    ) -> tuple[nn.Module, Task]:
        """Return (model, task), on the CPU. Their initial weights depend only on the config and the data, so they are
        equal on all ranks and in a notebook.

        is_new: True for a new run, False if a checkpoint will be loaded. directory: the run directory, which contains
        its frozen networks; None: there is no run. With trainer=fsdp, ranks other than 0 may have the model on the
        device `meta` until `start_training`."""
        config, world, logger = self.config, self.world, logger or Logger()
        seed_everything(config.seed)
        sharded = config.trainer.strategy == "fsdp" and world.size > 1
        warn = logger.warn if is_new else lambda _: None  # a checkpoint replaces the weights
        effect = "has random numbers that do not depend on `seed`, so all seeds may begin with the same weights"
        of_model, of_task = (f"{key}: {config.values[key]['_target_']}" for key in ("model", "task"))
        with warn_of_new_seed(of_model, effect, warn):
            model = make_model_of_rank(config, logger, world) if sharded else make_model(config)
        with warn_of_new_seed(of_task, effect, warn):
            task = make_task(config)
        check_task(task, model, config, self.hardware)
        task.run = task_run(config, world, self.sets["train"])
        if sharded and (copied := [name for name, source in task.frozen_networks.items() if source is None]):
            raise ConfigError(
                f"trainer=fsdp: task.frozen_networks: {copied[0]} is a copy of the model, but each process has only a "
                "shard - use trainer=ddp"
            )
        with constructing(PROJECT, "task", config.values["task"]):
            # `setup` draws the same numbers in a resumed run, which skips the steps before it
            with restored_rng(torch.device("cpu")), warn_of_new_seed(of_task, effect, warn):
                for part in model.modules() if is_new and not any(p.is_meta for p in model.parameters()) else ():
                    if load := getattr(part, "load_pretrained", None):  # of a library
                        logger.say(load())
                if is_new and (line := task.initialize(model, self._first_batches())):
                    logger.say(line)
            with warn_of_new_seed(of_task, effect, warn):
                task.setup(model)
        check_holds_no_weights(task, model)
        check_registered("model", model)
        check_registered("task", task, model.parameters())
        with constructing(PROJECT, "task", config.values["task"]):
            provide_frozen(task, model, config.values["model"], directory, is_new, world.is_main)
        return model, task

    def _first_batches(self) -> Iterator[Batch]:
        """Yield the training batches from the first one on, for Task.initialize. Raise ConfigError for a stream."""
        config, dataset = self.config, self.sets["train"]
        if isinstance(dataset, Stream):
            raise ConfigError(
                "task: its `initialize` reads training data, but a stream can be read only once - use a data set"
            )
        whole = replace(self.hardware, micro_batch_sizes=[config.trainer.global_batch_size])
        config = replace(config, hardware=replace(config.hardware, compile=False, channels_last=False))
        with make_train_loader(config, whole, dataset, world_of_one(), 0, random=False) as loader:
            yield from loader

    def start_training(
        self, model: nn.Module, task: Task, total_steps: int, epochs: Epochs | None = None
    ) -> tuple[TrainState, dict[str, nn.Module]]:
        """Return the training state and {objective: LossModule, wrapped by DDP and torch.compile as configured}.

        model, task: are moved to the device in place, or the model is sharded over the ranks. epochs: their length in
        steps; None: as in a new run, with all samples of the training set in each epoch."""
        config, hardware = self.config, self.hardware
        epochs = epochs or Epochs(len(self.sets["train"]) / config.trainer.global_batch_size)
        state = make_state(config, hardware, model, task, total_steps, self.world, epochs)
        loss_modules: dict[str, nn.Module] = {}
        for objective in task.objectives(model):
            net = LossModule(model, task, objective)
            with requires_grad_only(objective, state) if objective else nullcontext():
                loss_modules[objective] = ready_net(net, model, config, hardware, self.world)
        return state, loss_modules


def on_one_device(config: Config) -> Config:
    """Return the config for the same training by one process on one device, whatever trainer.strategy is."""
    cfg = config.given.copy()
    set_processes(cfg, 1)
    return Config.of(cfg)


def flop_of_sample(model: nn.Module, task: Task) -> float:
    """Return the FLOP of a training sample, estimated from shapes. Some `auto` of `hardware` are resolved with it."""
    return rough_flop([model, task], task.run.input_shape, 1)
