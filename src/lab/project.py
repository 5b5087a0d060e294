"""What the engine is told of this project (samebits.project): where its files are and what a yaml may name."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.groups import DataConfig, OptimConfig, RootConfig, TaskConfig, mixed_parts
from lab.h5_errors import h5_mistakes
from samebits.config import quote_value
from samebits.errors import ConfigError
from samebits.project import Project

WORDS = ("null", "true", "false", "nan", "inf")  # that Hydra does not read as text


def h5_shape(field: str, _parent_: Any) -> list[int]:
    """${h5_shape:field} in a group `data`: shape of one sample of the field, from the data file."""
    from h5rows.integration import sample_shape

    with _about_data(_parent_), h5_mistakes():
        return list(sample_shape(_parent_, field))


def h5_outputs(field: str, _parent_: Any) -> int | None:
    """${h5_outputs:field}: how many outputs a model of that field needs; null in a part of data=mixed that lacks it."""
    from h5rows.integration import num_outputs

    if _key(_parent_) != "data" and _parent_.fields.get(field, field) is None:
        return None
    with _about_data(_parent_), h5_mistakes():
        return int(num_outputs(_parent_, field))


def expand(cfg: Any) -> None:
    """data.split_ratio=80/10/10 -> data.splits that say so, which the run's config.yaml has, and a resume goes by."""
    nodes = {"data": cfg.data, **{f"data.parts.{name}": node for name, node in mixed_parts(cfg.data).items()}}
    for key, node in nodes.items():
        if hasattr(node, "get") and (text := node.get("split")) is not None:
            from h5rows.integration import shares_of

            if node.get("_target_") != "lab.datasets.h5.Dataset":
                raise ConfigError(f"{key}.split={text}: of data=h5; here {key}.splits says where a split lies")
            with h5_mistakes():
                node.splits, node.split = shares_of(str(text), node.get("split_by"), f"{key}.split"), None
    # null takes a part out, or all of them
    for node, name in [
        *((node, "transforms") for node in nodes.values()),
        (cfg.get("task"), "metrics"),
        (cfg, "callback"),
    ]:
        if hasattr(node, "get") and name in node:
            parts = node.get(name)
            if parts is None:
                node[name] = {}
            elif hasattr(parts, "items"):
                for part in [part for part in parts if parts._get_node(part)._is_none()]:
                    del parts[part]


def train_on(path: str, settings: Mapping[str, Any], task: str) -> str:
    """The command that trains on a stranger's file. settings: keys of `data`."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {written(one)}" for key, one in value.items()) + "}"
        if not isinstance(value, str):
            return "null" if value is None else str(value)
        return (
            value
            if re.fullmatch(r"(\.{0,2}/)*[A-Za-z_/][\w./-]*|[\d/]+", value) and value.lower() not in WORDS
            else f'"{value}"'  # a shell takes it in single quotes
            if not set(value) & set('"\\\\')
            else quote_value(value)
        )

    keys = [f"data.{key}={written(value)}" for key, value in settings.items()]
    words = [f"data.path={written(path)}", *keys, *[f"task={task}"] * (task != "classification")]
    return shlex.join(["./run", "train", *words])


def first_part(key: str, _parent_: Any) -> Any:
    """${first_part:num_outputs} in data=mixed: what the first part says that says it."""
    if not _parent_.parts:
        raise ConfigError("data.parts: there are none - add some, such as +data@data.parts.old=h5 +data.weights.old=1")
    said = (node.get(key) for node in _parent_.parts.values() if hasattr(node, "get"))
    return next((value for value in said if value is not None), None)


def _key(node: Any) -> str:
    return str(node._get_full_key(None)) or "data"


def folder_classes(_parent_: Any) -> int:
    """${folder_classes:} in a group `data`: how many class folders there are below its path."""
    from lab.datasets.image_folder import class_names, open_images

    with _about_data(_parent_):
        source = open_images(_parent_.path, tuple(_parent_.size), _parent_.crop, _parent_.channels)
        return len(class_names(source, _parent_.path))


@contextmanager
def _about_data(node: Any) -> Iterator[None]:
    """In this block a mistake in what a file holds names the key that leads to the file. node: the data group's."""
    try:
        yield
    except ConfigError as error:
        key = _key(node)
        text = str(error) if key == "data" else re.sub(r"(?<![\w./-])data(?=\.[a-z])", key, str(error))
        if re.search("has no (group )?'", text) and (command := trains_on(node)):
            text += f"; this trains on it: {command}"
        lacks = re.search(r"has no group '([^']+)'", text)
        for name, part in (node.get("splits") or {}).items():
            if lacks and isinstance(part, Mapping) and part.get("group") == lacks[1]:
                raise ConfigError(f"{key}.splits.{name}.group: {text}") from None
        named = re.search(r"\bdata(\.\w+)+", text)
        if named is not None and named.start() == 0:
            raise ConfigError(text) from None
        raise ConfigError(f"{named[0] if named else f'{key}.path'}: {text}") from None


