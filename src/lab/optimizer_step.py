"""One step's way from losses to weights: gradients, clipping, the optimizer; once a step the task's `on_step_end` and
`project`, the moving average and the loss scale.

A task's train_step is given an object of OptimizerStep, for its step:

    optimizer_step(objective, batches)              forward, backward, clip, update: what most methods need
    optimizer_step.gradients(objective, batches)    forward and backward; the gradients are left in p.grad
    optimizer_step.parameters(objective)            whose gradients these are
    optimizer_step.update(objective)                clip and update, by what is in p.grad then

Nothing here waits for the device, but for an optimizer without a fused kernel where steps may be skipped, and for a
closure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.options import TrainerConfig
from lab.state import TrainState, may_skip
from lab.tasks.base import Batch, Task, key_of_losses, overrides
from samebits.checkpoints import format_keys
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.parallel import name_unused, without_sync
from samebits.per_sample import check_losses
from samebits.profiling import observe_writes
from samebits.shards import global_norm, local_parts, on_shards
from samebits.steps import (
    StepRNG,
    all_of,
    any_of,
    copy_buffers,
    restore_buffers_if,
    restore_if,
    takes_found_inf,
    update_average,
    update_scale,
)
from samebits.torch_private import closure_step, lean_step
from samebits.world import World, to_host


class OptimizerStep:
    """The loop's parts for one step of the task. nets: {objective: its LossModule, wrapped}.

    Values that its methods return are 0-d tensors on the device: this rank's means, which the log averages over ranks.
    """

    def __init__(
        self,
        nets: Mapping[str, nn.Module],
        state: TrainState,
        trainer: TrainerConfig,
        machine: Hardware,
        world: World,
        step_rng: StepRNG,
        after_all_reduce: Callable[[], None],
    ) -> None:
        self.nets, self.state, self.trainer, self.machine = nets, state, trainer, machine
        self.world, self.step_rng, self.after_all_reduce = world, step_rng, after_all_reduce
        self.norms: dict[str, Tensor] = {}  # by objective: of its last update's gradients, before clipping
        self.non_finite: dict[str, list[Tensor]] = {}  # by objective: of each update 0-d, 1.0 where it was left out
        self.skips = may_skip(trainer, state.scaler)
        self.before = copy_buffers(self._buffers()) if self.skips else {}

    def __call__(self, objective: str, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Forward, backward, clip and update for one objective. Returns its losses."""
        values = self._backward(objective, batches, "loss")
        self.update(objective)
        return values

    def gradients(self, objective: str, batches: Iterable[Batch], term: str = "loss") -> dict[str, Tensor]:
        """Forward and backward of the step's micro-batches. Returns the objective's losses.

        Leaves in p.grad of `parameters` the gradients of the term's mean over all ranks' samples; None where the
        term does not reach. They are this call's: the next one leaves others, and does not add to these."""
        values = self._backward(objective, batches, term)
        if self.world.size > 1:  # DDP's own memory, which its next backward writes to
            for p in self.parameters(objective):
                p.grad = None if p.grad is None else p.grad.clone()
        return values

    @property
    def model(self) -> nn.Module:
        """The model, unwrapped, as `losses` and `on_step_end` are given it in training."""
        return self.state.model

    def parameters(self, objective: str) -> list[nn.Parameter]:
        """The parameters that this objective's optimizer moves."""
        return [p for group in self._optimizer(objective).param_groups for p in group["params"]]

    @torch.no_grad()
    def update(self, objective: str, closure: Callable[[], Tensor] | None = None) -> None:
        """Clip what is in p.grad, move the weights by it, and forget it.

        closure: for an optimizer that asks for one (torch.optim.LBFGS): computes the gradients anew, by `gradients`,
        and returns the loss. Such an optimizer waits for the device."""
        optimizer, limit = self._optimizer(objective), self.trainer.clip_norm
        if closure is not None and limit is not None:
            raise ConfigError(
                f"trainer.clip_norm={limit}: {type(optimizer).__name__} searches along the gradients of the loss, not "
                "along clipped ones - give trainer.clip_norm=null"
            )
        if overrides(self.state.task, "train_step"):  # backward() leaves gradients as the weights lie
            as_weights_lie(self.parameters(objective))
        again = None if closure is None else Closure(self, objective, closure)
        norm = self._clipped(objective) if again is None else again.norm
        self.norms[objective], non_finite = norm, None
        if self.skips:
            # all ranks hold the averaged gradients, so all see the same norm and take the same branch
            non_finite = norm.mul(0).ne_(0).to(torch.float32)  # 1.0 if inf or NaN (0 * inf is NaN), else 0.0
            self.non_finite.setdefault(objective, []).append(non_finite)
        update(optimizer, non_finite, again)
        for p in self.parameters(objective):
            p.grad = None

    @torch.no_grad()
    def end_step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """What happens once a step, whatever the task has called. Returns the values to be logged: those given, with
        each objective's gradient norm (before clipping), and whether its update was left out: then the others are 0."""
        state, device = self.state, self.world.device
        for objective, norm in self.norms.items():
            prefix = f"{objective}/" if objective else ""
            values[f"{prefix}grad_norm"] = norm.to(device)  # with FSDP's CPU offload gradients are on the host
            if self.skips:
                left_out = any_of(self.non_finite[objective]).to(device)
                names = [name for name in values if self._objective_of(name) == objective]
                values |= {name: torch.where(left_out > 0, 0.0, values[name]) for name in names}
                values[f"{prefix}non_finite"] = left_out
        skipped = self._skipped(self.norms)
        if state.rules < 2:
            self._average()
        if acts := [name for name in ("on_step_end", "project") if overrides(state.task, name)]:
            # after a skipped step too, whose traces are then wiped away
            with restore_if(skipped, [*state.task.parameters(), *state.model.parameters()]):
                for name in acts:
                    with self._writes_told(name):
                        getattr(state.task, name)(state.model)
        if state.rules >= 2:  # of the weights as the task has left them
            self._average()
        if skipped is not None:
            restore_buffers_if(self.before, self._buffers(), skipped)
        if state.scaler:
            flags = [flag for flags in self.non_finite.values() for flag in flags]
            update_scale(state.scaler, any_of(flags).to(device))
        return values

    def _average(self) -> None:
        """The step's weights enter the average of weights, which is then projected as they were."""
        state = self.state
        if state.ema is None or not (objectives := self._objectives_of(state.model)):
            return
        share, weights = self._enters_average(objectives)
        if share is None:
            return
        skipped, means = self._skipped(objectives), list(state.ema.parameters())
        update_average(local_parts(means), local_parts(weights), share, skipped)
        if overrides(state.task, "project"):
            with restore_if(skipped, means):
                state.task.project(state.ema)

    @contextmanager
    def _writes_told(self, name: str) -> Iterator[None]:
        """Warn once of an `on_step_end` that writes to the model's weights where an average of them is kept, which does not
        get the change.

        In the steps 1, 2, 4, 8, ... of the run, because pruning may begin late; other steps cost nothing."""
        state, run = self.state, self.state.task.run.training
        due = name == "on_step_end" and state.ema is not None and state.step & (state.step + 1) == 0
        if (
            not due
            or overrides(state.task, "project")
            or run is None
            or name in run.printed_once
            or not self.world.is_main
        ):
            yield
            return
        written: list[str] = []
        with observe_writes(state.model.named_parameters(), written):
            yield
        if written:
            run.printed_once.add(name)
            run.logger.warn(
                f"task: {type(state.task).__name__}.on_step_end changes the model's weights ({format_keys(written)}), and "
                "their average, which is scored, does not get the change: change them in `project`, which is called "
                "with the model and with its average (docs/my_method.md)"
            )

    def _backward(self, objective: str, batches: Iterable[Batch], term: str) -> dict[str, Tensor]:
        """The loss is the sum over samples divided by this rank's samples in the step. So micro-batches of unequal size
        are weighted correctly, and DDP's mean over ranks is the mean over the global batch."""
        state, task, scaler = self.state, self.state.task, self.state.scaler
        trained, net, sizes = self.parameters(objective), self.nets[objective], self.machine.micro_batch_sizes
        terms = None if objective else task.loss_names
        share, autocast = sum(sizes), self.machine.autocast
        totals: dict[str, Tensor] = {}
        weight = None  # sum of the samples' weights, for a task that weights them
        self.step_rng.use_per_rank()
        for p in trained:
            p.grad = None  # of a call of `gradients` before
        with torch.enable_grad(), only(objective, state) if objective else nullcontext():
            for i, (size, batch) in enumerate(as_many(batches, sizes, task)):
                with nullcontext() if i == len(sizes) - 1 else without_sync(net):
                    with autocast():
                        losses = net(batch)[0]  # logits of a large vocabulary would be held while the next are computed
                        weights = sample_weights(task, batch)
                    check_losses(key_of_losses(task), losses, size, terms, term)
                    if weights is not None:
                        losses = {name: value * weights for name, value in losses.items()}
                        weight = weights.sum() if weight is None else weight + weights.sum()
                    means = {name: value.sum() / share for name, value in losses.items()}
                    loss = means[term]
                    if term != "loss" and self.world.size > 1:
                        loss = loss + 0 * means["loss"]  # DDP waits for the gradients of all parameters
                    (scaler.scale(loss) if scaler else loss).backward()
                for name, value in means.items():
                    totals[name] = totals[name] + value.detach() if name in totals else value.detach()
        self.after_all_reduce()
        self.step_rng.use_shared()  # what moves the weights must move them alike on all ranks
        if term == "loss" and (unused := [p for p in trained if p.grad is None]):
            name_unused(net, unused, state.step)
        gradients = [p.grad for p in trained if p.grad is not None]
        totals = self._rescaled(gradients, totals, weight)
        return totals if not objective else {f"{objective}/{name}": value for name, value in totals.items()}

    def _rescaled(self, gradients: list[Tensor], totals: dict[str, Tensor], weight: Tensor | None) -> dict[str, Tensor]:
        """Take the loss scale from the gradients, and go from the mean over samples to that weighted by task.weights.

        weight: the sum of this rank's weights."""
        if self.state.scaler and gradients:  # before clipping: clip_norm limits the unscaled gradients
            scale = self.state.scaler.scale(torch.ones((), device=self.world.device))
            torch._foreach_mul_(local_parts(gradients), scale.reciprocal().to(gradients[0].device))
        if weight is not None:  # over all ranks
            weight = self.world.all_reduce_sum(weight.detach().clone())
            share = sum(self.machine.micro_batch_sizes)
            factor = torch.where(weight > 0, share * self.world.size / weight, 0.0)
            # with FSDP's CPU offload they are on the host
            torch._foreach_mul_(local_parts(gradients), factor.to(gradients[0].device))
            totals = {name: value * factor for name, value in totals.items()}
        return totals

    def _clipped(self, objective: str) -> Tensor:
        """Clip the gradients; returns their norm before."""
        return clip([p.grad for p in self.parameters(objective) if p.grad is not None], self.trainer.clip_norm)

    def _objective_of(self, name: str) -> str:
        """Whose value this is, by its name."""
        return next((one for one in self.nets if one and name.startswith(f"{one}/")), "")

    def _optimizer(self, objective: str) -> Optimizer:
        if objective not in self.nets:
            raise ConfigError(
                f"task: {type(self.state.task).__name__}.train_step asks for the objective {objective!r}; its "
                f"`objectives` has {', '.join(map(repr, self.nets))}"
            )
        return self.state.optimizer[objective]

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        """(name, buffer) of those that a skipped step leaves as they were: the model's and the task's."""
        state = self.state
        for name, buffer in state.task.named_buffers():
            if not name.startswith(tuple(f"{kept}." for kept in state.task.buffers_kept_on_skip)):
                yield f"task.{name}", buffer
        yield from ((f"model.{name}", buffer) for name, buffer in state.model.named_buffers())

    def _objectives_of(self, model: nn.Module) -> list[str]:
        """Those that had an update in this step, of weights of `model`."""
        return [one for one in self.norms if len(self.nets) == 1 or trains(self.state.optimizer[one], model)]

    def _enters_average(self, objectives: Iterable[str]) -> tuple[float | None, Iterator[Tensor]]:
        """(the share of this step's weights in the average, these weights): the model's parameters, or in the place of
        all that came before what an optimizer says is scored."""
        state, decay, weights = self.state, self.trainer.ema_decay, self.state.model.parameters()
        averaging: dict[str, Any] = {
            k: state.optimizer[k] for k in objectives if hasattr(state.optimizer[k], "eval_weight")
        }
        if averaging:
            scored = {p: one.eval_weight(p) for k, one in averaging.items() for p in self.parameters(k)}
            return 1.0, (scored.get(p, p) for p in weights)
        return state.task.averaging_factor(state.step) if decay is None else 1 - decay, weights

    def _skipped(self, objectives: Iterable[str]) -> Tensor | None:
        """1.0 where all updates of these objectives were left out, 0-d; None if none may be."""
        return all_of([flag for one in objectives for flag in self.non_finite[one]]) if self.skips else None


