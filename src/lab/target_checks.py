"""Check that allowed targets are in the right place (no torch.nn loss as task.criterion), without importing torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from samebits.errors import ConfigError
from samebits.schema import NotNegative, Rule, at, check_limits

Fraction = Annotated[float, Rule(at_least=0, below=1)]
# limits of arguments that torch's optimizers share
OPTIMIZER_LIMITS = {
    "lr": NotNegative,
    "weight_decay": NotNegative,
    "momentum": Fraction,
    "eps": NotNegative,
    "betas": list[Fraction],
}
CALLED_WITH_A_BATCH = (
    "takes (output, target), but it is called with (output, batch) and must return one value per sample, (B,) - "
    "write a class like the one in"
)
# key: (prefixes of _target_, why these do not fit)
MISFITS = {
    "optim.schedule": (
        ("torch.optim.lr_scheduler.",),
        "changes an optimizer itself; a schedule here is a class that is called with (step, total_steps) and returns "
        "a factor of the peak learning rate - see src/lab/schedules/cosine.py, or plateau.py in the same folder for "
        "one that follows a score",
    ),
    "task.criterion": (
        ("torch.nn.", "torchmetrics."),
        f"{CALLED_WITH_A_BATCH} src/lab/losses/squared_error.py",
    ),
    "task.metrics": (("torch.nn.",), f"{CALLED_WITH_A_BATCH} src/lab/metrics/absolute_error.py"),
}


def check_fit(values: Mapping[str, Any], partial: Mapping[str, Sequence[str]], objectives: Sequence[str]) -> None:
    """Raise ConfigError for a target that does not fit its key, or lacks _partial_.

    values: the whole config. partial: {key of a node that needs _partial_: true: arguments that the run adds later}.
    objectives: keys of further optimizers."""
    task, nodes = values["task"], {"data.order": values["data"]["order"]}
    for key in ("optim", *objectives):
        optim = at(values, key.split("."))
        for name, limits in OPTIMIZER_LIMITS.items():
            check_limits(optim.get(name), limits, f"{key}.{name}")
        nodes |= {key: optim, f"{key}.schedule": optim["schedule"]}
    nodes |= {"task.criterion": task.get("criterion")}
    if isinstance(metrics := task.get("metrics"), Mapping):  # check_targets reports others
        nodes |= {f"task.metrics.{name}": node for name, node in metrics.items()}
    for key, node in nodes.items():
        target = node.get("_target_") if isinstance(node, Mapping) else None
        if not isinstance(target, str):
            continue  # check_targets reports it
        is_schedule = key.startswith("optim.") and key.endswith(".schedule")
        place = "optim.schedule" if is_schedule else ".".join(key.split(".")[:2])
        beginnings, why = MISFITS.get(place, ((), ""))
        if target.startswith(beginnings):
            raise ConfigError(f"{key}._target_: {target} {why}")
        added = partial.get("optim" if key in objectives else key)
        if added and node.get("_partial_") is not True:
            raise ConfigError(f"{key}._partial_: must be true - the run adds {' and '.join(added)} itself")
