"""One optimizer step: losses, gradients, clipping and the optimizer; then, once per step, the task's `on_step_end` and
`project`, the weight average and the loss scale of fp16.

The loop passes an `OptimizerStep` to the task's train_step, which calls it:

    optimizer_step(objective, batches)              forward, backward, clip, update: enough for most methods
    optimizer_step.gradients(objective, batches)    forward and backward; leaves the gradients in p.grad
    optimizer_step.outputs(function, batches)       a forward pass without gradients, before the backward pass
    optimizer_step.parameters(objective)            the parameters that the objective's optimizer updates
    optimizer_step.update(objective)                clip the gradients in p.grad and update the parameters

Nothing here waits for the device, with three exceptions: an optimizer without a fused kernel if steps may be skipped,
an optimizer that needs a closure, and FSDP's CPU offload.
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
from lab.tasks.base import Batch, Task, losses_key, overrides
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
from samebits.torch_private import backward, closure_step, lean_step
from samebits.world import World, to_host


class OptimizerStep:
    """One optimizer step, which the task's train_step controls. loss_modules: {objective: LossModule, wrapped by DDP}.

    Methods return losses as 0-d tensors on the device. Their mean over ranks, which is logged, is the (weighted) mean
    over the samples of the global batch."""

    def __init__(
        self,
        loss_modules: Mapping[str, nn.Module],
        state: TrainState,
        trainer: TrainerConfig,
        hardware: Hardware,
        world: World,
        step_rng: StepRNG,
        after_all_reduce: Callable[[], None],
    ) -> None:
        self.loss_modules, self.state, self.trainer, self.hardware = loss_modules, state, trainer, hardware
        self.world, self.step_rng, self.after_all_reduce = world, step_rng, after_all_reduce
        self.norms: dict[str, Tensor] = {}  # {objective: gradient norm of its last update, before clipping}
        self.non_finite: dict[str, list[Tensor]] = {}  # {objective: for each update, 0-d, 1.0 if skipped}
        self.may_skip = may_skip(trainer, state.scaler)
        self.buffers_before = copy_buffers(self._buffers()) if self.may_skip else {}

    def __call__(self, objective: str, batches: Iterable[Batch]) -> dict[str, Tensor]:
        """Run forward, backward, clip and update for one objective. Return its losses."""
        values = self._backward(objective, batches, "loss")
        self.update(objective)
        return values

    def gradients(self, objective: str, batches: Iterable[Batch], loss_name: str = "loss") -> dict[str, Tensor]:
        """Run forward and backward on the step's micro-batches. Return the objective's losses.

        For each p of `parameters`, p.grad becomes the gradient of the loss `loss_name`, averaged over the global batch:
        0 if p affects only the loss "loss", because DDP waits for its gradient, and None if it affects neither.
        Each call replaces the gradients; they are not accumulated over calls."""
        values = self._backward(objective, batches, loss_name)
        if self.world.size > 1:  # copy: the next backward pass of DDP reuses this memory
            for p in self.parameters(objective):
                p.grad = None if p.grad is None else p.grad.clone()
        return values

    @torch.no_grad()
    def outputs(self, function: Callable[[Batch], Any], batches: Iterable[Batch]) -> list[Any]:
        """Return [function(batch), ...] for the step's micro-batches, computed without gradients under autocast.

        The next call of `gradients` or optimizer_step(...) starts from the same random state, so its dropout masks are
        the same if it draws in the same order. Buffers do not change. From the outputs a task can compute a loss across
        all samples of the step, as GradCache does (Gao et al. 2021)."""
        sizes, task = self.hardware.micro_batch_sizes, self.state.task
        with self.step_rng.repeatable([self.state.model, task]), self.hardware.autocast():
            return [function(batch) for _, batch in with_sizes(batches, sizes, task)]

    @property
    def model(self) -> nn.Module:
        """The model without wrappers, as passed to `losses` and `on_step_end` in training."""
        return self.state.model

    def parameters(self, objective: str) -> list[nn.Parameter]:
        """Return the parameters that this objective's optimizer updates."""
        return [p for group in self._optimizer(objective).param_groups for p in group["params"]]

    def update(self, objective: str, closure: Callable[[], Tensor] | None = None) -> None:
        """Clip the gradients in p.grad, update the parameters and set p.grad to None.

        closure: for an optimizer that needs one (torch.optim.LBFGS), a function that calls `gradients` and returns the
        loss, 0-d. Such an optimizer waits for the device. Raise ConfigError if clip_norm is set with a closure."""
        optimizer, trained = self._optimizer(objective), self.parameters(objective)
        limit = self.state.optimizer.clip_norms.get(objective, self.trainer.clip_norm)
        if closure is not None and limit is not None:
            own = objective in self.state.optimizer.clip_norms
            key = f"optim.objectives.{objective}.clip_norm" if own else "trainer.clip_norm"
            raise ConfigError(
                f"{key}={limit}: {type(optimizer).__name__} needs the gradients of the loss, not clipped ones - set "
                f"{key}=null"
            )
        with torch.set_grad_enabled(False):
            if overrides(self.state.task, "train_step"):  # only a task can set gradients with other strides
                match_strides(trained)
            closure_call = None if closure is None else Closure(self, objective, closure)
            norm = clip(gradients_of(trained), limit) if closure_call is None else closure_call.norm
            self.norms[objective], non_finite = norm, None
            if self.may_skip:
                # the gradients are averaged over ranks, so all ranks have the same norm and skip the same steps
                non_finite = norm.mul(0).ne_(0).to(torch.float32)  # 1.0 if inf or NaN (0 * inf is NaN), else 0.0
                self.non_finite.setdefault(objective, []).append(non_finite)
            update(optimizer, non_finite, closure_call)
        for p in trained:
            p.grad = None

    def end_step(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Finish the step after the task's train_step: on_step_end, project, weight average, loss scale. Return
        `values` with grad_norm (before clipping) and non_finite for each objective. If an update was skipped, the
        objective's losses and grad_norm are 0 and non_finite is 1. If the task overrides train_step, each value also
        has its own <name>/non_finite, because not every step returns every value."""
        state, device = self.state, self.world.device
        returned = set(values) if self.may_skip and overrides(state.task, "train_step") else set()
        for objective, norm in self.norms.items():
            prefix = f"{objective}/" if objective else ""
            values[f"{prefix}grad_norm"] = norm.to(device)  # with FSDP's CPU offload gradients are on the host
            if self.may_skip:
                # In the log, an objective counts as skipped if one of its updates was. Buffers and the task's changes
                # are undone only if all updates of the step were skipped.
                was_skipped = any_of(self.non_finite[objective]).to(device)
                names = [name for name in values if self._objective_of(name) == objective]
                values |= {name: torch.where(was_skipped > 0, 0.0, values[name]) for name in names}
                values |= {f"{name}/non_finite": was_skipped for name in names if name in returned}
                values[f"{prefix}non_finite"] = was_skipped
        skipped = self._skipped(self.norms)
        if state.rules < 2:  # runs that began with version 0.2 average before on_step_end: lab.options.RULES
            self._average()
        if acts := [name for name in ("on_step_end", "project") if overrides(state.task, name)]:
            # called even if the step was skipped, which only the device knows; restore_if then undoes the changes
            with restore_if(skipped, [*state.task.parameters(), *state.model.parameters()]):
                for name in acts:
                    with self._warn_of_writes(name):
                        getattr(state.task, name)(state.model)
        if state.rules >= 2:  # after the task's changes to the weights
            self._average()
        if skipped is not None:
            restore_buffers_if(self.buffers_before, self._buffers(), skipped)
        if state.scaler:
            flags = [flag for flags in self.non_finite.values() for flag in flags]
            update_scale(state.scaler, any_of(flags).to(device))
        return values

    def _average(self) -> None:
        """Update the weight average with the weights after this step, then call the task's `project` on it."""
        state = self.state
        if state.ema is None or not (objectives := [one for one in self.norms if self._trains_model(one)]):
            return
        factor, weights = self._average_inputs()
        if factor is None:
            return
        means = list(state.ema.parameters())
        # a task's factor counts steps, so a skipped one counts, too, with the weights that it has left as they were
        skipped = None if overrides(state.task, "averaging_factor") else self._skipped(objectives)
        update_average(local_parts(means), local_parts(weights), factor, skipped)
        if overrides(state.task, "project"):
            with restore_if(skipped, means):
                state.task.project(state.ema)

    @contextmanager
    def _warn_of_writes(self, name: str) -> Iterator[None]:
        """Warn once if `on_step_end` writes to the model's weights, which reaches the weight average only slowly.

        Only steps 1, 2, 4, 8, ... are checked: this finds a method that begins to write late, at almost no cost."""
        state, run = self.state, self.state.task.run.context
        due = name == "on_step_end" and state.ema is not None and state.step & (state.step + 1) == 0
        due = due and self.world.is_main and not overrides(state.task, "project")
        if not due or run is None or name in run.printed_once:
            yield
            return
        written: list[str] = []
        with observe_writes(state.model.named_parameters(), written):
            yield
        if written:
            run.printed_once.add(name)
            run.logger.warn(
                f"task: {type(state.task).__name__}.on_step_end changes the model's weights "
                f"({format_keys(written)}), which the weight average follows only slowly: change them in "
                "`project`, which is called with the model and with the average (docs/my_method.md)"
            )

    def _backward(self, objective: str, batches: Iterable[Batch], loss_name: str) -> dict[str, Tensor]:
        """Compute the gradients of the mean of the loss `loss_name` over this rank's samples in the step. Each
        micro-batch is weighted by its size, so that DDP's mean over ranks is the mean over the global batch."""
        state, task, scaler = self.state, self.state.task, self.state.scaler
        trained, net, sizes = self.parameters(objective), self.loss_modules[objective], self.hardware.micro_batch_sizes
        num_samples, autocast = sum(sizes), self.hardware.autocast
        totals: dict[str, Tensor] = {}
        weight = None  # sum of this rank's sample weights, if the task has weights
        self.step_rng.use_per_rank()
        for p in trained:
            p.grad = None  # an earlier call of `gradients` may have left one
        with torch.enable_grad(), requires_grad_only(objective, state) if objective else nullcontext():
            for i, (size, batch) in enumerate(with_sizes(batches, sizes, task)):
                with nullcontext() if i == len(sizes) - 1 else without_sync(net):
                    with autocast():
                        losses = net(batch)[0]  # keep no output: a language model's logits are large
                        weights = weights_with_padding_at_zero(task, batch)
                    check_losses(losses_key(task), losses, size, None if objective else task.loss_names, loss_name)
                    if weights is not None:
                        losses = {name: value * weights for name, value in losses.items()}
                        weight = weights.sum() if weight is None else weight + weights.sum()
                    loss = losses[loss_name]
                    if loss_name != "loss":
                        loss = loss + 0 * losses["loss"]  # because DDP waits for gradients of all parameters
                    gradient = loss.new_full((), 1 / num_samples)  # of the mean, by the loss of each sample
                    backward(loss, scaler.scale(gradient) if scaler else gradient)
                for name, value in losses.items():
                    mean = value.detach().sum() / num_samples
                    totals[name] = totals[name] + mean if name in totals else mean
        state.passed[objective] = state.passed.get(objective, 0) + self.trainer.global_batch_size
        self.after_all_reduce()
        self.step_rng.use_shared()  # the same random numbers on all ranks, so that updates are equal
        gradients = gradients_of(trained)
        if loss_name == "loss" and len(gradients) < len(trained):
            name_unused(net, [p for p in trained if p.grad is None], state.step)
        totals = self._rescaled(gradients, totals, weight)
        return totals if not objective else {f"{objective}/{name}": value for name, value in totals.items()}

    def _rescaled(self, gradients: list[Tensor], totals: dict[str, Tensor], weight: Tensor | None) -> dict[str, Tensor]:
        """Divide the gradients by the loss scale; divide gradients and losses by the mean sample weight of all ranks.

        weight: 0-d, the sum of this rank's sample weights, which the losses contain; None: no weights."""
        if self.state.scaler and gradients:  # before clipping, because clip_norm is for the true gradients
            scale = self.state.scaler.scale(torch.ones((), device=self.world.device))
            torch._foreach_mul_(local_parts(gradients), scale.reciprocal().to(gradients[0].device))
        if weight is not None:
            weight = self.world.all_reduce_sum(weight.detach().clone())
            num_samples = sum(self.hardware.micro_batch_sizes)
            factor = torch.where(weight > 0, num_samples * self.world.size / weight, 0.0)
            torch._foreach_mul_(local_parts(gradients), factor.to(gradients[0].device))  # CPU offload: on the host
            totals = {name: value * factor for name, value in totals.items()}
        return totals

    def _objective_of(self, name: str) -> str:
        """Return the objective of a logged value, by the prefix of its name."""
        return next((one for one in self.loss_modules if one and name.startswith(f"{one}/")), "")

    def _optimizer(self, objective: str) -> Optimizer:
        if objective not in self.loss_modules:
            raise ConfigError(
                f"task: {type(self.state.task).__name__}.train_step uses the objective {objective!r}, but "
                f"`objectives` returns {', '.join(map(repr, self.loss_modules))}"
            )
        return self.state.optimizer[objective]

    def _buffers(self) -> Iterator[tuple[str, Tensor]]:
        """Yield (name, buffer) for the buffers of model and task that a skipped step must not change."""
        state = self.state
        for name, buffer in state.task.named_buffers():
            if not name.startswith(tuple(f"{kept}." for kept in state.task.not_restored_on_skip)):
                yield f"task.{name}", buffer
        yield from ((f"model.{name}", buffer) for name, buffer in state.model.named_buffers())

    def _trains_model(self, objective: str) -> bool:
        """Return whether this objective's optimizer updates weights of the model."""
        return len(self.loss_modules) == 1 or trains(self.state.optimizer[objective], self.state.model)

    def _average_inputs(self) -> tuple[float | None, Iterator[Tensor]]:
        """Return (factor, weights) for `mean += factor * (weights - mean)`; factor None: the average stays unchanged.
        An optimizer with eval_weight computes its own average: its weights replace the mean (factor 1)."""
        state, decay, weights = self.state, self.trainer.ema_decay, self.state.model.parameters()
        averaging: dict[str, Any] = {
            k: one for k, one in state.optimizer.items() if hasattr(one, "eval_weight") and self._trains_model(k)
        }
        if averaging:
            eval_weights = {p: one.eval_weight(p) for k, one in averaging.items() for p in self.parameters(k)}
            return 1.0, (eval_weights.get(p, p) for p in weights)
        return state.task.averaging_factor(state.step) if decay is None else 1 - decay, weights

    def _skipped(self, objectives: Iterable[str]) -> Tensor | None:
        """Return 1.0 if all updates of these objectives were skipped, 0-d; None if steps are never skipped."""
        return all_of([flag for one in objectives for flag in self.non_finite[one]]) if self.may_skip else None


class Closure:
    """The task's closure for an optimizer, with the loss averaged over ranks, so that all ranks search the same way.

    The first loss and gradients are computed by __init__, because they decide whether the step is skipped."""

    def __init__(self, optimizer_step: OptimizerStep, objective: str, closure: Callable[[], Tensor]) -> None:
        self.optimizer_step, self.objective, self.closure = optimizer_step, objective, closure
        self.first_loss: Tensor | None = None
        self.first_loss, self.norm = self._computed()

    def __call__(self) -> Tensor:
        """Return the loss, 0-d, with the gradients in p.grad. The first call returns the loss of __init__."""
        loss, self.first_loss = self.first_loss, None
        return self._computed()[0] if loss is None else loss

    def _computed(self) -> tuple[Tensor, Tensor]:
        world = self.optimizer_step.world
        loss = world.all_reduce_sum(self.closure().detach().clone()) / world.size
        return loss, clip(gradients_of(self.optimizer_step.parameters(self.objective)), None)


def with_sizes(batches: Iterable[Batch], sizes: list[int], task: Task) -> Iterator[tuple[int, Batch]]:
    """Yield (size, micro-batch) for each size. Raise ConfigError if there are fewer micro-batches."""
    given = iter(batches)
    for size in sizes:
        batch = next(given, None)
        if batch is None:
            raise ConfigError(
                f"task: {type(task).__name__}.train_step passed fewer than {len(sizes)} micro-batches to "
                "optimizer_step: to use the step's micro-batches twice, keep them: batches = list(batches)"
            )
        yield size, batch


def weights_with_padding_at_zero(task: Task, batch: Batch) -> Tensor | None:
    """Return the task's sample weights (B,), with 0 for padding of an epoch's last batch; None: all are 1."""
    weights, is_real = task.sample_weights(batch), batch.get("is_real")
    if is_real is None:
        return weights
    return is_real.float() if weights is None else weights * is_real


@contextmanager
def requires_grad_only(objective: str, state: TrainState) -> Iterator[None]:
    """In this block, only the parameters of this objective's optimizer require a gradient."""
    trained = {id(p) for group in state.optimizer[objective].param_groups for p in group["params"]}
    others = [p for group in state.optimizer.param_groups for p in group["params"] if id(p) not in trained]
    for p in others:
        p.requires_grad_(False)
    try:
        yield
    finally:
        for p in others:
            p.requires_grad_(True)


def gradients_of(parameters: Iterable[nn.Parameter]) -> list[Tensor]:
    """Return the gradients of the parameters that have one."""
    return [p.grad for p in parameters if p.grad is not None]


def clip(gradients: list[Tensor], limit: float | None) -> Tensor:
    """Clip gradients in place to a global L2 norm of `limit` (Pascanu et al. 2013). Return the norm before clipping."""
    norm = global_norm(gradients)
    if limit is not None:
        torch._foreach_mul_(local_parts(gradients), (norm + 1e-6).reciprocal_().mul_(limit).clamp_(max=1.0))
    return norm


def update(optimizer: Optimizer, non_finite: Tensor | None, closure: Callable[[], Tensor] | None = None) -> None:
    """Call the optimizer's step, unless a gradient is not finite.

    non_finite: 0-d, 1 if a gradient is not finite; None if steps cannot be skipped (see may_skip). A
    fused kernel skips by itself; for other optimizers the host waits for this value."""
    if non_finite is not None:
        if takes_found_inf(optimizer):
            optimizer.found_inf = non_finite  # type: ignore[attr-defined]
        elif to_host(non_finite):
            return
    with on_shards(optimizer):
        # not scaler.step: the gradients are unscaled already, and non_finite is known
        lean_step(optimizer) if closure is None else closure_step(optimizer, closure)


def match_strides(parameters: Iterable[nn.Parameter]) -> None:
    """Give each gradient the strides of its weight: fused kernels ignore strides and read both as flat memory."""
    for p in parameters:
        if p.grad is not None and p.grad.stride() != p.stride():
            p.grad = torch.empty_like(p).copy_(p.grad)


def trains(optimizer: Optimizer, model: nn.Module) -> bool:
    """Return whether the optimizer updates a parameter of this model."""
    trained = {id(p) for group in optimizer.param_groups for p in group["params"]}
    return any(id(p) in trained for p in model.parameters())
