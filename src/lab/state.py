"""What a run is made of: the task, the state that a checkpoint holds, and the surroundings."""

from __future__ import annotations

import copy
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from engine.data.loader import Loader
from engine.ranks.balance import Balance
from engine.ranks.distributed import World
from engine.ranks.seed import rng_state, set_rng_state
from engine.ranks.stop import Stopped, StopRequest
from engine.ranks.watch import Watch
from engine.runs.checkpoint import Checkpoints
from engine.runs.logger import Logger
from engine.sweeps.search.pruning import Pruning
from lab.callbacks.base import Callback
from lab.checks import BufferChecks

Batch = dict[str, Tensor]
Loss = Callable[[Any, Batch], Tensor]  # (output, batch) -> (B,) losses, one for each sample
Metric = Callable[[Any, Batch], Tensor]  # (output, batch) -> (B,) values, one for each sample


@dataclass(frozen=True)
class Task:
    criterion: Loss
    metrics: Mapping[str, Metric]


@dataclass
class TrainState:
    """All that a checkpoint holds. `model` is bare: neither DDP's nor the compiler's wrapper."""

    model: nn.Module
    ema: nn.Module | None
    optimizer: torch.optim.Optimizer
    schedule: Any  # step(), state_dict(), load_state_dict()
    scaler: torch.amp.GradScaler | None  # fp16 alone has one
    step: int = 0  # optimizer steps done, skipped ones included
    samples: int = 0  # global sample number that comes next
    best: list[list[float]] = field(default_factory=list)  # [score, step] of the best checkpoints kept, best first
    best_score: float | None = None
    stale: int = 0  # evaluations since the best score
    totals: dict[str, Tensor] = field(default_factory=dict)  # sums since the last log, on the device
    logged_step: int = 0  # the step of the last log
    scored_step: int = 0  # the step of the last evaluation

    def payload(self, ranks: list[dict[str, Any]]) -> dict[str, Any]:
        """ranks: what each rank has of its own, see rank_payload."""
        return {
            "model": self.model.state_dict(),
            "ema": self.ema.state_dict() if self.ema else None,
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "scaler": self.scaler.state_dict() if self.scaler else None,
            "step": self.step,
            "samples": self.samples,
            "best": self.best,
            "best_score": self.best_score,
            "stale": self.stale,
            "logged_step": self.logged_step,
            "scored_step": self.scored_step,
            "ranks": ranks,
        }

    def rank_payload(self, device: torch.device) -> dict[str, Any]:
        return {"rng": rng_state(device), "totals": {k: v.cpu() for k, v in self.totals.items()}}

    def load(self, payload: dict[str, Any], world: World, options: Collection[str]) -> None:
        """All but the weights, which the caller loads, as it can say what does not fit.

        options: of the optimizer, that the config gives: they may have been changed, and hold from here on.

        With another number of ranks than the checkpoint's, each takes the mean of what has not been logged, and a rank
        that the run did not have keeps its fresh random numbers.
        """
        given = [{k: v for k, v in group.items() if k in options} for group in self.optimizer.param_groups]
        self.optimizer.load_state_dict(payload["optimizer"])
        for group, values in zip(self.optimizer.param_groups, given):
            group.update(values)
        self.schedule.load_state_dict(payload["schedule"])
        if self.scaler and payload["scaler"]:
            self.scaler.load_state_dict(payload["scaler"])
        for name in ("step", "samples", "best", "best_score", "stale", "logged_step", "scored_step"):
            setattr(self, name, payload[name])
        ranks = payload["ranks"]
        totals = [rank["totals"] for rank in ranks]
        if len(ranks) == world.size:
            totals = [totals[world.rank]]
        self.totals = {k: (sum(t[k] for t in totals) / len(totals)).to(world.device) for k in totals[0]}
        if world.rank < len(ranks):
            set_rng_state(ranks[world.rank]["rng"], world.device)


@dataclass(frozen=True)
class StepSettings:
    """What train_step needs beside the state. local_batch_size: samples of this rank in one optimizer step;
    num_parameters: how many the optimizer trains."""

    local_batch_size: int
    num_parameters: int
    micro_batch_sizes: list[int]  # samples of each micro-batch
    clip_norm: float | None
    skip_non_finite: bool
    ema_decay: float | None
    autocast: Callable[[], AbstractContextManager[Any]]
    update: Callable[[], None]  # the optimizer's step
    guarded: bool  # the optimizer's kernel leaves the weights alone where `found_inf` is 1


@dataclass(frozen=True)
class Run:
    """One run's surroundings, and when things are due (in optimizer steps; None: never)."""

    world: World
    logger: Logger
    balance: Balance
    checkpoints: Checkpoints
    callbacks: list[Callback]
    stop: StopRequest
    watch: Watch
    step: StepSettings
    buffers: BufferChecks
    global_batch_size: int
    epoch_samples: int
    total_steps: int
    log_every: int | None
    eval_every: int | None
    save_every: int | None
    keep_best: int
    patience: int | None
    monitor_key: str
    monitor_sign: int  # 1: less is better, -1: more is better
    pruning: Pruning | None  # of a search's trial

    @property
    def directory(self) -> Path:
        """The run's own: config.yaml, metrics.jsonl, checkpoints/, ..."""
        return self.checkpoints.directory.parent

    def notify(self, event: str, state: TrainState, *values: Any) -> None:
        """Call this method of every callback. A callback may take longer than a step, see trainer.timeout."""
        for callback in self.callbacks:
            with self.watch.user_code(f"{type(callback).__name__}.{event}", state.step):
                getattr(callback, event)(state, *values)

    def evaluating(self, loader: Loader, step: int) -> Iterator[Batch]:
        """The batches of an evaluation; Stopped, on all ranks after the same one, once they have agreed to stop."""
        self.stop.settle()
        self.watch.beat("evaluating", step)
        for number, batch in enumerate(loader):
            yield batch
            self.watch.beat("evaluating", step)
            if number < loader.plan.common and self.stop.agreed(self.world):  # type: ignore[attr-defined]
                raise Stopped
        self.stop.settle()
        if self.stop.cause:
            raise Stopped


def averaged(state: TrainState) -> nn.Module:
    """The model to evaluate: the moving average of the weights, with the model's own buffers, where there is one."""
    if state.ema is None:
        return state.model
    for mean, buffer in zip(state.ema.buffers(), state.model.buffers()):
        mean.copy_(buffer)
    return state.ema


def moving_average(model: nn.Module) -> nn.Module:
    return copy.deepcopy(model).requires_grad_(False)
