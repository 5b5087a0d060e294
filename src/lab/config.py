"""The whole config: the nodes that are built, the checks before anything is built, and `Config`, the typed groups."""

from __future__ import annotations

import math
from dataclasses import dataclass, fields
from typing import Any

from omegaconf import DictConfig

from lab.groups import (
    DataConfig,
    ObjectiveConfig,
    OptimConfig,
    PruningConfig,
    QuantizationConfig,
    RootConfig,
)
from lab.objective_optim import OptimNode, keys_of_objectives, nodes_of, with_objectives
from lab.options import MonitorConfig, TrainerConfig
from lab.project import PROJECT
from lab.target_checks import check_fit
from samebits.credentials import HIDDEN
from samebits.errors import ConfigError
from samebits.process import EngineGroups
from samebits.saved import flat
from samebits.schema import at, below_outputs, did_you_mean, plain, regex, show, split_own, typed
from samebits.targets import check_targets, complete, locate

# TARGETS: nodes that are built. COLLECTIONS: nodes whose entries are built. OWN_*: keys that the run reads itself
TARGETS = ("model", "data", "data.order", "optim", "optim.schedule", "task")
COLLECTIONS = ("data.transforms", "task.metrics", "callback")
OWN_OF_OBJECTIVE = tuple(f.name for f in fields(ObjectiveConfig))
OWN_KEYS = {group: tuple(f.name for f in fields(PROJECT.own[group])) for group in ("data", "optim")}
# arguments that the run adds when it builds a node
GIVEN_BY_RUN = {
    "data": ("split",),
    "data.order": ("dataset", "seed"),
    "optim": ("params",),
}


@dataclass(frozen=True, kw_only=True)
class Config(EngineGroups):
    """A resolved config as typed groups.

    given: the config as in config.yaml. values: the same as dicts and lists; see `with_run_values`. dataset, optimizer:
    the nodes `data` and `optim` without the keys of DataConfig and OptimConfig. optimizers: {objective: its node}; the
    node of all other objectives has the name ""."""

    given: DictConfig
    values: dict[str, Any]
    seed: int
    rules: int
    data: DataConfig
    dataset: dict[str, Any]
    optim: OptimConfig
    optimizer: dict[str, Any]
    optimizers: dict[str, OptimNode]
    trainer: TrainerConfig
    monitor: MonitorConfig
    pruning: PruningConfig
    quantization: QuantizationConfig

    @staticmethod
    def of(cfg: DictConfig) -> Config:
        """Return the typed config, checking types only: for a config that was checked when its run began."""
        return _config(cfg, typed(RootConfig, plain(cfg)))


def _config(given: DictConfig, root: RootConfig) -> Config:
    values = with_run_values(plain(given))
    data, dataset = split_own(values["data"], DataConfig, "data")
    optim, optimizer = split_own(values["optim"], OptimConfig, "optim")
    return Config(
        given=given, values=values, seed=root.seed, rules=root.rules, data=data, dataset=dataset, optim=optim,
        optimizer=optimizer, optimizers=nodes_of(optim, optimizer), trainer=root.trainer, monitor=root.monitor,
        pruning=root.pruning, quantization=root.quantization, **root.groups,
    )  # fmt: skip


