"""TrainState, which a checkpoint holds, and RunContext: what else the loop uses (ranks, config values, logger, callbacks)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lab.callbacks.base import overriding
from lab.options import RULES, MonitorConfig, TrainerConfig
from lab.tasks.base import Batch, Task
from samebits.checkpoints import BufferChecks, Checkpoints, Optimizers
from samebits.data import Loader, StatefulOrder, Stream
from samebits.device import Hardware, match_memory_format
from samebits.errors import ConfigError
from samebits.loggers import Logger
from samebits.parallel import Balance
from samebits.profiling import Work
from samebits.shards import Replicas, numbers_in
from samebits.steps import rng_row, set_rng_row, set_rng_state
from samebits.world import HangWatchdog, StopRequest, World

# loaded by the caller of `load`: earlier, or with better error messages
LOADED = ("model", "task", "ema", "source", "order")


@dataclass
class TrainState:
    """All that a checkpoint holds. `model` is unwrapped: no DDP, no torch.compile."""

    model: nn.Module
    task: Task
    ema: nn.Module | None
    optimizer: Optimizers  # {objective: optimizer}; most tasks have one objective, named ""
    schedule: Any  # lab.optim.Schedule, which alone sets the learning rates
    scaler: torch.amp.GradScaler | None  # None unless precision is fp16
    parameter_names: list[str] = field(default_factory=list)  # names of the optimizers' parameters, in their order
    monitor: list[str] = field(
        default_factory=list
    )  # key and mode of the score that best, best_score, evals_without_improvement are of
    source: Stream | None = None  # training data without a length; its state is the read position
    order: StatefulOrder | None = None  # data.order, where it has a state
    step: int = 0  # optimizer steps done, skipped ones included
    samples: int = 0  # training samples done by all ranks: the next global sample number
    best: list[list[float]] = field(default_factory=list)  # [score, step] of the best checkpoints kept, best first
    best_score: float | None = None
    evals_without_improvement: int = 0  # evaluations since the best score
    running_sums: dict[str, Tensor] = field(default_factory=dict)  # sums since the last log, on the device
    counts: dict[str, int] = field(default_factory=dict)  # steps summed in each of `running_sums`
    logged_step: int = 0  # the step of the last log
    skipped_steps: int = 0  # until then, in those between two logs of which all were left out
    logged_lines: int = 0  # in metrics.jsonl; known to rank 0
    scored_step: int = 0  # the step of the last evaluation
    pending: list[str] = field(default_factory=list)  # what is still to be done after `step`: see lab.pending
    stop_reason: str = ""  # why there are no more steps: "patience", "callback" or "pruned", before total_steps
    total_steps: int = 0  # the end of training when `pending` was written; 0: not begun, or of an older version
    epoch_samples: int = 0  # rows of the training set, for a task that is loaded (TaskRun)
    rules: int = RULES  # the run's, see lab.options

    def payload(self, ranks: Tensor | None = None) -> dict[str, Any]:
        """Returns every field for the checkpoint. ranks: (N, K), each rank's rank_row; None: without them."""
        held = {one.name: getattr(self, one.name) for one in fields(self) if one.name != "running_sums"}
        saved = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in held.items()}
        for group, rate in zip(saved["optimizer"]["param_groups"], self.schedule.rates):
            group["lr"] = rate if isinstance(group["lr"], Tensor) else group["lr"]
        weights = self.model.state_dict(keep_vars=True)
        frozen = [k for k, v in weights.items() if isinstance(v, nn.Parameter) and not v.requires_grad]
        totals = {name: str(value.dtype).removeprefix("torch.") for name, value in sorted(self.running_sums.items())}
        return saved | {"ranks": [] if ranks is None else ranks, "running_sum_types": totals, "frozen": frozen}

    @torch.no_grad()
    def add_to_sums(self, values: Mapping[str, Tensor]) -> None:
        """To the sums since the last log: a step's values, 0-d; one launch for all of them."""
        known = [name for name in values if name in self.running_sums]
        if known:
            torch._foreach_add_([self.running_sums[name] for name in known], [values[name] for name in known])
        for name, value in values.items():
            self.counts[name] = self.counts.get(name, 0) + 1
            if name not in known:
                self.running_sums[name] = value.clone()

    def rank_row(self, device: torch.device) -> Tensor:
        """What a rank has of its own, (K,) uint8: its random numbers, and its `running_sums` in the order of their names."""
        sums = [self.running_sums[name].detach().double() for name in sorted(self.running_sums)]
        row = rng_row(device)
        return torch.cat([row, torch.stack(sums).cpu().view(torch.uint8)]) if sums else row

    def load(self, payload: dict[str, Any], world: World, options: Collection[str]) -> None:
        """Restore all fields except LOADED; a field that an older checkpoint lacks keeps its value.

        options: names of optimizer arguments for which the config's values, which a resume may have changed, hold
        instead of the checkpoint's.

        If the number of ranks has changed, every rank takes the mean of the checkpoint's unlogged `running_sums`. A rank that
        the checkpoint lacks keeps its freshly seeded RNG.
        """
        given = [{k: v for k, v in group.items() if k in options} for group in self.optimizer.param_groups]
        for name in (one.name for one in fields(self) if one.name in payload and one.name not in LOADED):
            held = getattr(self, name)
            if not hasattr(held, "load_state_dict"):
                if name != "scaler":  # the run was in fp16 and is resumed in another precision
                    setattr(self, name, payload[name])
            elif payload[name] is not None:
                held.load_state_dict(payload[name])
            if name == "optimizer":
                for optimizer in self.optimizer.values():
                    match_memory_format(optimizer)
                for group, values in zip(self.optimizer.param_groups, given):
                    group.update(values)
        ranks = payload["ranks"]
        own = [ranks[world.rank]] if len(ranks) == world.size else ranks
        totals = [totals_of(rank, payload) for rank in own]
        self.running_sums = {
            k: torch.stack([t[k] for t in totals]).sum(0).div(len(totals)).to(world.device) for k in totals[0]
        }
        if "counts" not in payload:
            self.counts = dict.fromkeys(self.running_sums, self.step - self.logged_step)
        if world.rank < len(ranks):
            mine = ranks[world.rank]
            set_rng_row(mine, world.device) if isinstance(mine, Tensor) else set_rng_state(mine["rng"], world.device)


