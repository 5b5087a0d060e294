"""The data that the config names: data sets, transforms, and the loaders of training batches and evaluations."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lab.config import Config
from lab.groups import mixed_parts
from lab.h5_errors import h5_mistakes
from lab.options import TrainerConfig
from lab.project import PROJECT
from lab.tasks.base import Batch, Task
from lab.transforms.fields import compose
from lab.transforms.spec import described
from samebits.children import note_progress
from samebits.compiling import CompiledChain
from samebits.data import (
    Loader,
    Plan,
    Stream,
    Transform,
    check_indexed,
    drawing,
    evaluation_plan,
    is_stream,
    seed_of_split,
    training_plan,
)
from samebits.device import Hardware
from samebits.errors import ConfigError
from samebits.host import cores_each
from samebits.targets import construct, constructing, locate, of_kind
from samebits.world import World, dist_env


def task_class(config: Config) -> type[Task]:
    """Returns the class that the config's `task` names; a function is refused, as its result is unknown here."""
    path = config.cfg.task.get("_target_")
    named = locate(PROJECT, path, "task")
    if not (inspect.isclass(named) and issubclass(named, Task)):
        raise ConfigError(f"task._target_: {path} is not a subclass of lab.tasks.base.Task")
    return named


def fetch_remote(data: Mapping[str, Any], between: Callable[[], object]) -> dict[str, str]:
    """Fetch the remote files of the config's data. between: called now and then; may raise, to stop.

    Returns {address: the version that is here now}.
    """
    versions: dict[str, str] = {}
    for node in (data, *mixed_parts(data).values()):
        remote = "://" in str(node.get("path"))
        # others read addresses themselves
        if remote and getattr(locate(PROJECT, node["_target_"], "data"), "takes_remote", False):
            from h5rows.integration import fetch

            with h5_mistakes():
                versions |= fetch(node["path"], between, node.get("cache_gb"))
    return versions


def make_dataset(config: Config, split: str) -> Any:
    """Returns the dataset of a split; None if the config has null for it (splits.val: null)."""
    node, trainer = config.dataset, config.trainer
    if isinstance(splits := node.get("splits"), Mapping) and splits.get(split) is None:
        return None
    fetch_remote(node, note_progress)  # here already, but for ranks of other machines
    # what its __init__ draws: equal on all ranks, after a resume and in `evaluate`
    with drawing(_sample_seed(config, split) if _rules(config) >= 2 else None):
        dataset = construct(PROJECT, "data", node, object, split=split)
    if not is_stream(dataset):
        check_indexed(dataset)
        return dataset
    if split == "train":
        return Stream(dataset)
    if trainer.max_eval_batches is None:
        raise ConfigError(
            f"data: {type(dataset).__name__} is a stream, for {split} too: trainer.max_eval_batches says how much of "
            "it is scored"
        )
    return Stream(dataset, trainer.max_eval_batches * trainer.global_batch_size)


def _rules(config: Config) -> int:
    return int(config.cfg.get("rules", 1))


def _sample_seed(config: Config, split: str) -> int:
    """Return the seed of what a data set draws. By rules 1 all splits had one, so they drew the same samples."""
    return seed_of_split(config.cfg.seed, split) if _rules(config) >= 2 else config.cfg.seed


def describe_transforms(config: Config, dataset: Any) -> list[str]:
    """What data.transforms say of themselves, a line each."""
    spec = getattr(dataset, "spec", {})
    built = [construct(PROJECT, f"data.transforms.{name}", node) for name, node in config.data.transforms.items()]
    return [line for one in built if hasattr(one, "describe") for line in one.describe(spec)]


def unlike_splits(sets: Mapping[str, Any]) -> list[str]:
    """A line for each field whose samples have another shape or type in a split than in training."""
    specs = {split: getattr(dataset, "spec", {}) for split, dataset in sets.items()}
    return [
        f"{field} of {split}: {described(*spec[field])}, unlike that of train, {described(*specs['train'][field])}"
        for split, spec in specs.items()
        for field in spec
        if field in specs["train"] and spec[field] != specs["train"][field]
    ]


def check_stream(config: Config) -> None:
    """Refuse data.order and epochs for a stream: it has neither an index nor a length."""
    trainer, order = config.trainer, config.data.order.get("_target_")
    if order != "samebits.data.order.sequential":
        raise ConfigError(
            f"data.order: a stream comes in its own order, so not in that of {order} - use "
            "data.order._target_=samebits.data.order.sequential"
        )
    keys = ("log_every", "eval_every", "save_every")
    wrong = [f"trainer.{key}={getattr(trainer, key)}" for key in keys if isinstance(getattr(trainer, key), str)]
    if trainer.max_steps is None:
        wrong.insert(0, "trainer.max_steps=null")
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: a stream has no length, so no epochs - give steps")


