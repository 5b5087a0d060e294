"""Build data sets, transforms, and loaders of training and evaluation batches from the config."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from h5rows.integration import reading_once
from lab.config import Config
from lab.groups import mixed_parts
from lab.h5_errors import h5_mistakes, splits_of
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
from samebits.status import class_names
from samebits.targets import construct, constructing, locate, of_kind
from samebits.world import World, dist_env


def task_class(config: Config) -> type[Task]:
    """Return the class that task._target_ names. Raise ConfigError if it is not a subclass of Task."""
    path = config.values["task"].get("_target_")
    named = locate(PROJECT, path, "task")
    if not (inspect.isclass(named) and issubclass(named, Task)):
        raise ConfigError(f"task._target_: {path} is not a subclass of lab.tasks.base.Task")
    return named


def fetch_remote(data: Mapping[str, Any], between: Callable[[], object]) -> dict[str, str]:
    """Download the remote files of the config's data. Return {address: version of the local copy}.

    between: called now and then; may raise to stop.
    """
    versions: dict[str, str] = {}
    for node in (data, *mixed_parts(data).values()):
        remote = "://" in str(node.get("path"))
        # other data sets read URLs themselves
        if remote and getattr(locate(PROJECT, node["_target_"], "data"), "takes_remote", False):
            from h5rows.integration import fetch

            with h5_mistakes():
                versions |= fetch(node["path"], between, node.get("cache_gb"))
    return versions


def make_dataset(config: Config, split: str) -> Any:
    """Return a split's data set; None if it is null. Raise ConfigError for a stream without max_eval_batches."""
    node, trainer = config.dataset, config.trainer
    if isinstance(splits := node.get("splits"), Mapping) and splits.get(split) is None:
        return None
    fetch_remote(node, note_progress)  # already local, except on other machines
    # random numbers drawn by its __init__ are equal on all ranks, after a resume and in `evaluate`
    with drawing(sample_seed(config, split) if config.rules >= 2 else None), splits_of(config.rules):
        dataset = construct(PROJECT, "data", node, object, split=split)
    if not is_stream(dataset):
        check_indexed(dataset)
        return dataset
    if split == "train":
        return Stream(dataset)
    if trainer.max_eval_batches is None:
        raise ConfigError(
            f"data: {type(dataset).__name__} is a stream, for {split} too - set trainer.max_eval_batches to the "
            "number of batches to evaluate"
        )
    return Stream(dataset, trainer.max_eval_batches * trainer.global_batch_size)


def sample_seed(config: Config, split: str) -> int:
    """Return the seed of a split's random numbers. With rules 1 it is equal for all splits, as in version 0.2."""
    return seed_of_split(config.seed, split) if config.rules >= 2 else config.seed


def describe_transforms(config: Config, dataset: Any) -> list[str]:
    """Return the lines of the `describe` methods of data.transforms, for the first lines of the log."""
    spec = getattr(dataset, "spec", {})
    built = [construct(PROJECT, f"data.transforms.{name}", node) for name, node in config.data.transforms.items()]
    return [line for transform in built if hasattr(transform, "describe") for line in transform.describe(spec)]


def unlike_splits(sets: Mapping[str, Any]) -> list[str]:
    """Return a line for each field whose samples have another shape or dtype in a split than in training."""
    specs = {split: getattr(dataset, "spec", {}) for split, dataset in sets.items()}
    return [
        f"{field} of {split}: {described(*spec[field])}, unlike that of train, {described(*specs['train'][field])}"
        for split, spec in specs.items()
        for field in spec
        if field in specs["train"] and spec[field] != specs["train"][field]
    ]


def shared_rows(sets: Mapping[str, Any]) -> list[str]:
    """Return a line for each split that has rows of the training split, if its data set has a method `shared_rows`."""
    shared = {
        split: dataset.shared_rows(sets["train"])
        for split, dataset in sets.items()
        if split != "train" and hasattr(dataset, "shared_rows")
    }
    return [
        f"data.splits.{split}: {count:,} of its {len(sets[split]):,} rows are rows of train too, so its scores are too "
        "good; to separate the splits, set data.split_ratio, or give them equal `by` and different rows, or different "
        "files or groups"
        for split, count in shared.items()
        if count
    ]