def totals_of(rank: Any, payload: dict[str, Any]) -> dict[str, Tensor]:
    """A rank's `running_sums`, of a row of payload["ranks"], or as older checkpoints have them."""
    if not isinstance(rank, Tensor):
        found: dict[str, Tensor] = rank["totals"]
        return found
    kinds = payload["running_sum_types"]
    sums = rank[len(rank) - 8 * len(kinds) :].clone().view(torch.float64)
    return {name: one.to(getattr(torch, kind)) for (name, kind), one in zip(kinds.items(), sums)}


@dataclass(frozen=True)
class Every:
    """Intervals in optimizer steps, which need not be whole (samebits.schema.passed); None: never."""

    log: float | None
    eval: float | None
    save: float | None


@dataclass(frozen=True)
class RunContext:
    """What the loop needs beside the state; no checkpoint holds it."""

    world: World
    trainer: TrainerConfig
    monitor: MonitorConfig
    hardware: Hardware
    every: Every
    logger: Logger
    checkpoints: Checkpoints
    callbacks: list[Any]  # lab.callbacks.base.Callback, or any object with some of its methods
    stop: StopRequest
    watchdog: HangWatchdog
    buffers: BufferChecks
    epoch_samples: int
    total_steps: int
    stop_at_step: int | None = None  # process.stop_at_step
    balance: Balance | None = None  # with several ranks: which of them holds the others up
    replicas: Replicas = field(default_factory=Replicas)
    work: Work = field(default_factory=Work)  # of a sample: what the logged speeds are made from
    first_batch: Callable[[], Batch] = dict  # returns the next training batch of this rank; not to be changed
    statistics: Loader | None = None  # training samples of which the average's statistics are made
    train: Loader | None = None  # of the training batches, as `fit` takes them
    train_set: Any = None  # may have `not_finite`, which says where its values are inf or NaN
    # iterate_rows(rows): a loader of these rows of the training set, (N,) int64, as evaluations read them: without random
    # transforms, with "row", each row once over all ranks. To be closed: `with run.iterate_rows(rows) as batches`
    iterate_rows: Callable[..., Loader] = Loader
    evaluations: list[int] = field(default_factory=list)  # under way: the step of each
    bn_updated_at: list[int] = field(
        default_factory=list
    )  # the last step after which the average got statistics of its own
    printed_once: set[str] = field(default_factory=set)  # what a line, which is printed once, has been printed of

    @property
    def directory(self) -> Path:
        """The run directory: config.yaml, metrics.jsonl, checkpoints/, ..."""
        return self.checkpoints.directory.parent

    def notify(self, event: str, state: TrainState, *values: Any) -> bool:
        """Call the method `event` of every callback that has it. Returns whether any returned True.

        A callback may take longer than a step, see process.timeout."""
        said: list[Any] = []
        for call in overriding(self.callbacks, event):
            owner = type(getattr(call, "__self__", call)).__name__
            with self.watchdog.user_code(f"{owner}.{event}", state.step):
                said.append(call(state, *values))
        return any(answer is True for answer in said)

    @property
    def order(self) -> Any:
        """data.order, to be changed: alike on all ranks, between steps or in on_eval. `reorder` puts it in use."""
        return StatefulOrder.of(self.train).order

    def reorder(self) -> None:
        """From the next step on samples come by the state that `order` has now. All ranks call this after the same
        step; it compares their states. Sample numbers go on."""
        order = StatefulOrder.of(self.train)
        if self.evaluations:
            raise ConfigError(
                "run.reorder() in an evaluation: one that is stopped is made again, so the order would change twice - "
                "call it in on_eval, or between steps"
            )
        order.take()
        step = self.watchdog.latest().step
        Replicas(self.replicas.step).check(numbers_in("data.order's state", order.state_dict()), step, self.world)
        assert self.train is not None
        self.train.reorder(order.use)