def trains_on(node: Any) -> str | None:
    """The command that trains on the file of a data group, which has no such fields or splits."""
    from h5rows.integration import suggestion

    with h5_mistakes():
        found = suggestion(node.get("path"))
    return None if found is None else train_on(str(node.path), *found)


PROJECT = Project(
    name=__name__,
    root=Path(__file__).resolve().parents[2],
    # What a yaml may name as _target_, so that somebody else's config cannot call arbitrary functions (torch.hub.load,
    # os.system, samebits.files.replace_text). To use another library, add its prefix here ("timm.*": the public classes
    # and functions that it defines), or one full name ("transformers.AutoModel.from_pretrained").
    allowed=(
        "lab.models.*",
        "lab.datasets.*",
        "lab.transforms.*",
        "samebits.data.order.*",
        "samebits.data.sampling.*",
        "samebits.data.windows.*",
        "lab.losses.*",
        "lab.metrics.*",
        "lab.tasks.*",
        "lab.callbacks.*",
        "lab.optimizers.*",
        "lab.schedules.*",
        "torch.nn.*",
        "torch.optim.*",
        "torchmetrics.*",
    ),
    # Functions that may be called with a config's values alone. Functions of lab's other folders need _partial_: true:
    # the run calls them with objects of its own.
    factories=("lab.models.*",),
    remedies={
        "transformers.AutoModel": "choose model=pretrained, it loads safetensors only and runs no code of a folder",
    },
    schema=RootConfig,
    own={"data": DataConfig, "optim": OptimConfig, "task": TaskConfig},
    # import paths that saved configs have
    moved={
        "lab.data.h5.H5Dataset": "lab.datasets.h5.Dataset",
        "engine.data.h5.H5Dataset": "lab.datasets.h5.Dataset",
        "h5rows.dataset.Dataset": "lab.datasets.h5.Dataset",
        "engine.data.order.": "samebits.data.order.",
        "engine.data.windows.": "samebits.data.windows.",
        "engine.data.sampling.": "samebits.data.sampling.",
        "lab.data.tokens.": "lab.datasets.tokens.",
        "lab.data.synthetic.": "lab.datasets.synthetic.",
        "lab.data.transforms.": "lab.transforms.fields.",
        "lab.data.mixup.": "lab.transforms.mixup.",
        "lab.data.order.": "samebits.data.order.",
        "lab.data.windows.": "samebits.data.windows.",
        "lab.data.sampling.": "samebits.data.sampling.",
        "lab.models.lora.": "lab.models.gpt_lora.",
        "lab.optim.ByShape": "lab.optimizers.by_shape.ByShape",
        "lab.optim.Constant": "lab.schedules.constant.Constant",
        "lab.optim.Linear": "lab.schedules.linear.Linear",
        "lab.optim.Cosine": "lab.schedules.cosine.Cosine",
        "lab.optim.Step": "lab.schedules.step.Step",
        "lab.optim.Plateau": "lab.schedules.plateau.Plateau",
        "lab.": "lab.",  # in a fork of another name: runs from before it was named
    },
    # of saved configs and of what somebody types
    moved_keys={
        f"trainer.{name}": f"process.{name}"
        for name in ("max_time", "stop_at_step", "timeout", "max_restarts", "straggler_share", "save_async")
    },
    # relative ones are relative to the working directory of the command
    paths=(
        "data.path",
        "data.parts.*.path",
        "resume",
        "task.weights",
        "model.folder",
        "model.model.folder",
    ),
    resolvers={
        "h5_shape": h5_shape,
        "h5_outputs": h5_outputs,
        "folder_classes": folder_classes,
        "first_part": first_part,
    },
    watching=("callback",),
    asked={"seed": "seed", "batch_size": "trainer.global_batch_size"},
    expand=expand,
)
