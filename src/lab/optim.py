"""Build an optimizer (parameter groups by weight decay and learning rate factor, fused kernels), check it against a
checkpoint, and set learning rates. The classes are in torch.optim, lab.optimizers and lab.schedules."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import zip_longest
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.schedules.constant import Constant
from samebits.checkpoints import Optimizers
from samebits.errors import ConfigError
from samebits.schema import regex
from samebits.shards import is_dtensor
from samebits.steps import FUSED
from samebits.torch_private import lean_step, needs_no_closure

# factor(step, total_steps) -> learning rate of step `step` / peak rate. step: from 0, including skipped steps
Factor = Callable[[int, int], float]
Named = Sequence[tuple[str, nn.Parameter]]
Steps = Optimizer | Optimizers  # one optimizer, or one for each objective


def trainable(modules: Iterable[tuple[str, nn.Module]]) -> Named:
    """Return (name, parameter) of all trainable parameters, each once. modules: (name prefix, module)."""
    named = {id(p): (prefix + name, p) for prefix, m in modules for name, p in m.named_parameters()}
    return [(name, p) for name, p in named.values() if p.requires_grad]


def parameter_groups(
    named: Named,
    weight_decay: float,
    decay_norms_and_biases: bool,
    lr_factors: Mapping[str, float] | None = None,
    others: Sequence[str] = (),
    key: str = "optim",
) -> list[dict[str, Any]]:
    """Return parameter groups by weight decay and learning rate factor. Biases and norms (0-d, 1-d) have no weight
    decay, unless decay_norms_and_biases.

    lr_factors: {regular expression: factor}; the first expression found in a parameter's name applies. others: names of
    other optimizers' parameters. key: of the optimizer, for messages. Raise ConfigError if an expression matches no
    name."""
    factors = {regex(pattern, f"{key}.lr_factors"): factor for pattern, factor in (lr_factors or {}).items()}
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
        text = min(pattern.pattern for pattern in unused)
        names = ", ".join(name for name, _ in named[:4])
        raise ConfigError(
            f"{key}.lr_factors: no trained parameter's name contains {text!r}; names are, for example, {names}"
        )
    return [group for _, group in sorted(groups.items(), key=lambda entry: (entry[0][0] != 1.0, not entry[0][1]))]


def build_optimizer(make: Callable[..., Optimizer], groups: Callable[[], list[dict[str, Any]]]) -> Optimizer:
    """Return make(groups()), with fused=True if the class and the devices support it.

    make: the optimizer's class with its arguments (a partial). groups: returns new parameter groups at each call,
    because optimizers modify them. Raise ConfigError if optim.fused=true is not possible.
    """
    target = make.func if hasattr(make, "func") else make
    if not getattr(target, "takes_names", False):  # remove the names: each checkpoint would contain them
        with_names = groups
        groups = lambda: [{k: v for k, v in group.items() if k != "param_names"} for group in with_names()]  # noqa: E731
    arguments = getattr(make, "keywords", {})
    can_fuse, why = "fused" in inspect.signature(target).parameters, ""
    if target is torch.optim.SGD and arguments.get("momentum") and arguments.get("dampening"):
        # the kernel cannot begin a momentum after the first step (samebits.steps.begin_momentum)
        why = "torch's fused SGD with dampening fails if a parameter gets its first gradient after the first step"
    sharded = any(is_dtensor(p) for group in groups() for p in group["params"])
    if sharded and not (inspect.isclass(target) and issubclass(target, FUSED)):
        why = f"torch has no fused {target.__name__} for trainer=fsdp"
    if why and arguments.get("fused"):
        raise ConfigError(f"optim.fused=true: {why} - remove it")
    if can_fuse and not why and not {"fused", "foreach"} & set(arguments) and runs_fused(make, groups()):
        return make(groups(), fused=True)
    return make(groups())


def runs_fused(make: Callable[..., Optimizer], groups: list[dict[str, Any]]) -> bool:
    """Return whether the class has correct fused kernels for these devices and dtypes. This takes a step of each: some
    kernels raise only in a step, and torch's fused SGD with momentum on a CPU ignores the first half-precision one."""
    for device, dtype in {(p.device, p.dtype) for group in groups for p in group["params"]}:
        # 64 elements, so that vector instructions run; zeros, because near 0 half precision keeps a small step
        fused, plain = (nn.Parameter(torch.zeros(64, device=device, dtype=dtype)) for _ in range(2))
        fused.grad, plain.grad = torch.ones_like(fused), torch.ones_like(plain)
        try:
            lean_step(make([fused], fused=True))
        except RuntimeError:
            return False
        if device.type == "cpu":
            lean_step(make([plain], fused=False))
            if not torch.allclose(fused, plain, rtol=0.05, atol=0):
                return False
    return True


def largest(node: Any, name: str) -> float:
    """Return the largest value of the key `name` in a config node and its nested nodes; 0 if the key is missing."""
    if not isinstance(node, Mapping):
        return 0.0
    return max([node.get(name) or 0.0, *(largest(inner, name) for inner in node.values())])