def make_datasets(config: Config) -> dict[str, Any]:
    """Returns {split: dataset} for all splits that are not null; train is required."""
    named = config.dataset.get("splits")  # if no mapping, an argument of the data set that has this name
    splits = [*dict.fromkeys(["train", "val", "test", *(named if isinstance(named, Mapping) else ())])]
    sets = {split: dataset for split in splits if (dataset := make_dataset(config, split)) is not None}
    if "train" not in sets:
        raise ConfigError("data.splits.train=null: there is nothing to train on; name the group that holds the split")
    if isinstance(sets["train"], Stream):
        check_stream(config)
    return sets


def make_train_loader(
    config: Config,
    machine: Hardware,
    dataset: Any,
    world: World,
    start: int,
    saved: dict[str, Any] | None = None,
    random: bool = True,
) -> Loader:
    """start: global sample number to begin with, 0 for a new run. saved: the state of an order that has one. random:
    include random transforms (augmentation)."""
    node = config.data.order
    make = construct(PROJECT, "data.order", node)

    def make_order() -> Any:
        with constructing(PROJECT, "data.order", node):
            return of_kind("data.order", node, make(dataset, seed=config.cfg.seed), None)

    batch_size = config.trainer.global_batch_size
    micro = machine.micro_batch_sizes
    plan, mark = training_plan(make_order, saved, config.data.overfit, batch_size, micro, world.rank, world.size, start)
    if task_class(config).stateful and mark is None:
        raise ConfigError(
            f"data.order: {task_class(config).__name__} carries states from row to row, and {node['_target_']} has no "
            "lanes - use samebits.data.order.lanes: docs/data_orders.md, Continue sequences"
        )
    if task_class(config).stateful and config.cfg.task.get("lanes", batch_size) != batch_size:
        raise ConfigError(f"task.lanes={config.cfg.task.lanes}: must be trainer.global_batch_size={batch_size}")
    return _loader(config, dataset, "train", plan, world, random=random, mark=mark)


def samples_of_epoch(train: Loader, dataset: Any, trainer: TrainerConfig, step: int = 0, samples: int = 0) -> int:
    """All of the training set, unless data.order leaves some out of each epoch (samebits.data.order.epochs).

    step, samples: done before a resume."""
    count = getattr(train.plan, "epoch_samples", None)
    if count and step * trainer.global_batch_size != samples:
        raise ConfigError(
            f"trainer.global_batch_size={trainer.global_batch_size}: the run has trained {samples:,} samples in "
            f"{step:,} steps, and with this data.order epochs end with a batch, so its batch stays - begin a new run"
        )
    return count or len(dataset)


def make_eval_loader(
    config: Config,
    machine: Hardware,
    dataset: Any,
    split: str,
    world: World,
    train: Loader | None = None,
    whole: bool = False,
    rows: np.ndarray | None = None,
) -> Loader:
    """Each sample of the set, or of trainer.max_eval_batches batches spread evenly over it, once over all ranks.

    split: the set's name, for messages. whole: all samples, whatever trainer.max_eval_batches says. rows: (N,) int64,
    those that are meant, and batches have "row"; None: all."""
    limit = None if whole else config.trainer.max_eval_batches
    # counted in global batches, so that the scored samples do not depend on the hardware
    count = None if limit is None else limit * config.trainer.global_batch_size
    # FSDP all-gathers weights in forward, some tasks all-gather outputs: all ranks need equally many batches
    in_step = config.trainer.pad_eval_batches or config.trainer.strategy == "fsdp"
    in_step = in_step or task_class(config).needs_global_batch
    packs = hasattr(dataset, "collate") and _rules(config) >= 2  # what is packed cannot be cut behind the forward pass
    # another shape would be compiled again
    full = machine.compile is not None and not isinstance(dataset, Stream) and not packs
    lanes = eval_lanes(config, rows) if task_class(config).stateful else None
    plan, mark = evaluation_plan(
        len(dataset), machine.eval_batch_size, world.rank, world.size, in_step, count, full, rows,
        whole=packs and not task_class(config).needs_global_batch, lanes=lanes,
    )  # fmt: skip
    return _loader(config, dataset, split, plan, world, random=False, like=train, with_rows=rows is not None, mark=mark)