def check_classes(
    dataset: Any, names_of: Callable[[str], Sequence[str] | None], origin: str, where: str = "these data"
) -> None:
    """Raise ConfigError if class k of a data set and class k of `origin` have different names, because labels would
    then be compared with outputs for other classes. names_of: field -> names of its classes in `origin`. where: name of
    the data set, for the message."""
    for field, here in (getattr(dataset, "class_names", None) or {}).items():
        for number, (name, other) in enumerate(zip(here, names_of(field) or ())):
            if name != other:
                raise ConfigError(
                    f"data.fields.{field}: class {number} is {name!r} in {where}, but {other!r} in {origin} - write "
                    f"the labels as numbers in the order of {origin}, or set data.fields.{field}=null if no label is "
                    "needed"
                )


def check_classes_of_run(dataset: Any, directory: Path) -> None:
    """Raise ConfigError if a data set has other classes than the run in a directory was trained with."""
    check_classes(dataset, partial(class_names, directory), f"{directory}/classes.json")


def check_stream(config: Config) -> None:
    """Raise ConfigError if a stream, which has no index and no length, is used with data.order or with epochs."""
    trainer, order = config.trainer, config.data.order.get("_target_")
    if order != "samebits.data.order.sequential":
        raise ConfigError(
            f"data.order: a stream has its own order, so {order} has no effect - use "
            "data.order._target_=samebits.data.order.sequential"
        )
    keys = ("log_every", "eval_every", "save_every")
    wrong = [f"trainer.{key}={getattr(trainer, key)}" for key in keys if isinstance(getattr(trainer, key), str)]
    if trainer.max_steps is None:
        wrong.insert(0, "trainer.max_steps=null")
    if wrong:
        raise ConfigError(f"{', '.join(wrong)}: a stream has no length, so no epochs - give steps")


def make_datasets(config: Config, shared: BinaryIO | None = None) -> dict[str, Any]:
    """Return {split: data set} for all splits that are not null. Raise ConfigError if there is no split train, or if a
    class has another name in another split.

    shared: file through which ranks of a host share the columns that choose rows; see World.file_of_host."""
    named = config.dataset.get("splits")  # otherwise the data set has another argument of this name
    splits = [*dict.fromkeys(["train", "val", "test", *(named if isinstance(named, Mapping) else ())])]
    with reading_once(shared):
        sets = {split: dataset for split in splits if (dataset := make_dataset(config, split)) is not None}
    if "train" not in sets:
        raise ConfigError("data.splits.train=null: there is no training data - name the group that contains it")
    names = getattr(sets["train"], "class_names", None) or {}
    for split, dataset in sets.items():
        check_classes(dataset, names.get, "train", f"the split {split}")
    if isinstance(sets["train"], Stream):
        check_stream(config)
    return sets


def make_train_loader(
    config: Config,
    hardware: Hardware,
    dataset: Any,
    world: World,
    start: int,
    saved: dict[str, Any] | None = None,
    random: bool = True,
) -> Loader:
    """Return the loader of training batches.

    start: first sample id, 0 for a new run. saved: the state of data.order, if it has one. random: include random
    transforms (augmentation). Raise ConfigError if a stateful task and data.order do not fit.
    """
    node = config.data.order
    make = construct(PROJECT, "data.order", node)

    def make_order() -> Any:
        with constructing(PROJECT, "data.order", node):
            return of_kind("data.order", node, make(dataset, seed=config.seed), None)

    batch_size = config.trainer.global_batch_size
    micro = hardware.micro_batch_sizes
    plan, mark = training_plan(make_order, saved, config.data.overfit, batch_size, micro, world.rank, world.size, start)
    if task_class(config).stateful and mark is None:
        raise ConfigError(
            f"data.order: {task_class(config).__name__} keeps states from row to row, but {node['_target_']} has no "
            "lanes - choose data/order=lanes (docs/data_orders.md#continue-sequences-from-step-to-step)"
        )
    lanes = config.values["task"].get("lanes", batch_size)
    if task_class(config).stateful and lanes != batch_size:
        raise ConfigError(f"task.lanes={lanes}: must be trainer.global_batch_size={batch_size}")
    return _loader(config, dataset, "train", plan, world, random=random, mark=mark)