def check(cfg: DictConfig, trains: bool = True) -> Config:
    """Return the resolved config, typed. Raise ConfigError for the first mistake. Does not change `cfg`.

    Torch is imported as late as possible, so that most mistakes are found without it.

    trains: False to evaluate or predict, which use one split of any name.
    """
    values = plain(cfg)
    for key, value in flat(values).items():
        if isinstance(value, str) and f"{HIDDEN}@" in value and not key.startswith("logger."):
            raise ConfigError(f"{key}: {value} has no password, because passwords are not saved; give {key}=...")
    for recipe in ("experiment", "debug"):
        if isinstance(values.get(recipe), dict):
            raise ConfigError(f"{recipe}: its yaml must begin with '# @package _global_'")
    if "name" in values:
        below_outputs(values["name"])  # first, because logger.project interpolates it
    root = typed(RootConfig, values, moved=PROJECT.moved_keys)
    data = split_own(root.data, DataConfig, "data")[0]
    split_own(root.optim, OptimConfig, "optim")  # checks the keys of `optim` before they are merged
    values = with_objectives(values)
    optimizers = nodes_of(*split_own(values["optim"], OptimConfig, "optim"))
    for node in optimizers.values():
        _check_lr_factors(node)
    root.check_groups(root.trainer, trains)
    _check_combinations(root)
    _check_compression(root)
    if any(size < 1 for size in data.input_shape):
        raise ConfigError(f"data.input_shape: every size must be >= 1, got {data.input_shape}")
    if trains and isinstance(splits := root.data.get("splits"), dict):
        _check_splits(splits)
    check_fit(values, {key: GIVEN_BY_RUN[key] for key in ("data.order", "optim")}, keys_of_objectives(values))
    _check_parts(root.data)
    parts, objectives = parts_of(values), keys_of_objectives(values)
    check_targets(
        PROJECT,
        values,
        (*TARGETS, *(f"{key}.order" for key in parts), *(key + end for key in objectives for end in ("", ".schedule"))),
        (*COLLECTIONS, *(f"{key}.transforms" for key in parts), *(["data.parts"] if parts else [])),
        OWN_KEYS | dict.fromkeys(parts, OWN_KEYS["data"]) | dict.fromkeys(objectives, OWN_OF_OBJECTIVE),
        given_by_run(values),
        defaults=default_arguments(values),
    )
    _check_monitor(root.monitor, values, is_new=trains and root.rules >= 4)
    for node in optimizers.values():
        key = f"{node.key}.schedule"
        schedule = locate(PROJECT, node.options.schedule["_target_"], key)
        if root.trainer.eval_every is None and hasattr(schedule, "on_score"):
            raise ConfigError(
                f"{key}: {schedule.__name__} needs {root.monitor.key}, but trainer.eval_every is null - set "
                "trainer.eval_every=20, for example, or use optim/schedule=constant"
            )
    return _config(cfg, root)


def with_run_values(values: dict[str, Any]) -> dict[str, Any]:
    """Return a copy of the plain config with complete `optim.objectives`, and with PROJECT.default_arguments (the seed,
    the batch size) in the nodes whose classes have them."""
    values = with_objectives(values)
    return complete(PROJECT, values, default_arguments(values), given_by_run(values))  # type: ignore[no-any-return]


def default_arguments(values: dict[str, Any]) -> dict[str, Any]:
    """Return {argument: value} of PROJECT.default_arguments, which classes get if their nodes do not set them."""
    return {name: at(values, key.split(".")) for name, key in PROJECT.default_arguments.items()}


def given_by_run(values: dict[str, Any]) -> dict[str, tuple[str, ...]]:
    """Return GIVEN_BY_RUN with those of `data.parts` and the optimizers of objectives added."""
    parts = {key + end: GIVEN_BY_RUN[f"data{end}"] for key in parts_of(values) for end in ("", ".order")}
    return GIVEN_BY_RUN | parts | dict.fromkeys(keys_of_objectives(values), GIVEN_BY_RUN["optim"])


def parts_of(values: dict[str, Any]) -> list[str]:
    """Return the keys of `data.parts`, each a node like `data`; [] if the data set has no parts."""
    data = values["data"]
    parts = data.get("parts") if data.get("_target_") == "lab.datasets.mixed.Mixed" else None
    return [f"data.parts.{name}" for name in parts] if isinstance(parts, dict) else []


