"""Raise ConfigError, with the new name, if a user's code has a name of version 0.2. Remove this file after 0.3."""

from __future__ import annotations

from types import FunctionType, MethodType
from typing import Any

from lab.state import RunContext, TrainState
from lab.tasks.base import Task, TaskRun
from samebits.errors import ConfigError

METHOD, NAMES = (FunctionType, MethodType), (tuple, list)
# old name in a task: (new name, types of the old value)
OF_TASK: dict[str, tuple[str, type | tuple[type, ...]]] = {
    "numbered": ("needs_sample_ids", bool),
    "across_samples": ("needs_global_batch", bool),
    "carries": ("stateful", bool),
    "kept_if_skipped": ("not_restored_on_skip", NAMES),
    "waits": ("reads_device", bool),
    "frozen": ("frozen_networks", dict),
    "terms": ("loss_names", NAMES),
    "terms_of": ("loss_names_for", METHOD),
    "trained": ("objectives", METHOD),
    "attach": ("setup", METHOD),
    "updated": ("on_step_end", METHOD),
    "synchronize": ("sync_buffers", METHOD),
    "share_in_average": ("averaging_factor", METHOD),
    "weights": ("sample_weights", METHOD),
    "fresh_statistics": ("bn_update_batches", int),
}
OF_STATE = {
    "owes": "pending",
    "ended": "stop_reason",
    "stale": "evals_without_improvement",
    "totals": "running_sums",
    "trained": "parameter_names",
    "add": "add_to_sums",
}
OF_RUN = {
    "machine": "hardware",
    "renewed": "last_bn_update",
    "scan": "iterate_rows",
    "told": "printed_once",
    "balance": "rank_timing",
    "work": "cost_per_sample",
    "first_batch": "peek_batch",
    "epoch_samples": "samples_per_epoch",
    "statistics": "bn_batches",
    "buffers": "buffer_checks",
    "replicas": "replica_checks",
}


def check_task_names(task: Task) -> None:
    """Raise ConfigError if the task has an attribute or method with an old name, because it would be ignored."""
    for old, (new, kind) in OF_TASK.items():
        if isinstance(getattr(task, old, None), kind):
            raise ConfigError(f"task: {type(task).__name__}.{old} is called {new} since 0.3 - rename it")
    _check_draws("task", task)


def _check_draws(key: str, made: Any) -> None:
    if getattr(type(made), "draws", None) is False:
        raise ConfigError(f"{key}: {type(made).__name__}.draws = False is uses_rng = False since 0.3 - rename it")


def check_method(key: str, made: Any, new: str) -> None:
    """Raise ConfigError if an optimizer or schedule has the method `scored` of 0.2, because it would not be called."""
    if hasattr(made, "scored") and not hasattr(made, new):
        raise ConfigError(f"{key}: {type(made).__name__}.scored is called {new} since 0.3 - rename it")
    _check_draws(key, made)


def _name_the_new(kind: type, owner: str, names: dict[str, str]) -> None:
    """Make this class raise ConfigError when an attribute is read by its old name."""

    def missing(self: Any, name: str) -> Any:
        if name in names:
            raise ConfigError(f"{owner}.{name} is called {owner}.{names[name]} since 0.3 - rename it")
        raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")

    kind.__getattr__ = missing  # type: ignore[attr-defined]


_name_the_new(TrainState, "state", OF_STATE)
_name_the_new(RunContext, "run", OF_RUN)
_name_the_new(TaskRun, "task.run", {"training": "context"})
