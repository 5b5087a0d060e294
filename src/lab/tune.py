"""The trials of `./run tune` on one device, as samebits.process.trials needs them, and its learning-rate range test."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from omegaconf import DictConfig
from torch import Tensor, nn

from lab.average import set_training_mode
from lab.builders import count_steps
from lab.config import Config
from lab.evaluation import evaluate
from lab.experiment import Experiment, on_one_device
from lab.loaders import task_class
from lab.loop import train_step
from lab.optim import Schedule
from lab.state import TrainState
from lab.statistics import SOME_ROWS
from lab.tasks.base import Batch
from samebits.data import Loader
from samebits.device import Hardware
from samebits.process import range_test, run_trial

LR_RATES = [1e-6 * 10 ** (i / 20) for i in range(141)]  # to 10


@dataclass(frozen=True)
class Trial(Experiment):
    """The experiment of a run's rank 0 on one device; implements samebits.process.trials.Trial."""

    @staticmethod
    def of(cfg: DictConfig, max_rows: int | None = None) -> Trial:
        """Return the trial of a config. max_rows: see Experiment.of_first_rank."""
        return Trial(**vars(Experiment.of_first_rank(Config.of(cfg), max_rows=max_rows)))

    @property
    def train_set(self) -> Any:
        """The training set."""
        return self.sets["train"]

    def loader(self, kind: str | None = None, workers: int | str = "auto") -> Loader:
        """Return a training loader. kind, workers: data.loader and data.num_workers; None: as in the config."""
        if kind is None:
            return self.train_loader()
        data = replace(self.config.data, loader=kind, num_workers=workers)
        return replace(self, config=replace(self.config, data=data)).train_loader()

    def begin_run(self) -> tuple[TrainState, dict[str, nn.Module]]:
        """Return the state and loss modules of a new run, with the whole model on one device. With trainer=ddp and
        several ranks DDP wraps the loss modules, which needs a process group."""
        ddp = self.config.trainer.strategy == "ddp"
        trial = self if ddp else replace(self, config=on_one_device(self.config))
        model, task = trial.build_model_and_task()
        state, loss_modules = trial.start_training(
            model, task, count_steps(trial.config.trainer, len(trial.sets["train"]))
        )
        for net in loss_modules.values():
            set_training_mode(net)
        return state, loss_modules

    def make_step(self) -> Callable[[Iterator[Batch]], Any]:
        """Return a function that takes one training step of a new run."""
        return steps_of(*self.begin_run(), self, self.hardware)

    def two_steps(self, whole: Hardware, hardware: Hardware) -> None:
        """Take two steps with the micro-batches of `hardware`, then evaluate a batch of the size in `whole`."""
        split = next((split for split in self.sets if split != "train"), "train")
        trial = replace(self, hardware=whole, sets={name: self.sets[name] for name in ("train", split)})
        with trial.open() as data:
            state, loss_modules = trial.begin_run()
            step, batches = steps_of(state, loss_modules, trial, hardware), iter(data.train)
            for _ in range(2):
                step(batches)
            for scored in data.eval_loaders.values():
                first = itertools.islice(scored, 1)
                evaluate(state.model, state.task, first, self.this_process, hardware, scored.size_and_real)


def steps_of(
    state: TrainState, loss_modules: dict[str, nn.Module], trial: Trial, hardware: Hardware
) -> Callable[[Iterator[Batch]], dict[str, Tensor]]:
    """Return a function that takes one training step and never skips it. fp16 may skip all steps of a short trial, and
    a skipped step does not allocate the optimizer's state, so the memory would be underestimated."""
    state.scaler = None
    trainer = replace(trial.config.trainer, non_finite="stop")
    return lambda batches: train_step(loss_modules, state, batches, trainer, hardware, trial.this_process)


def measure(stage: str, cfg: DictConfig) -> Any:
    """Return the measurements of a stage of `./run tune`; see samebits.process.trials."""
    config = Config.of(cfg)
    if stage == "lr":
        return range_test(config, task_class(config).needs_global_batch, partial(rates_and_losses, cfg))
    return run_trial(stage, config, partial(Trial.of, cfg, SOME_ROWS))


def rates_and_losses(cfg: DictConfig, micro_batch: int | None) -> Iterator[tuple[float, float]]:
    """Yield (learning rate, loss) of steps with the rates LR_RATES, one per step (Smith 2017, Cyclical Learning Rates,
    section 3.3)."""
    cfg = cfg.copy()
    cfg.hardware.micro_batch_size = micro_batch
    trial = Trial.of(on_one_device(Config.of(cfg)).given)
    state, loss_modules = trial.begin_run()
    state.schedule = ramp(state)
    with trial.train_loader() as loader:
        batches = iter(loader)
        for lr in LR_RATES:
            values = train_step(loss_modules, state, batches, trial.config.trainer, trial.hardware, trial.this_process)
            state.step += 1
            yield lr, statistics.mean(float(v) for name, v in values.items() if name.rpartition("/")[2] == "loss")


def ramp(state: TrainState) -> Schedule:
    """Return a schedule over LR_RATES; each group keeps its ratio to the peak (lr_factor, an optimizer's own rate)."""
    made = Schedule(state.optimizer, lambda step, total: LR_RATES[min(step, total - 1)], len(LR_RATES))
    made.peaks, made.peak = [peak / state.schedule.peak for peak in state.schedule.peaks], 1.0
    return made