def may_skip(trainer: TrainerConfig, scaler: torch.amp.GradScaler | None) -> bool:
    """Whether a step whose gradients are not finite is left out; else the run ends."""
    return trainer.non_finite == "skip" or scaler is not None


def on_all_ranks(state: TrainState) -> Iterator[tuple[str, Any]]:
    """(name, value) of what all ranks hold alike: weights and their average, the task's saved buffers, the optimizers'
    state. Not buffers of the model and running_ ones of the task's modules: statistics of each rank's own samples."""
    yield from state.model.named_parameters()
    yield from ((f"task.{name}", p) for name, p in state.task.named_parameters())
    saved = state.task.state_dict(keep_vars=True)
    for name, buffer in state.task.named_buffers():
        if name in saved and not name.rpartition(".")[2].startswith(("running_", "num_batches_tracked")):
            yield f"task.{name}", buffer
    yield from ((f"ema.{name}", p) for name, p in (state.ema.named_parameters() if state.ema is not None else ()))
    if state.order is not None:
        yield from numbers_in("data.order's state", state.order.state_dict())
    names = iter(state.parameter_names)
    for optimizer in state.optimizer.values():
        for number, group in enumerate(optimizer.param_groups):
            options = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            yield from numbers_in(f"the optimizer's group {number}", options)
            for p in group["params"]:
                yield from numbers_in(f"{next(names)}'s", optimizer.state.get(p, {}))


def averaged_model(state: TrainState) -> nn.Module:
    """Returns the model to evaluate: the average of the weights with the model's buffers; without one, the model. With
    Task.bn_update_batches BatchNorm's statistics are the average's own, see lab.average."""
    if state.ema is None:
        return state.model
    norms = [module for module in state.ema.modules() if isinstance(module, _BatchNorm)]
    fresh = {id(buffer) for norm in norms for buffer in norm.buffers() if state.task.bn_update_batches}
    for mean, buffer in zip(state.ema.buffers(), state.model.buffers()):
        if id(mean) not in fresh:
            mean.copy_(buffer)
    return state.ema