def samples_of_epoch(train: Loader, dataset: Any, trainer: TrainerConfig, step: int, samples: int) -> int:
    """Return the number of samples of one epoch: the whole training set, unless data.order ends epochs at a batch
    boundary (samebits.data.order.epochs). Raise ConfigError if it does and the batch size has changed in a resume.
    step, samples: number done before the resume."""
    count = getattr(train.plan, "epoch_samples", None)
    if count and step * trainer.global_batch_size != samples:
        raise ConfigError(
            f"trainer.global_batch_size={trainer.global_batch_size}: the run has trained {samples:,} samples in "
            f"{step:,} steps, and cannot change its batch size, because this data.order ends epochs with a batch "
            "- start a new run"
        )
    return count or len(dataset)


def make_eval_loader(
    config: Config,
    hardware: Hardware,
    dataset: Any,
    split: str,
    world: World,
    train: Loader | None = None,
    all_samples: bool = False,
    rows: np.ndarray | None = None,
    even: bool = False,
) -> Loader:
    """Return a loader that reads each sample once, divided over the ranks: all samples, or as many as
    trainer.max_eval_batches allows, spread evenly over the set.

    split: the set's name, for messages. all_samples: ignore trainer.max_eval_batches. rows: (N,) int64,
    use only these rows, and add the field "row" to batches; None: all rows. even: leave out as many samples as are
    needed for equally many on all ranks, so that no rank pads its last batch; needs trainer.max_eval_batches.
    """
    limit = None if all_samples else config.trainer.max_eval_batches
    # counted in global batches, so that the scored samples do not depend on the hardware
    count = None if limit is None else limit * config.trainer.global_batch_size
    if even and count is not None:
        count = min(count, len(dataset)) // world.size * world.size or count  # a set smaller than the ranks is padded
    # FSDP all-gathers weights in forward, some tasks all-gather outputs: all ranks need equally many batches
    in_step = config.trainer.pad_eval_batches or config.trainer.strategy == "fsdp"
    in_step = in_step or task_class(config).needs_global_batch
    # padding cannot be cut off from the output of packed batches
    packs = hasattr(dataset, "collate") and config.rules >= 2
    # a batch of another shape would be compiled again
    full = hardware.compile is not None and not isinstance(dataset, Stream) and not packs
    lanes = eval_lanes(config, rows) if task_class(config).stateful else None
    size = hardware.eval_batch_size
    if task_class(config).needs_global_batch and config.hardware.eval_batch_size is None:
        size = sum(hardware.micro_batch_sizes)  # scores across samples must not depend on the micro-batch
    plan, mark = evaluation_plan(
        len(dataset), size, world.rank, world.size, in_step, count, full, rows,
        whole=packs and not task_class(config).needs_global_batch, lanes=lanes,
    )  # fmt: skip
    return _loader(config, dataset, split, plan, world, random=False, like=train, with_rows=rows is not None, mark=mark)


def eval_lanes(config: Config, rows: np.ndarray | None) -> int:
    """Return the number of lanes in an evaluation of a stateful task: task.eval_lanes."""
    kind, count = task_class(config).__name__, config.values["task"].get("eval_lanes")
    if not isinstance(count, int) or count < 1:
        raise ConfigError(f"task.eval_lanes={count}: must be an integer >= 1, because {kind} keeps states")
    if rows is not None:
        raise ConfigError(f"task: {kind} keeps states from row to row, so it cannot evaluate single rows of a set")
    return count


def make_bn_loader(
    config: Config, hardware: Hardware, dataset: Any, world: World, task: Task, train: Loader
) -> Loader | None:
    """Return a loader of Task.bn_update_batches training batches, spread evenly over the set, without random
    transforms; None if the task has 0. All ranks have equally many rows, none of them padding."""
    if not task.bn_update_batches:
        return None
    config = replace(
        config, trainer=replace(config.trainer, max_eval_batches=task.bn_update_batches, pad_eval_batches=True)
    )
    # even and not compiled, so that no batch is padded with copies of a row, which would count in the statistics
    return make_eval_loader(config, replace(hardware, compile=None), dataset, "train", world, train, even=True)


