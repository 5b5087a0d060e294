"""TrainState, the content of a checkpoint, and RunContext, everything else that the loop uses (ranks, logger, ...)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from lab.callbacks.base import overridden_methods
from lab.options import RULES, MonitorConfig, TrainerConfig
from lab.tasks.base import Batch, Task
from samebits.checkpoints import BufferChecks, Checkpoints, Optimizers
from samebits.data import Loader, StatefulOrder, Stream
from samebits.device import Hardware, match_memory_format
from samebits.errors import ConfigError
from samebits.loggers import Logger
from samebits.parallel import RankTiming
from samebits.profiling import SampleCost
from samebits.shards import ReplicaChecks, numbers_in
from samebits.steps import StepRNG, rng_bytes, set_rng_bytes, set_rng_state
from samebits.world import HangWatchdog, StopRequest, World

# fields that TrainState.load leaves to its caller, who loads them earlier or with better error messages
LOADED_BY_CALLER = ("model", "task", "ema", "source", "order")


@dataclass
class TrainState:
    """The content of a checkpoint. `model` is without wrappers: no DDP, no torch.compile."""

    model: nn.Module
    task: Task
    ema: nn.Module | None
    optimizer: Optimizers  # {objective: optimizer}; most tasks have one objective, named ""
    schedule: Any  # lab.optim.Schedule: nothing else sets learning rates
    scaler: torch.amp.GradScaler | None  # only with fp16
    parameter_names: list[str] = field(default_factory=list)  # of the optimizers' parameters, in their order
    monitor: list[str] = field(default_factory=list)  # [key, mode] of the score in `best` and `best_score`
    source: Stream | None = None  # training data without a length; its state is the read position
    order: StatefulOrder | None = None  # data.order, if it has a state
    step: int = 0  # optimizer steps done, including skipped steps
    samples: int = 0  # training samples done by all ranks; also the next sample id
    best: list[list[float]] = field(default_factory=list)  # [score, step] of the checkpoints kept as best, best first
    best_score: float | None = None
    evals_without_improvement: int = 0  # evaluations since the best score
    running_sums: dict[str, Tensor] = field(default_factory=dict)  # of logged values since the last log, on the device
    counts: dict[str, int] = field(default_factory=dict)  # {name: number of steps in its sum in `running_sums`}
    # {objective: number of samples that have passed through forward and backward}, for the FLOP
    passed: dict[str, int] = field(default_factory=dict)
    logged_step: int = 0  # the step of the last log
    steps_without_update: int = 0  # steps in those log intervals, up to logged_step, in which no step made an update
    logged_lines: int = 0  # lines in metrics.jsonl, which only rank 0 writes and counts
    scored_step: int = 0  # the step of the last evaluation
    pending: list[str] = field(default_factory=list)  # actions to run before the next step: lab.pending
    stop_reason: str = ""  # why training ended before total_steps: "patience", "callback", "pruned" (a search ended it)
    total_steps: int = 0  # the run's length when `pending` was written; 0: a new run, or an old checkpoint
    epoch_samples: int = 0  # rows of the training set; TaskRun gets it when a checkpoint is loaded
    rules: int = RULES  # the run's version of lab.options.RULES

    def payload(self, ranks: Tensor | None = None) -> dict[str, Any]:
        """Return the content of the checkpoint. It has `ranks` in place of `running_sums`, which differ by rank.

        ranks: (N, K) uint8, the rank_row of each of N ranks; None: leave them out."""
        values = {f.name: getattr(self, f.name) for f in fields(self) if f.name != "running_sums"}
        saved = {k: v.state_dict() if hasattr(v, "state_dict") else v for k, v in values.items()}
        for group, rate in zip(saved["optimizer"]["param_groups"], self.schedule.rates):
            group["lr"] = rate if isinstance(group["lr"], Tensor) else group["lr"]  # a device tensor in a CUDA graph
        weights = self.model.state_dict(keep_vars=True)
        frozen = [k for k, v in weights.items() if isinstance(v, nn.Parameter) and not v.requires_grad]
        types = {name: str(value.dtype).removeprefix("torch.") for name, value in self.running_sums.items()}
        return saved | {"ranks": [] if ranks is None else ranks, "running_sum_types": types, "shared": frozen}

    def add_to_sums(self, values: Mapping[str, Tensor]) -> None:
        """Add a step's values, 0-d, to `running_sums`, with one kernel launch for all of them."""
        summed = [name for name in values if name in self.running_sums]
        if summed:
            with torch.set_grad_enabled(False):  # 3 Python calls; torch.no_grad makes 7, and 9 as a decorator
                torch._foreach_add_([self.running_sums[name] for name in summed], [values[name] for name in summed])
        for name, value in values.items():
            self.counts[name] = self.counts.get(name, 0) + 1
            if name not in summed:
                self.running_sums[name] = value.detach().clone()

    def rank_row(self, device: torch.device) -> Tensor:
        """Return this rank's own state, (K,) uint8: RNG states, then `running_sums` as float64, sorted by name."""
        sums = [self.running_sums[name].detach().double() for name in sorted(self.running_sums)]
        row = rng_bytes(device)
        return torch.cat([row, torch.stack(sums).cpu().view(torch.uint8)]) if sums else row

    def load(self, payload: dict[str, Any], world: World, options: Collection[str]) -> None:
        """Restore all fields except LOADED_BY_CALLER. A field that is missing in an older checkpoint keeps its value.

        options: names of optimizer arguments that are taken from the config instead of the checkpoint.
        If the number of ranks has changed, each rank takes the mean of the checkpoint's `running_sums`, and a rank
        that is not in the checkpoint keeps its newly seeded RNG."""
        of_config = [{k: v for k, v in group.items() if k in options} for group in self.optimizer.param_groups]
        for name in (f.name for f in fields(self) if f.name in payload and f.name not in LOADED_BY_CALLER):
            current = getattr(self, name)
            if not hasattr(current, "load_state_dict"):
                if name != "scaler":  # a scaler is dropped if the run is no longer fp16
                    setattr(self, name, payload[name])
            elif payload[name] is not None:
                current.load_state_dict(payload[name])
            if name == "optimizer":
                for optimizer in self.optimizer.values():
                    match_memory_format(optimizer)
                for group, values in zip(self.optimizer.param_groups, of_config):
                    group.update(values)
        ranks = payload["ranks"]
        rows = [ranks[world.rank]] if len(ranks) == world.size else ranks
        sums = [sums_of_rank(row, payload) for row in rows]
        self.running_sums = {
            name: torch.stack([s[name] for s in sums]).sum(0).div(len(sums)).to(world.device) for name in sums[0]
        }
        if "counts" not in payload:
            self.counts = dict.fromkeys(self.running_sums, self.step - self.logged_step)
        if world.rank < len(ranks):
            mine = ranks[world.rank]
            set_rng_bytes(mine, world.device) if isinstance(mine, Tensor) else set_rng_state(mine["rng"], world.device)