def check_optimizer(saved: list[dict[str, Any]], optimizer: Steps, kind: str) -> None:
    """Raise ConfigError if a checkpoint's param_groups do not fit `optimizer`.

    saved: param_groups of the checkpoint. kind: the optimizer class's name, for the message."""
    present = optimizer.param_groups
    pairs = [(set(a) - {"lr_factor"}, set(b)) for a, b in zip(saved, present)]
    # an error only if each lacks an option of the other: another version of torch may have added or removed options
    if strange := ", ".join(sorted({name for a, b in pairs if b - a for name in a - b})):
        raise ConfigError(
            f"optim: the checkpoint was written by another optimizer than {kind}, which has no {strange}; keep the "
            "run's optim._target_, or start a new run"
        )
    counts = [[len(group["params"]) for group in groups] for groups in (saved, present)]
    if counts[0] != counts[1]:
        raise ConfigError(
            f"optim: the checkpoint's parameter groups have {counts[0]} parameters, but this config gives {counts[1]}: "
            "a resume cannot change the layers, the trained parameters, decay_norms_and_biases, or weight_decay "
            "to or from 0; start a new run to change them"
        )
    # this option turns Adam into AdamW, and torch would use the checkpoint's value whatever the class is
    kinds = [tuple(group.get("decoupled_weight_decay") for group in pair) for pair in zip(saved, present)]
    if (turned := next((was for was, now in kinds if None not in (was, now) and was != now), None)) is not None:
        raise ConfigError(
            f"optim: the checkpoint was written by another optimizer than {kind}, with "
            f"decoupled_weight_decay={turned}; keep the run's optim._target_, or start a new run"
        )


def check_trained(saved: Sequence[str], present: Sequence[str]) -> None:
    """Raise ConfigError if a checkpoint's optimizer has trained other parameters than `present`. Its state_dict numbers
    the parameters, so otherwise a parameter would get the moments of another one. saved, present: names."""
    if list(saved) != list(present):
        a, b = next((a, b) for a, b in zip_longest(saved, present, fillvalue="no more") if a != b)
        raise ConfigError(
            f"optim: the checkpoint's optimizer trains other parameters than this config: {a} in the place of {b}; "
            "a resume cannot change the trained parameters and their groups - start a new run to change them"
        )


class Schedule:
    """Set each group's learning rate to peak * factor(step, total_steps). step: from 0, including skipped steps.

    factor: an object of lab.schedules, or another function of the step. If it follows the monitored score (Plateau),
    its state is saved in checkpoints. own_factors: {objective: factor} of objectives with another factor. rates: the
    groups' present rates, numbers on the host, so that nothing waits for the device.
    """

    def __init__(
        self, optimizer: Steps, factor: Factor, total_steps: int, own_factors: Mapping[str, Factor] | None = None
    ) -> None:
        # at least 1, because factors divide by it; trainer.max_steps=0 scores the initial weights
        self.optimizer, self.total_steps = optimizer, max(1, total_steps)
        self.factor: Any = factor
        self.own_factors: dict[str, Any] = dict(own_factors or {})
        by_objective: Mapping[str, Steps] = optimizer if isinstance(optimizer, Optimizers) else {"": optimizer}
        self.objectives = [name for name, part in by_objective.items() for _ in part.param_groups]  # of each group
        self.peak = by_objective.get("", optimizer).param_groups[0]["lr"]  # of groups without an lr_factor
        self.peaks = [group["lr"] * group.get("lr_factor", 1.0) for group in optimizer.param_groups]
        self.rates: list[float] = []
        self._device_rates: list[Tensor] = []  # only with keep_rates_on
        self.set_rates(0)

    def set_rates(self, step: int) -> None:
        """Set the groups' rates for step `step`, before it."""
        factors = {"": self.factor, **self.own_factors}
        own = {name: factor(step, self.total_steps) for name, factor in factors.items()}
        for name, value in own.items():
            if not hasattr(value, "__float__"):
                raise not_a_number(name, factors[name], value)
        shared = own.pop("")
        self.last_lr = self.peak * shared
        before = self.rates
        self.rates = [peak * own.get(name, shared) for peak, name in zip(self.peaks, self.objectives)]
        for on_device, rate, last in zip(self._device_rates, self.rates, before):
            if rate != last:
                on_device.fill_(rate)
        for group, lr in zip(self.optimizer.param_groups, self._device_rates or self.rates):
            group["lr"] = lr

    def keep_rates_on(self, device: torch.device) -> None:
        """Keep the rates as 0-d tensors on the device from here on, which a CUDA graph reads."""
        self._device_rates = [torch.tensor(rate, device=device) for rate in self.rates]

    @property
    def factors(self) -> dict[str, Factor]:
        """{key of the schedule in the config: factor}, without a shared factor that no group uses."""
        shared = {} if self.own_factors.keys() >= {*self.objectives} else {"": self.factor}
        return {schedule_key(name): factor for name, factor in {**shared, **self.own_factors}.items()}

    def logged_rates(self) -> dict[str, float]:
        """Return {"lr": rate} or, for named objectives, {"<objective>/lr": rate of the first group}."""
        groups = self.optimizer.param_groups
        first = {name: groups[self.objectives.index(name)] for name in self.objectives if name}
        shared = {"lr": self.last_lr} if "" in self.objectives else {}
        return shared | {f"{name}/lr": float(group["lr"]) for name, group in first.items()}

    def on_score(self, score: float, step: int) -> dict[str, float]:
        """Pass the monitored score of an evaluation to the factors. Return {objective: learning rate of the next step,
        `step`} of the objectives whose rate has changed. score: lower is better; negated if monitor.mode is max."""
        factors = {"": self.factor, **self.own_factors}
        changed = {
            name
            for name, factor in factors.items()
            if follows_scores(factor) and factor.on_score(score, step, self.total_steps)
        }
        rates = {}
        for name in dict.fromkeys(self.objectives):
            peak = self.peaks[self.objectives.index(name)] if name else self.peak
            if (used := name if name in self.own_factors else "") in changed:
                rates[name] = peak * factors[used](step, self.total_steps)
        return rates

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint."""
        state = {"last_lr": self.last_lr, "total_steps": self.total_steps}
        if follows_scores(self.factor):
            state["factor"] = self.factor.state_dict()
        own = {name: factor.state_dict() for name, factor in self.own_factors.items() if follows_scores(factor)}
        return state | ({"objectives": own} if own else {})

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state from a checkpoint."""
        if follows_scores(self.factor) and "factor" in state:
            self.factor.load_state_dict(state["factor"])
        for name, saved in state.get("objectives", {}).items():
            if follows_scores(self.own_factors.get(name)):
                self.own_factors[name].load_state_dict(saved)
        if "last_lr" in state:
            self.last_lr = state["last_lr"]
        else:  # an old checkpoint
            self.last_lr = self.peak * self.factor(max(0, state["updates"] - 1), self.total_steps)