def _loader(
    config: Config, dataset: Any, split: str, plan: Plan, world: World, random: bool, like: Loader | None = None,
    with_rows: bool = False, mark: Transform | None = None,
) -> Loader:  # fmt: skip
    """Return a loader of the batches of `plan`. random: include augmentation. mark: adds the lane of each row."""
    padded = getattr(plan, "padded", False)
    transform = make_transform(config, random, dataset, mark, padded)
    cores = cores_each(dist_env.ranks_here(world.size))  # of a rank, also in a process that only looks (./run env)
    threads = config.hardware.num_threads
    cores = cores if threads == "auto" else min(int(threads), cores)
    return Loader(
        dataset, plan, world.device, transform, config.data.loader, config.data.num_workers,
        seed=sample_seed(config, split), cores=cores, like=like, split=split,
        rows=with_rows or task_class(config).needs_sample_ids,
    )  # fmt: skip


def make_transform(
    config: Config, random: bool, dataset: Any = None, mark: Transform | None = None, padded: bool = False
) -> Transform | None:
    """Return the transform of batches: the data set's own, then data.transforms; None if there are none.

    random: include random transforms (augmentation). dataset: None for samples that are not from a data set (predict in
    a notebook); with `data.parts` they are transformed like samples of the first part. mark: transform that adds the
    lane of each row, for a stateful task. padded: training batches may contain padding, marked by the field "is_real".
    """
    nodes = {f"data.transforms.{name}": node for name, node in config.data.transforms.items()}
    if dataset is None and (part := next(iter(mixed_parts(config.dataset)), None)):
        of_part = config.dataset["parts"][part]["transforms"]
        nodes = {f"data.parts.{part}.transforms.{name}": node for name, node in of_part.items()} | nodes
    transforms = [construct(PROJECT, key, node) for key, node in nodes.items()]
    if task_class(config).needs_sample_ids:
        transforms.append(add_sample_ids)
    if task_class(config).stateful and mark is not None:
        transforms.append(mark)
    if padded:
        transforms.append(add_is_real)
    if config.hardware.channels_last:
        transforms.append(channels_last)

    def prepared(transform: Transform) -> Transform:
        return CompiledChain(transform) if config.hardware.compile else transform

    transform = compose(transforms, training=random)
    last = None if transform is None else prepared(transform)
    first = dataset.batch_transform(random, prepared) if hasattr(dataset, "batch_transform") else None
    return last if first is None else Chain(first, last)


class Chain:
    """The data set's own transform, which also gets the rows, followed by data.transforms."""

    takes_rows = True

    def __init__(self, first: Transform, last: Transform | None) -> None:
        self.first, self.last = first, last

    def __call__(self, batch: Batch, sample_ids: Tensor, rows: Any) -> Batch:
        """Transform a batch. sample_ids: (B,). rows: (B,) rows of the data set."""
        batch = self.first(batch, sample_ids, rows)
        return batch if self.last is None else self.last(batch, sample_ids)


def channels_last(batch: Batch, sample_ids: Tensor) -> Batch:
    """Convert images (4-d, floating point) to the memory format channels_last; shapes stay (B, C, H, W)."""
    order = torch.channels_last
    images = {name: x for name, x in batch.items() if x.ndim == 4 and x.is_floating_point()}
    return batch | {name: x.contiguous(memory_format=order) for name, x in images.items()}


def add_sample_ids(batch: Batch, sample_ids: Tensor) -> Batch:
    """Add the field "sample_id"."""
    return {**batch, "sample_id": sample_ids}


def add_is_real(batch: Batch, sample_ids: Tensor) -> Batch:
    """Add the field "is_real", (B,) bool: False for padding. Raise ConfigError if the data have such a field."""
    if "is_real" in batch:
        raise ConfigError(
            "data: a field is called 'is_real', which marks padding with data.order.drop_last=false - give it another "
            "name"
        )
    return {**batch, "is_real": sample_ids >= 0}
