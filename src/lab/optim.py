"""Optimizers: which parameters decay, how the learning rate moves, how a step starts lean."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.autograd import _profiler_enabled
from torch.optim import Optimizer
from torch.optim.optimizer import _global_optimizer_post_hooks, _global_optimizer_pre_hooks

from engine.config.schema import Positive, Share
from engine.errors import ConfigError
from engine.ranks.fsdp import is_sharded

FUSED_ON_PARTS = (torch.optim.Adam, torch.optim.AdamW)  # whose fused kernels know DTensors

# factor(step, total_steps) -> share of the peak learning rate for the step-th (from 0) update
Factor = Callable[[int, int], float]


def parameter_groups(model: nn.Module, weight_decay: float, decay_norms_and_biases: bool) -> list[dict[str, Any]]:
    """Trainable parameters; biases and norms (one dimension or none) are a group of their own, without decay."""
    trainable = [p for p in model.parameters() if p.requires_grad]
    if not trainable:
        raise ConfigError(f"model: {type(model).__name__} has no parameters that require a gradient: nothing to train")
    if decay_norms_and_biases or not weight_decay:
        return [{"params": trainable}]
    groups: list[dict[str, Any]] = [
        {"params": [p for p in trainable if p.dim() > 1]},
        {"params": [p for p in trainable if p.dim() <= 1], "weight_decay": 0.0},
    ]
    return [group for group in groups if group["params"]]


def build_optimizer(
    make: Callable[..., Optimizer], model: nn.Module, weight_decay: float, decay_norms_and_biases: bool
) -> Optimizer:
    """make(params, ...): the optimizer's class with its arguments; fused where class and device have that."""
    groups = parameter_groups(model, weight_decay, decay_norms_and_biases)
    target = make.func if hasattr(make, "func") else make
    given = getattr(make, "keywords", {})
    can_fuse = "fused" in inspect.signature(target).parameters
    if is_sharded(model) and not (inspect.isclass(target) and issubclass(target, FUSED_ON_PARTS)):
        can_fuse = False
        if given.get("fused"):
            raise ConfigError(f"optim.fused=true: torch has no fused {target.__name__} for trainer=fsdp - leave it out")
    if can_fuse and not {"fused", "foreach"} & set(given):
        try:
            return make(groups, fused=True)
        except RuntimeError:  # this class has no fused kernel for this device or dtype
            groups = parameter_groups(model, weight_decay, decay_norms_and_biases)
    return make(groups)


def check_optimizer(saved: list[dict[str, Any]], optimizer: Optimizer) -> None:
    """Raise a ConfigError where a checkpoint's groups (param_groups of its state dict) are not those of `optimizer`."""
    kind, own = type(optimizer).__name__, optimizer.param_groups
    names = [{name for group in groups for name in group} for groups in (saved, own)]
    if names[0] - names[1] and names[1] - names[0]:  # one way only: of another version of torch
        strange = ", ".join(sorted(names[0] - names[1]))
        raise ConfigError(
            f"optim: the checkpoint is of another optimizer than {kind}, which has no {strange}; keep the run's "
            "optim._target_, or begin another run"
        )
    counts = [[len(group["params"]) for group in groups] for groups in (saved, own)]
    if counts[0] != counts[1]:
        raise ConfigError(
            f"optim: the checkpoint's parameter groups have {counts[0]} parameters, those of this config {counts[1]}: "
            "a weight_decay of 0, decay_norms_and_biases and which parameters are trained stay as the run began; "
            "begin another run to change them"
        )


class Schedule:
    """Sets each group's learning rate to its peak times factor(updates, total_steps); `updates` counts optimizer steps.

    The rate is a function of the count alone, so a checkpoint needs nothing else.
    """

    def __init__(self, optimizer: Optimizer, factor: Factor, total_steps: int) -> None:
        self.optimizer, self.factor, self.total_steps = optimizer, factor, total_steps
        self.peaks = [group["lr"] for group in optimizer.param_groups]
        self.updates = 0
        self._set()

    def _set(self) -> None:
        factor = self.factor(self.updates, self.total_steps)
        for group, peak in zip(self.optimizer.param_groups, self.peaks):
            group["lr"] = peak * factor

    @property
    def last_lr(self) -> float:
        """Of the newest update; the optimizer holds that of the next."""
        return self.peaks[0] * self.factor(max(0, self.updates - 1), self.total_steps)

    def step(self) -> None:
        self.updates += 1
        self._set()

    def state_dict(self) -> dict[str, int]:
        return {"updates": self.updates}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.updates = state["updates"]
        self._set()


@dataclass(frozen=True)
class Constant:
    """warmup: share of all steps in which the rate rises linearly. The others build on it."""

    warmup: Share

    def __call__(self, step: int, total_steps: int) -> float:
        warmup_steps = round(self.warmup * total_steps)
        rise = min(1.0, (step + 1) / max(1, warmup_steps))
        gone, span = step - warmup_steps, total_steps - 1 - warmup_steps  # the last step is number total_steps - 1
        progress = gone / span if span > 0 else float(gone >= 0 and step > 0)  # one step after the warm-up is the last
        return rise * self.after(min(1.0, max(0.0, progress)), step / total_steps)

    def after(self, progress: float, done: float) -> float:
        """progress: 0 at the first step after the warm-up, 1 at the last step (a run of one step keeps the peak).
        done: share of all steps."""
        return 1.0


@dataclass(frozen=True)
class Linear(Constant):
    """final: the share of the peak that the last step has."""

    final: Share

    def after(self, progress: float, done: float) -> float:
        return 1 - (1 - self.final) * progress


@dataclass(frozen=True)
class Cosine(Constant):
    """Loshchilov & Hutter 2017 (SGDR), one period."""

    final: Share

    def after(self, progress: float, done: float) -> float:
        return self.final + (1 - self.final) * 0.5 * (1 + math.cos(math.pi * progress))


@dataclass(frozen=True)
class Step(Constant):
    """Multiplied by gamma at each milestone, a share of all steps."""

    milestones: Sequence[Share]
    gamma: Positive

    def after(self, progress: float, done: float) -> float:
        return self.gamma ** sum(done >= milestone for milestone in self.milestones)


def lean_step(optimizer: Optimizer) -> Callable[[], None]:
    """The optimizer's step without the wrappers that import torch._dynamo (a second at start-up) and cost at each step.

    optimizer.step itself, looked up at each call, wherever its wrappers have something to do: hooks of the optimizer or
    of all optimizers, a profiler that is recording, a `step` that was replaced. Any of them may come after this.
    """
    bare = inspect.unwrap(type(optimizer).step)

    def update() -> None:
        if (
            optimizer._optimizer_step_pre_hooks
            or optimizer._optimizer_step_post_hooks
            or _global_optimizer_pre_hooks
            or _global_optimizer_post_hooks
            or "step" in vars(optimizer)
            or _profiler_enabled()
        ):
            optimizer.step()
        else:
            with torch.no_grad():
                bare(optimizer)

    return update
