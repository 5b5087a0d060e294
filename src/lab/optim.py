"""What the run does with any optimizer and schedule: parameter groups (weight decay, learning rate factors), fused
kernels, rates. The classes are in lab.optimizers and lab.schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any, Protocol, TypeGuard

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import ConfigError
from samebits.schema import regex
from samebits.shards import is_part
from samebits.steps import FUSED
from samebits.torch_private import lean_step

# factor(step, total_steps) -> factor of the peak learning rate in step number `step`, from 0, skipped ones included
Factor = Callable[[int, int], float]


Named = Sequence[tuple[str, nn.Parameter]]


class HasGroups(Protocol):
    """An optimizer, or several of them as lab.state.Optimizers."""

    @property
    def param_groups(self) -> list[dict[str, Any]]: ...


def trainable(modules: Iterable[tuple[str, nn.Module]]) -> Named:
    """Returns (name, parameter) of all that require a gradient, shared ones once. modules: (name prefix, module)."""
    named = {id(p): (prefix + name, p) for prefix, m in modules for name, p in m.named_parameters()}
    return [(name, p) for name, p in named.values() if p.requires_grad]


def parameter_groups(
    named: Named,
    weight_decay: float,
    decay_norms_and_biases: bool,
    lr_factors: Mapping[str, float] | None = None,
    others: Sequence[str] = (),
) -> list[dict[str, Any]]:
    """Returns parameter groups by weight decay and learning rate factor. Biases and norms (0-d, 1-d) have no decay
    unless decay_norms_and_biases. lr_factors: {regular expression: factor}; the first that is found in the name holds.
    others: names of other optimizers' parameters, which lr_factors may mean too."""
    factors = {regex(pattern, "optim.lr_factors"): factor for pattern, factor in (lr_factors or {}).items()}
    unused = set(factors)
    groups: dict[tuple[float, bool], dict[str, Any]] = {}
    for name, p in named:
        pattern = next((pattern for pattern in factors if pattern.search(name)), None)
        unused.discard(pattern)  # type: ignore[arg-type]
        factor = 1.0 if pattern is None else factors[pattern]
        decays = p.dim() > 1 or decay_norms_and_biases or not weight_decay
        group = groups.setdefault((factor, decays), {"params": [], "param_names": []})
        group["params"].append(p)
        group["param_names"].append(name)
        if not decays:
            group["weight_decay"] = 0.0
        if factor != 1.0:
            group["lr_factor"] = factor
    if unused := {pattern for pattern in unused if not any(map(pattern.search, others))}:
        text = min(one.pattern for one in unused)
        names = ", ".join(name for name, _ in named[:4])
        raise ConfigError(f"optim.lr_factors: no trained parameter's name holds {text!r}; names are such as {names}")
    return [group for _, group in sorted(groups.items(), key=lambda entry: (entry[0][0] != 1.0, not entry[0][1]))]


def build_optimizer(make: Callable[..., Optimizer], groups: Callable[[], list[dict[str, Any]]]) -> Optimizer:
    """Returns make(params), with fused=True where the class and the device support it.

    make: the optimizer's class with its arguments (a partial). groups: returns new parameter groups at each call, as an
    optimizer modifies them.
    """
    target = make.func if hasattr(make, "func") else make
    if not getattr(target, "takes_names", False):  # they would be saved with each checkpoint
        with_names = groups
        groups = lambda: [{k: v for k, v in group.items() if k != "param_names"} for group in with_names()]  # noqa: E731
    given = getattr(make, "keywords", {})
    can_fuse = "fused" in inspect.signature(target).parameters
    sharded = any(is_part(p) for group in groups() for p in group["params"])
    if sharded and not (inspect.isclass(target) and issubclass(target, FUSED)):
        can_fuse = False
        if given.get("fused"):
            raise ConfigError(f"optim.fused=true: torch has no fused {target.__name__} for trainer=fsdp - leave it out")
    if can_fuse and not {"fused", "foreach"} & set(given) and runs_fused(make, groups()):
        return make(groups(), fused=True)
    return make(groups())