def follows_scores(factor: Any) -> bool:
    """Return whether a factor follows the monitored score, as Plateau does. factor: an object or its class."""
    return hasattr(factor, "on_score")


def schedule_change(schedule: Schedule, saved: Mapping[str, Any], done: int) -> str:
    """Return a warning if the schedule of a resumed run has another length and therefore other rates; otherwise "".

    saved: the schedule's state in the checkpoint. done: steps done."""
    now = schedule.total_steps
    before = saved.get("total_steps", now)  # older checkpoints lack it
    last, lines = max(before, now), []
    for key, factor in schedule.factors.items() if before != now else ():
        if all(factor(k, before) == factor(k, now) for k in range(done, last, max(1, last // 1000))):
            continue
        rates = [factor(done, total) for total in (before, now)]
        if key == schedule_key(""):
            label, values = "the learning rate", [f"{schedule.peak * rate:.3g}" for rate in rates]
        else:
            label, values = "the factor of the learning rate", [f"{rate:.3g}" for rate in rates]
        lines.append(
            f"{key}: {type(factor).__name__} now has {now:,} steps instead of {before:,}; {label} of step {done + 1:,} "
            f"is {values[1]} instead of {values[0]}"
        )
    return "; ".join(lines)


def schedule_key(objective: str) -> str:
    """Return the key of an objective's schedule in the config."""
    return f"optim.objectives.{objective}.schedule" if objective else "optim.schedule"


def not_a_number(objective: str, factor: Any, value: Any) -> ConfigError:
    """Return the error for a schedule that returned `value`."""
    name = getattr(factor, "__name__", type(factor).__name__)
    return ConfigError(
        f"{schedule_key(objective)}: {name} returned {value!r:.80}: a schedule must return a number, the learning rate "
        "divided by the peak rate"
    )


def constants_in(factor: Any) -> list[Constant]:
    """Return the given schedule if it is a Constant (or a subclass), and those in its attributes (Plateau's warmup)."""
    parts = (factor, *getattr(factor, "__dict__", {}).values())
    return [part for part in parts if isinstance(part, Constant)]


def unreached_points(schedule: Schedule) -> list[str]:
    """Return a warning for each point of a schedule in epochs or steps (10ep) that the run does not reach."""
    lines = []
    for key, factor in schedule.factors.items():
        for constant in constants_in(factor):
            for name, point in constant.points():
                step = constant.step_of(name, point, schedule.total_steps)
                if isinstance(point, str) and step >= schedule.total_steps + (name == "warmup"):
                    lines.append(
                        f"{key}.{name}: {point} is after step {step:,}, but the run has only {schedule.total_steps:,} "
                        f"steps, so {'the peak rate is never reached' if name == 'warmup' else 'it has no effect'}"
                    )
    return lines


def check_closure(optimizer: Optimizer, key: str = "optim") -> None:
    """Raise ConfigError if the optimizer, or a part of it, needs a closure. key: its config key, for the message."""
    needs_no_closure(type(optimizer), key)  # type: ignore[arg-type]
    for part in getattr(optimizer, "parts", ()):
        check_closure(part, key)