def eval_lanes(config: Config, rows: np.ndarray | None) -> int:
    """The lanes of an evaluation, for a task that carries states along them."""
    kind, count = task_class(config).__name__, config.cfg.task.get("eval_lanes")
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"task.eval_lanes={count}: {kind} carries states, and is evaluated in at least 1 lane")
    if rows is not None:
        raise ConfigError(f"task: {kind} carries states from row to row, so it cannot look at single rows of a set")
    return count


def make_statistics_loader(
    config: Config, machine: Hardware, dataset: Any, world: World, task: Task, train: Loader
) -> Loader | None:
    """The training samples of Task.bn_update_batches, if the task asks for them: spread evenly over the set, without
    random transforms."""
    if not task.bn_update_batches:
        return None
    config = replace(
        config, trainer=replace(config.trainer, max_eval_batches=task.bn_update_batches, pad_eval_batches=True)
    )
    return make_eval_loader(config, machine, dataset, "train", world, train)


def _loader(
    config: Config, dataset: Any, split: str, plan: Plan, world: World, random: bool, like: Loader | None = None,
    with_rows: bool = False, mark: Transform | None = None,
) -> Loader:  # fmt: skip
    """random: include random transforms (augmentation). mark: says which lane a row is of."""
    given = config.hardware.num_threads
    padded = getattr(plan, "padded", False)
    transform = make_transform(config, random, dataset, mark, padded)
    cores = min(int(given), cores_each(dist_env.local_size)) if given != "auto" else None
    return Loader(
        dataset, plan, world.device, transform, config.data.loader, config.data.num_workers,
        seed=_sample_seed(config, split), cores=cores, like=like, split=split,
        rows=with_rows or task_class(config).needs_sample_ids,
    )  # fmt: skip


def make_transform(
    config: Config, random: bool, dataset: Any = None, mark: Transform | None = None, padded: bool = False
) -> Transform | None:
    """random: include random transforms (augmentation). dataset: may have transforms of its own, which come first;
    None: of samples from elsewhere, which are as the first part's where there are parts. mark: for a task that carries
    states in lanes. padded: batches of training may hold rows that do not count."""
    nodes = {f"data.transforms.{name}": node for name, node in config.data.transforms.items()}
    if dataset is None and (part := next(iter(mixed_parts(config.dataset)), None)):
        of_part = config.dataset["parts"][part]["transforms"]
        nodes = {f"data.parts.{part}.transforms.{name}": node for name, node in of_part.items()} | nodes
    transforms = [construct(PROJECT, key, node) for key, node in nodes.items()]
    if task_class(config).needs_sample_ids:
        transforms.append(add_numbers)
    if task_class(config).stateful and mark is not None:
        transforms.append(mark)
    if padded:
        transforms.append(add_counted)
    if config.hardware.channels_last:
        transforms.append(channels_last)

    def prepared(transform: Transform) -> Transform:
        return CompiledChain(transform) if config.hardware.compile else transform

    transform = compose(transforms, training=random)
    last = None if transform is None else prepared(transform)
    first = dataset.batch_transform(random, prepared) if hasattr(dataset, "batch_transform") else None
    return last if first is None else Chain(first, last)


class Chain:
    """The data set's own transform, which is told the rows, then data.transforms."""

    takes_rows = True

    def __init__(self, first: Transform, last: Transform | None) -> None:
        self.first, self.last = first, last

    def __call__(self, batch: Batch, numbers: Tensor, rows: Any) -> Batch:
        batch = self.first(batch, numbers, rows)
        return batch if self.last is None else self.last(batch, numbers)


def channels_last(batch: Batch, numbers: Tensor) -> Batch:
    """Images in the memory order (B, H, W, C); shapes stay (B, C, H, W)."""
    order = torch.channels_last
    images = {name: x for name, x in batch.items() if x.ndim == 4 and x.is_floating_point()}
    return batch | {name: x.contiguous(memory_format=order) for name, x in images.items()}


def add_numbers(batch: Batch, numbers: Tensor) -> Batch:
    return {**batch, "sample_id": numbers}


def add_counted(batch: Batch, numbers: Tensor) -> Batch:
    if "counted" in batch:
        raise ConfigError(
            "data: a field is called 'counted', as what says which rows are padding with data.order.drop_last=false - "
            "give it another name"
        )
    return {**batch, "counted": numbers >= 0}