def runs_fused(make: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> bool:
    """Whether the class has a fused kernel for these devices and dtypes. Some say so only in a step: one number's."""
    for device, dtype in {(p.device, p.dtype) for group in groups for p in group["params"]}:
        probe = nn.Parameter(torch.zeros(1, device=device, dtype=dtype))
        probe.grad = torch.zeros_like(probe)
        try:
            lean_step(make([probe], fused=True))
        except RuntimeError:
            return False
    return True


def largest(node: Any, name: str) -> float:
    """Returns the largest value of the key `name` in a config node and the nodes nested in it; 0 if there is none."""
    if not isinstance(node, Mapping):
        return 0.0
    return max([node.get(name) or 0.0, *(largest(inner, name) for inner in node.values())])


def check_optimizer(saved: list[dict[str, Any]], optimizer: HasGroups, kind: str) -> None:
    """Raise a ConfigError where a checkpoint's groups (param_groups of its state dict) are not those of `optimizer`.

    kind: the optimizer class's name, for the message."""
    present = optimizer.param_groups
    pairs = [(set(a) - {"lr_factor"}, set(b)) for a, b in zip(saved, present)]
    # names that only one side has come from another version of torch
    if strange := ", ".join(sorted({name for a, b in pairs if b - a for name in a - b})):
        raise ConfigError(
            f"optim: the checkpoint is of another optimizer than {kind}, which has no {strange}; keep the run's "
            "optim._target_, or begin another run"
        )
    counts = [[len(group["params"]) for group in groups] for groups in (saved, present)]
    if counts[0] != counts[1]:
        raise ConfigError(
            f"optim: the checkpoint's parameter groups have {counts[0]} parameters, those of this config {counts[1]}: "
            "the model's layers, a weight_decay of 0, decay_norms_and_biases and which parameters are trained stay as "
            "the run began; begin another run to change them"
        )
    # an argument of Adam that makes it AdamW; the checkpoint's value would be computed with, whatever the class
    kinds = [{group.get("decoupled_weight_decay") for group in groups} for groups in (saved, present)]
    if None not in kinds[0] | kinds[1] and kinds[0] != kinds[1]:
        raise ConfigError(
            f"optim: the checkpoint is of another optimizer than {kind}, with decoupled_weight_decay={kinds[0].pop()}; "
            "keep the run's optim._target_, or begin another run"
        )


def check_trained(saved: Sequence[str], present: Sequence[str]) -> None:
    """Raise a ConfigError where a checkpoint's optimizer has moved other parameters than `present`: it knows them by
    their number, and would move these by the others' moments."""
    if list(saved) != list(present):
        a, b = next((a, b) for a, b in zip_longest(saved, present, fillvalue="no more") if a != b)
        raise ConfigError(
            f"optim: the checkpoint's optimizer trains other parameters than this config's: {a} where this has {b}; "
            "which are trained, and in which groups, stays as the run began - begin another run to change it"
        )


class Schedule:
    """Sets each group's learning rate to peak * factor(step, total_steps). step: from 0, skipped ones included.

    The rate depends on the step, and on what a factor that follows the scores has seen (Plateau), which a checkpoint
    holds. It is a number of the host (`rates`, of each group): a kernel takes it as an argument, and nothing waits.
    """

    def __init__(self, optimizer: HasGroups, factor: Factor, total_steps: int) -> None:
        # at least 1: trainer.max_steps=0 scores fresh weights, and factors divide by it
        self.optimizer, self.factor, self.total_steps = optimizer, factor, max(1, total_steps)
        self.peak = optimizer.param_groups[0]["lr"]  # of groups without an lr_factor
        self.peaks = [group["lr"] * group.get("lr_factor", 1.0) for group in optimizer.param_groups]
        self.rates: list[float] = []
        self._held: list[Tensor] = []
        self.set_rates(0)

    def set_rates(self, step: int) -> None:
        """Before step number `step`."""
        factor = self.factor(step, self.total_steps)
        self.last_lr = self.peak * factor
        before, self.rates = self.rates, [peak * factor for peak in self.peaks]
        for held, rate, last in zip(self._held, self.rates, before):
            if rate != last:
                held.fill_(rate)
        for group, own in zip(self.optimizer.param_groups, self._held or self.rates):
            group["lr"] = own

    def hold_on(self, device: torch.device) -> None:
        """From here on the rates are 0-d tensors of the device, each at a place of its own: what a CUDA graph reads."""
        self._held = [torch.tensor(rate, device=device) for rate in self.rates]

    def on_score(self, score: float, step: int) -> float | None:
        """After each evaluation, with the monitored score, turned so that less is better. Returns the learning rate of
        the next step, number `step`, if the score has changed it."""
        changed = follows_scores(self.factor) and self.factor.on_score(score, step, self.total_steps)
        return self.peak * self.factor(step, self.total_steps) if changed else None

    def state_dict(self) -> dict[str, Any]:
        held = {"factor": self.factor.state_dict()} if follows_scores(self.factor) else {}
        return {"last_lr": self.last_lr, "total_steps": self.total_steps, **held}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        if follows_scores(self.factor) and "factor" in state:
            self.factor.load_state_dict(state["factor"])
        if "last_lr" in state:
            self.last_lr = state["last_lr"]
        else:  # of an older version
            self.last_lr = self.peak * self.factor(max(0, state["updates"] - 1), self.total_steps)


class ScoreFactor(Protocol):
    """A factor that follows the monitored score: its state is saved, and the same on all ranks."""

    def __call__(self, step: int, total_steps: int) -> float: ...
    def on_score(self, score: float, step: int, total_steps: int) -> bool: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state: dict[str, Any]) -> None: ...


def follows_scores(factor: Any) -> TypeGuard[ScoreFactor]:
    """factor: an object or its class."""
    return hasattr(factor, "on_score")


def stretched(schedule: Schedule, saved: Mapping[str, Any], done: int) -> str:
    """A line if a resumed run's schedule has another length than before and so other rates; else empty. saved: the
    checkpoint's state of it. done: steps."""
    factor, now = schedule.factor, schedule.total_steps
    before = saved.get("total_steps", now)  # older checkpoints lack it
    last = max(before, now)
    if before == now or all(factor(k, before) == factor(k, now) for k in range(done, last, max(1, last // 1000))):
        return ""
    rates = [f"{schedule.peak * factor(done, total):.3g}" for total in (before, now)]
    return (
        f"optim.schedule: {type(factor).__name__} goes on over {now:,} steps instead of {before:,}; the learning rate "
        f"of step {done + 1:,} is {rates[1]} instead of {rates[0]}"
    )


def check_closure(optimizer: Optimizer, target: str) -> None:
    """Raise a ConfigError for an optimizer, or a part of one, that takes no step without a closure. target: its class,
    for the message."""
    step = inspect.signature(type(optimizer).step).parameters.get("closure")
    if step is not None and step.default is inspect.Parameter.empty:
        raise ConfigError(
            f"optim._target_={target}: {type(optimizer).__name__} needs a task whose train_step gives a closure: "
            "optimizer_step.update(objective, closure) - use such a task, or another optimizer (optim=adamw)"
        )
    for part in getattr(optimizer, "parts", ()):
        check_closure(part, target)