class Closure:
    """An optimizer's closure: the task's, with the loss averaged over the ranks, so that all take the same way. The
    first call's gradients are computed at once: they say whether the step is left out."""

    def __init__(self, optimizer_step: OptimizerStep, objective: str, closure: Callable[[], Tensor]) -> None:
        self.optimizer_step, self.objective, self.closure = optimizer_step, objective, closure
        self.known: Tensor | None = None
        self.known, self.norm = self._computed()

    def __call__(self) -> Tensor:
        loss, self.known = self.known, None
        return self._computed()[0] if loss is None else loss

    def _computed(self) -> tuple[Tensor, Tensor]:
        world = self.optimizer_step.world
        loss = world.all_reduce_sum(self.closure().detach().clone()) / world.size
        return loss, self.optimizer_step._clipped(self.objective)


def as_many(batches: Iterable[Batch], sizes: list[int], task: Task) -> Iterator[tuple[int, Batch]]:
    """(size, micro-batch), one for each size."""
    given = iter(batches)
    for size in sizes:
        batch = next(given, None)
        if batch is None:
            raise ConfigError(
                f"task: {type(task).__name__}.train_step has given optimizer_step fewer than the {len(sizes)} micro-batches "
                "of a step: to use them twice it must keep them, list(batches)"
            )
        yield size, batch