def set_processes(cfg: Any, num_procs: int) -> None:
    """Change `cfg` in place to `num_procs` processes with the whole model in each, whatever trainer.strategy is."""
    cfg.hardware.num_procs = "auto" if num_procs == 1 else num_procs
    cfg.hardware.cuda_graph = False  # for training steps only; an error on a CPU
    cfg.trainer.strategy, cfg.trainer.sync_batchnorm = "single" if num_procs == 1 else "ddp", False
    cfg.trainer.global_batch_size = -(-cfg.trainer.global_batch_size // num_procs) * num_procs
    for name, value in cfg.trainer.ddp.items():
        cfg.trainer.ddp[name] = False if isinstance(value, bool) else None


def _check_lr_factors(node: OptimNode) -> None:
    for pattern, factor in node.options.lr_factors.items():
        regex(pattern, f"{node.key}.lr_factors")
        if isinstance(factor, bool) or not isinstance(factor, (int, float)) or not 0 <= factor < math.inf:
            raise ConfigError(
                f"{node.key}.lr_factors: {pattern}: expected a factor of the learning rate, got {show(factor)}"
            )


def _check_combinations(root: RootConfig) -> None:
    trainer = root.trainer
    if root.hardware.cuda_graph and root.profiler.kind == "simple":
        raise ConfigError(
            "hardware.cuda_graph=true: profiler=simple cannot time the parts of a captured step - use profiler=torch"
        )
    if trainer.max_steps is None and trainer.max_epochs is None:
        raise ConfigError("trainer.max_steps, trainer.max_epochs: both are null - give one of them")
    if trainer.early_stop_patience is not None and trainer.eval_every is None:
        raise ConfigError("trainer.early_stop_patience: needs evaluations, but trainer.eval_every is null - set it")


def _check_compression(root: RootConfig) -> None:
    pruning = root.pruning
    for key, switch in (("pruning", "sparsity"), ("quantization", "weight_bits")):
        given = getattr(root, key)
        changed = [f.name for f in fields(given) if getattr(given, f.name) != getattr(type(given)(), f.name)]
        if changed and getattr(given, switch) is None:
            raise ConfigError(
                f"{key}.{changed[0]}={getattr(given, changed[0])}: has no effect, because {key}.{switch} is null"
            )
    if pruning.end < pruning.start:
        raise ConfigError(f"pruning.end={pruning.end}: must be at least pruning.start={pruning.start}")
    if root.trainer.strategy == "fsdp" and pruning.sparsity is not None:
        raise ConfigError(
            f"trainer=fsdp: pruning.sparsity={pruning.sparsity} compares all weights of a layer, but each process has "
            "only a shard - use trainer=ddp"
        )


def _check_parts(data: dict[str, Any]) -> None:
    for key in parts_of({"data": data}):
        node = data["parts"][key.removeprefix("data.parts.")]
        if not isinstance(node, dict) or "_target_" not in node:
            raise ConfigError(f"{key}: is not a data set - choose one, such as +data@{key}=h5, or give its _target_")
        for name in ("loader", "num_workers"):
            if node.get(name, "auto") != "auto":
                raise ConfigError(
                    f"{key}.{name}={node[name]}: has no effect, because all parts share data.{name} - set that"
                )
        order = node.get("order")
        if not isinstance(order, dict) or order.get("_partial_") is not True:
            raise ConfigError(f"{key}.order: give one, with _partial_: true, as in conf/data/order")


def _check_splits(splits: dict[str, Any]) -> None:
    for name in (str(name) for name, node in splits.items() if node is not None):
        if not name.startswith(("train", "val", "test")) or "/" in name:
            raise ConfigError(
                f"data.splits.{name}: names of splits must begin with train, val (evaluated during training) or test "
                f"(evaluated at the end), such as val_{name} - rename it, or set it to null"
            )


def score_names(values: dict[str, Any], *prefixes: str) -> list[str]:
    """Return <split>/<name> of all scores, for the splits whose names begin with a prefix ("val": val, val_hard, ...).

    values: the whole config as plain values. A metric with several scores also logs <split>/<metric>/<name>. Imports
    the task's class, and with it torch."""
    splits = values["data"].get("splits")
    named = isinstance(splits, dict) and bool(splits)  # otherwise the data set has another argument of this name
    known = [name for name, node in splits.items() if node is not None] if named else ["val", "test"]
    task = values["task"]
    loss_names_for = getattr(locate(PROJECT, task["_target_"], "task"), "loss_names_for", lambda arguments: ())
    names = ["loss", *loss_names_for(task), *(task.get("metrics") or {})]
    return [f"{split}/{name}" for split in known if split.startswith(prefixes) for name in names]


def _check_monitor(monitor: MonitorConfig, values: dict[str, Any], is_new: bool) -> None:
    scores = score_names(values, "val") or score_names(values | {"data": {}}, "val")  # no val split: monitor is unused
    if monitor.key not in scores and not monitor.key.startswith(tuple(f"{score}/" for score in scores)):
        hint = did_you_mean(monitor.key, scores)
        raise ConfigError(f"monitor.key: no score {show(monitor.key)}{hint} (scores: {', '.join(scores)})")
    name = monitor.key.split("/")[1]
    higher = False if name == "loss" else None
    if node := (values["task"].get("metrics") or {}).get(name):
        higher = getattr(locate(PROJECT, node["_target_"], f"task.metrics.{name}"), "higher_is_better", None)
    if is_new and higher is (monitor.mode == "min"):  # a run of an older version keeps its mode
        better, mode = ("higher", "max") if higher else ("lower", "min")
        raise ConfigError(f"monitor.mode={monitor.mode}: {monitor.key} is better if {better} - set monitor.mode={mode}")
