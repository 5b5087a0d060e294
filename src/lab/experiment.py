"""What a config becomes in a process: data sets and loaders, then model and task, then the training state and its nets.

A run, a sweep's preflight, `tune`, a notebook and a restored run build by it, so that each has what the others have.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from torch import nn

from lab.builders import check_task, make_model_of_rank, make_state, make_task, task_run
from lab.checks import check_holds_no_weights
from lab.config import Config, set_processes
from lab.frozen_networks import provide_frozen
from lab.loaders import make_datasets, make_eval_loader, make_train_loader
from lab.model_io import make_model
from lab.objective import LossModule
from lab.optimizer_step import only
from lab.project import PROJECT
from lab.state import TrainState
from lab.tasks.base import Batch, Task
from samebits.data import Loader, Stream
from samebits.device import Hardware, resolve_hardware, rough_flop
from samebits.errors import ConfigError
from samebits.loggers import Logger
from samebits.process import ready_net
from samebits.steps import seed_everything
from samebits.targets import constructing
from samebits.world import World, dist_env, world_of_one


@dataclass(frozen=True)
class Data:
    """sets: {split: data set}. train: the loader of the training batches. others: {split: loader of an evaluation}."""

    sets: dict[str, Any]
    train: Loader
    others: dict[str, Loader]
    opened: list[Loader] = field(default_factory=list)  # more that are closed with the others

    @property
    def vals(self) -> dict[str, Loader]:
        """Splits named val* are evaluated during training; all splits but train at its end."""
        return {split: loader for split, loader in self.others.items() if split.startswith("val")}

    @property
    def source(self) -> Stream | None:
        return self.sets["train"] if isinstance(self.sets["train"], Stream) else None

    def __enter__(self) -> Data:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        for loader in (self.train, *self.others.values(), *self.opened):
            loader.close()


@dataclass(frozen=True)
class Experiment:
    """A config with its data sets, in one process. machine: its hardware, every auto resolved but what the model
    decides. world: the ranks that share a global batch. sets: {split: data set}."""

    config: Config
    machine: Hardware
    world: World
    sets: dict[str, Any]

    @staticmethod
    def of_first_rank(config: Config, apply: bool = True) -> Experiment:
        """Return what rank 0 of the run has, in this process; no other rank is there. apply: set torch's global
        switches as hardware says."""
        machine = resolve_hardware(config.hardware, config.trainer)
        if apply:
            machine.apply(config.hardware)
        world = World(0, machine.num_procs, 0, dist_env.device(machine.device))
        return Experiment(config, machine, world, make_datasets(config))

    @property
    def this_process(self) -> World:
        """This process by itself, on the device of `world`."""
        return world_of_one(self.machine.device)

    def in_one_process(self) -> Experiment:
        """Return the experiment with the whole model in this process. `machine` stays, so batches are those of a rank
        of `world`."""
        return replace(self, config=on_one_device(self.config), world=self.this_process)

    def open(self, samples: int = 0, order: dict[str, Any] | None = None) -> Data:
        """Return a loader for each of `sets`. samples, order: see `train_loader`."""
        train = self.train_loader(samples, order)
        others = {split: self.eval_loader(split, train) for split in self.sets if split != "train"}
        return Data(self.sets, train, others)

    def train_loader(self, samples: int = 0, order: dict[str, Any] | None = None) -> Loader:
        """samples: global sample number to begin with. order: the state of a data.order that has one."""
        return make_train_loader(self.config, self.machine, self.sets["train"], self.world, samples, order)

    def eval_loader(self, split: str, train: Loader | None = None, whole: bool = False) -> Loader:
        """train: the training's loader, which has as many workers. whole: all samples of the split."""
        return make_eval_loader(self.config, self.machine, self.sets[split], split, self.world, train, whole)

    def build_model_and_task(
        self, logger: Logger | None = None, begins: bool = True, directory: Path | None = None
    ) -> tuple[nn.Module, Task]:
        """Return (model, task), on the CPU. Their first weights follow from the seed and the data alone: equal on all
        ranks, in a run, and for whoever else builds them. begins: True for a new run, False if a checkpoint will be
        loaded. directory: of the run, where its frozen networks are; None: of none.

        With trainer=fsdp other ranks than 0 may have the model on the device `meta`, until `begin`."""
        config, world, logger = self.config, self.world, logger or Logger()
        seed_everything(config.cfg.seed)
        sharded = config.trainer.strategy == "fsdp" and world.size > 1
        model = make_model_of_rank(config, logger, world) if sharded else make_model(config)
        task = make_task(config)
        check_task(task, model, config, self.machine)
        task.run = task_run(config, world, self.sets["train"])
        if sharded and (copied := [name for name, source in task.frozen.items() if source is None]):
            raise ConfigError(
                f"trainer=fsdp: task.frozen: {copied[0]} is a copy of the model, which no process has whole"
            )
        with constructing(PROJECT, "task", config.cfg.task):
            for part in model.modules() if begins and not any(p.is_meta for p in model.parameters()) else ():
                if load := getattr(part, "load_pretrained", None):  # a model of Hugging Face
                    logger.say(load())
            if begins and (line := task.initialize(model, self._first_batches())):
                logger.say(line)
            task.setup(model)
        check_holds_no_weights(task, model)
        with constructing(PROJECT, "task", config.cfg.task):
            provide_frozen(task, model, config.cfg.model, directory, begins, world.is_main)
        return model, task

    def _first_batches(self) -> Iterator[Batch]:
        """Yield the run's training batches from the first on, for Task.initialize."""
        config, dataset = self.config, self.sets["train"]
        if isinstance(dataset, Stream):
            raise ConfigError(
                "task: its `initialize` reads training data, and a stream's are read once - use a data set"
            )
        whole = replace(self.machine, micro_batch_sizes=[config.trainer.global_batch_size])
        config = replace(config, hardware=replace(config.hardware, compile=False, channels_last=False))
        with make_train_loader(config, whole, dataset, world_of_one(), 0, random=False) as loader:
            yield from loader

    def begin(self, model: nn.Module, task: Task, total_steps: int) -> tuple[TrainState, dict[str, nn.Module]]:
        """Return the training state and {objective: its LossModule}, wrapped by DDP and torch.compile as the config
        says. model, task: moved to the device, or the model sharded over the ranks, in place."""
        config, machine = self.config, self.machine
        state = make_state(config, machine, model, task, total_steps, self.world)
        nets: dict[str, nn.Module] = {}
        for objective in task.objectives(model):
            net = LossModule(model, task, objective)
            with only(objective, state) if objective else nullcontext():
                nets[objective] = ready_net(net, model, config, machine, self.world)
        return state, nets


def on_one_device(config: Config) -> Config:
    """Return the config of the same training by one process on one device, whatever trainer.strategy says."""
    cfg = config.given.copy()
    set_processes(cfg, 1)
    return Config.of(cfg)


def flop_of_sample(model: nn.Module, task: Task) -> float:
    """Return the FLOP of a training sample, by shapes alone: what the model decides of the hardware depends on it."""
    return rough_flop([model, task], task.run.input_shape, 1)