def sample_weights(task: Task, batch: Batch) -> Tensor | None:
    """(B,) of the samples: the task's; 0 for what fills up an epoch's last batch (data.order.drop_last=false)."""
    weights, counted = task.weights(batch), batch.get("counted")
    return weights if counted is None else counted.float() if weights is None else weights * counted


@contextmanager
def only(objective: str, state: TrainState) -> Iterator[None]:
    """In this block only this objective's parameters require a gradient; those of the other optimizers do not."""
    trained = {id(p) for group in state.optimizer[objective].param_groups for p in group["params"]}
    others = [p for group in state.optimizer.param_groups for p in group["params"] if id(p) not in trained]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)


def clip(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Clip the gradients in place to a global L2 norm of `limit` (Pascanu et al. 2013). Returns the norm before."""
    norm = global_norm(gradients)
    if limit is not None:
        torch._foreach_mul_(local_parts(gradients), (norm + 1e-6).reciprocal_().mul_(limit).clamp_(max=1.0))
    return norm


@torch.no_grad()
def update(optimizer: Optimizer, non_finite: Tensor | None, closure: Callable[[], Tensor] | None = None) -> None:
    """The optimizer's step.

    non_finite: with fp16 and trainer.non_finite=skip, 0-d, 1 where a gradient is not finite. Then the step is left out:
    by the fused kernel itself; for an optimizer without one the host waits for the device to say so.
    """
    if non_finite is not None:
        if takes_found_inf(optimizer):
            optimizer.found_inf = non_finite  # type: ignore[attr-defined]
        elif to_host(non_finite):
            return
    with on_shards(optimizer):
        # not scaler.step: gradients are unscaled, and the norm says if they are finite
        lean_step(optimizer) if closure is None else closure_step(optimizer, closure)


def as_weights_lie(parameters: Iterable[nn.Parameter]) -> None:
    """Gradients that a task has set, in their weights' order in memory: a fused kernel goes through both as one row of
    numbers, whatever their strides."""
    for p in parameters:
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def trains(optimizer: Optimizer, model: nn.Module) -> bool:
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in trained for p in model.parameters())