def sums_of_rank(row: Any, payload: dict[str, Any]) -> dict[str, Tensor]:
    """Return a rank's `running_sums` from its row of payload["ranks"], which is a dict in older checkpoints."""
    if not isinstance(row, Tensor):
        return dict(row["totals"])
    dtypes = payload["running_sum_types"]
    sums = dict(zip(sorted(dtypes), row[len(row) - 8 * len(dtypes) :].clone().view(torch.float64)))
    return {name: sums[name].to(getattr(torch, dtype)) for name, dtype in dtypes.items()}


@dataclass(frozen=True)
class RunContext:
    """Everything that the loop uses in addition to the state. It is not saved in checkpoints."""

    world: World
    trainer: TrainerConfig
    monitor: MonitorConfig
    hardware: Hardware
    logger: Logger
    checkpoints: Checkpoints
    callbacks: list[Any]  # lab.callbacks.base.Callback, or any object with some of its methods
    stop: StopRequest  # `cause` is set, on all ranks after the same step, when the run must stop
    watchdog: HangWatchdog  # ends the run if a step takes longer than process.timeout
    buffer_checks: BufferChecks  # checks before a save that buffers are finite, and that all are saved
    samples_per_epoch: int  # of data.order, which may use some rows more than once or not at all
    total_steps: int  # of the whole run, also if epochs are given
    # intervals in optimizer steps; None: never. 0.5ep may be 12.5 steps: the second interval ends at step 25
    log_every: float | None
    eval_every: float | None
    save_every: float | None
    stop_at_step: int | None = None  # process.stop_at_step
    rank_timing: RankTiming | None = None  # with several ranks: finds the rank that the others wait for
    replica_checks: ReplicaChecks = field(default_factory=ReplicaChecks)  # compares the weights of the ranks
    cost_per_sample: SampleCost = field(default_factory=SampleCost)  # tokens and FLOP per sample, for the logged speeds
    peek_batch: Callable[[], Batch] = dict  # returns this rank's next training batch; do not change it in place
    bn_batches: Loader | None = None  # batches for Task.bn_update_batches
    train: Loader | None = None  # training batches, as in `fit`
    train_set: Any = None  # may have a method `find_non_finite`, which names fields with inf or NaN
    # `with run.iterate_rows(rows) as batches`: these rows of the training set, (N,) int64, without random transforms,
    # each on one rank; batches have the field "row"
    iterate_rows: Callable[..., Loader] = Loader
    evaluations_in_progress: list[int] = field(default_factory=list)  # steps of the evaluations in progress
    last_bn_update: list[int] = field(default_factory=list)  # [step] of lab.average's last update of BatchNorm
    printed_once: set[str] = field(default_factory=set)  # keys of warnings that are printed once

    @property
    def directory(self) -> Path:
        """The run directory: config.yaml, metrics.jsonl, checkpoints/, ..."""
        return self.checkpoints.directory.parent

    def notify(self, event: str, state: TrainState, *values: Any) -> bool:
        """Call `event` of callbacks, with random numbers other than training's. Return whether any returned True."""
        returned: list[Any] = []
        for call in overridden_methods(self.callbacks, event):
            owner = type(getattr(call, "__self__", call)).__name__
            with self.watchdog.user_code(f"{owner}.{event}", state.step), StepRNG(state.step, self.world.device) as rng:
                rng.use_shared()
                returned.append(call(state, *values))
        return any(value is True for value in returned)

    @property
    def order(self) -> Any:
        """data.order. Change it on all ranks in the same way, between steps or in on_eval, then call `reorder`."""
        return StatefulOrder.of(self.train).order

    def reorder(self) -> None:
        """Read rows as `order` gives them now, from the next step on; sample ids continue. All ranks must call this
        after the same step. Raise ConfigError during an evaluation, RunFailed if the ranks' orders differ."""
        order = StatefulOrder.of(self.train)
        if self.evaluations_in_progress:
            raise ConfigError(
                "run.reorder(): not allowed during an evaluation, because a stopped evaluation is repeated and would "
                "change the order twice - call it in on_eval, or between steps"
            )
        order.take()
        values, step = numbers_in("data.order's state", order.state_dict()), self.watchdog.latest().step
        ReplicaChecks(self.replica_checks.step).check(values, step, self.world)
        assert self.train is not None
        self.train.reorder(order.use)


def may_skip(trainer: TrainerConfig, scaler: torch.amp.GradScaler | None) -> bool:
    """Return whether steps with gradients that are not finite are skipped. Otherwise they end the run."""
    return trainer.non_finite == "skip" or scaler is not None


def replicated_values(state: TrainState) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) for each value that must be equal on all ranks: weights, weight average, optimizer states,
    the task's saved buffers. Buffers of the model and running_* of the task are left out: they may differ by rank."""
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


def model_or_average(state: TrainState) -> nn.Module:
    """Return the model to evaluate: the weight average with the model's buffers, or the model if there is no average.
    With Task.bn_update_batches the average keeps its own BatchNorm statistics (lab.average)."""
    if state.ema is None:
        return state.model
    norms = [module for module in state.ema.modules() if isinstance(module, _BatchNorm)]
    kept = {id(buffer) for norm in norms for buffer in norm.buffers() if state.task.bn_update_batches}
    for averaged, buffer in zip(state.ema.buffers(), state.model.buffers()):
        if id(averaged) not in kept:
            averaged.copy_(buffer)
    return state.ema
