"""Define PROJECT, the constants of this project for samebits: its folders, allowed targets, renamed keys, resolvers."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, nullcontext
from dataclasses import fields
from pathlib import Path
from typing import Any

import lab.transforms.augment_order  # adds its rules
import lab.transforms.sized_order  # adds its transforms
from lab.datasets.column_remedy import column_remedy
from lab.groups import DataConfig, OptimConfig, RootConfig, TaskConfig, mixed_parts
from lab.h5_errors import H5_COMMAND, h5_mistakes, splits_of
from lab.transforms.order import check_order
from samebits.config import quote_value
from samebits.errors import ConfigError
from samebits.project import Project
from samebits.schema import plain
from samebits.targets import construct

H5, FILLS_MISSING = "lab.datasets.h5.Dataset", "lab.transforms.missing.FillMissing"
# {data set whose splits are made of rows: the key of an entry of data.splits that says where its rows are}
SOURCE_KEYS = {
    H5: "group",
    "lab.datasets.parquet.Parquet": "files",
    "lab.datasets.huggingface.HuggingFace": "of",
}
OF_ROWS = " or ".join(f"data={target.split('.')[-2]}" for target in SOURCE_KEYS)  # in messages
# formats that ./run h5 packs
PACKED = (
    ".npy", ".npz", ".pth", ".csv", ".tsv", ".txt", ".parquet", ".tar", ".tfrecord", ".lmdb", ".zarr", ".n5",
)  # fmt: skip
WORDS = ("null", "true", "false", "nan", "inf")  # words that Hydra does not parse as text
FILLED = (
    "data/transforms=[to_float,normalize,missing]",
    "data.transforms.normalize.mean=auto",
    "data.transforms.normalize.std=auto",
)


def h5_shape(field: str, _parent_: Any) -> list[int]:
    """Return the shape of one sample of the field, from the data file: ${h5_shape:field} in a group `data`.

    It includes the columns that FillMissing appends."""
    from h5rows.integration import sample_shape

    with about_data(_parent_), h5_mistakes():
        return with_indicators(list(sample_shape(_parent_, field)), field, _parent_)


def with_indicators(shape: list[int], field: str, data: Any) -> list[int]:
    """Return the shape of a sample with the columns that FillMissing appends. data: the group `data`."""
    for node in (data.get("transforms") or {}).values():
        if hasattr(node, "get") and node.get("_target_") == FILLS_MISSING and node.field == field:
            shape[-1] += len(node.columns) if isinstance(node.columns, Sequence) else 0  # refused when it is built
    return shape


def missing_columns(field: str, _parent_: Any) -> list[int]:
    """Return the columns of a field that have NaN in the training rows: ${missing_columns:field} in an entry of
    data.transforms. In a cross-validation: in the rows that are divided into folds, so all folds have the same ones."""
    data = _parent_._get_parent()._get_parent()
    if data.get("_target_") not in SOURCE_KEYS:
        raise ConfigError(f"{_key(_parent_)}.columns: are found for {OF_ROWS} only - give them, such as [0,3]")
    from lab.transforms.missing import columns_with_nan

    own, found = ("_target_", *(one.name for one in fields(DataConfig))), set()
    with about_data(data), splits_of(data._get_root().get("rules", 1)):
        arguments = {key: plain(data[key]) for key in data if key not in own}
        for split in ("train",) if data.get("folds") is None else ("train", "val"):
            rows = construct(PROJECT, "data", {"_target_": data._target_, **arguments}, object, split=split)
            with closing(rows) if hasattr(rows, "close") else nullcontext():
                found |= {*columns_with_nan(rows, field)}
    return sorted(found)


def h5_outputs(field: str, _parent_: Any) -> int | None:
    """Return the number of outputs that a model of the field needs: ${h5_outputs:field} in a group `data`. Return None
    for a part of several data sets (`data.parts`) that lacks the field."""
    from h5rows.integration import num_outputs

    if _key(_parent_) != "data" and _parent_.fields.get(field, field) is None:
        return None
    with about_data(_parent_), h5_mistakes():
        return int(num_outputs(_parent_, field))


def expand(cfg: Any) -> None:
    """Replace data.split_ratio=80/10/10 by data.splits, so that config.yaml has the splits; with data.folds, make a
    fold the validation split; drop entries that are null.

    cfg: the composed config, changed in place. Raise ConfigError for split_ratio with other data than data=h5, and for
    keys of folds that do not fit."""
    nodes = {"data": cfg.data, **{f"data.parts.{name}": node for name, node in mixed_parts(cfg.data).items()}}
    for key, node in nodes.items():
        if not hasattr(node, "get"):
            continue
        if node.get("_target_") == H5:
            _check_is_hdf5(key, node.get("path"))
        text, place = node.get("split_ratio"), SOURCE_KEYS.get(node.get("_target_"))
        folded = node.get("fold_repeat") or any(node.get(k) is not None for k in ("folds", "fold", "stratify_by"))
        if text is not None and place is None:
            raise ConfigError(f"{key}.split_ratio={text}: only for {OF_ROWS} - set {key}.splits")
        if place is not None and (folded or text is not None):
            _divide(node, key, place, folded)
        if text is not None:
            node.split_ratio = None
    # an entry that is null is removed; if the group is null, all entries are
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
    own = _chain("data", cfg.data)
    for key, node in nodes.items():
        check_order(own if node is cfg.data else [*_chain(key, node), *own])


def _chain(key: str, node: Any) -> list[tuple[str, Any]]:
    """Return (key, node) of each transform of a group `data`."""
    chain: Any = node.get("transforms") if hasattr(node, "get") else None
    named = chain.items() if hasattr(chain, "items") else ()
    return [(f"{key}.transforms.{name}", one) for name, one in named if hasattr(one, "get")]


def _check_is_hdf5(key: str, path: Any) -> None:
    """Raise ConfigError for a path of data=h5 that is data of another format, with the way to read it."""
    path = path[0] if isinstance(path, Sequence) and path and not isinstance(path, str) else path
    if not isinstance(path, str) or "://" in path:
        return
    remedies = (
        column_remedy(key, path),  # lab.datasets.column_remedy
        _pack_remedy(key, path),
    )
    if remedy := next(filter(None, remedies), None):
        raise ConfigError(f"{key}.path={path}: is not HDF5 - use {remedy}")


def _pack_remedy(key: str, path: str) -> str:
    """Return the command that packs a file of another format; "" if the path is none."""
    from h5py import is_hdf5

    place = Path(path)
    if place.suffix.lower() not in PACKED or (place.is_file() and is_hdf5(path)):
        return ""
    made = str(place.with_suffix(".h5"))
    then = shlex.quote(f"{key}.path={made}")
    return f"{shlex.join([*H5_COMMAND, 'pack', path, made])}, then {then} (docs/pack_data.md)"


def _divide(node: Any, key: str, place: str, folded: bool) -> None:
    """Set `splits` of a group `data` from split_ratio or the keys of folds. place: SOURCE_KEYS of its data set."""
    from h5rows.integration import fold_splits, shares_of

    def renamed(splits: Any, old: str, new: str) -> Any:
        if not isinstance(splits, Mapping):
            return splits
        return {k: e and {new if o == old else o: v for o, v in e.items()} for k, e in splits.items()}

    made: dict[str, Any]
    splits = node.splits if place == "group" else renamed(plain(node.splits), place, "group")
    if folded:
        divided = node.get("folds") is not None and node.get("fold") is not None and node.get("split_ratio") is None
        val = splits.get("val")
        is_fold = isinstance(val, Mapping) and val.get("fold") == "val"  # of a saved config
        if place != "group" and divided and val is not None and not is_fold:
            raise ConfigError(
                f"{key}.splits.val: each fold is the validation split of a run - set {key}.split_ratio=80/0/20, or "
                f"{key}.splits.val=null, which leaves its rows unused"
            )
        given = ("split_ratio", "split_by", "folds", "fold", "fold_repeat", "stratify_by")
        with about_data(node), h5_mistakes():
            made = fold_splits({**{k: node[k] for k in given if k in node}, "splits": splits})
    else:
        with h5_mistakes():
            made = shares_of(str(node.split_ratio), node.get("split_by"), f"{key}.split_ratio")
    if place != "group":
        for entry in made.values():
            if entry and "index" in entry:  # of split_ratio: shares of the whole file, which h5rows calls /
                del entry["index"]
                entry["group"] = "train" if place == "of" else None
        made = renamed(made, "group", place)
    node.splits = made


def command_for(path: str, settings: Mapping[str, Any], task: str) -> str:
    """Return the command that trains on a data file. settings: {key of `data`: value}. task: option of conf/task."""

    def written(value: Any) -> str:
        if isinstance(value, dict):
            return "{" + ", ".join(f"{key}: {written(one)}" for key, one in value.items()) + "}"
        if not isinstance(value, str):
            return "null" if value is None else str(value)
        return (
            value
            if re.fullmatch(r"(\.{0,2}/)*[A-Za-z_/][\w./-]*|[\d/]+", value) and value.lower() not in WORDS
            else f'"{value}"'  # shlex.join adds single quotes
            if not set(value) & set('"\\\\')
            else quote_value(value)
        )

    missing = dict(settings.get("missing", {}))
    if marks := missing.get("x") == "nan":  # a table: docs/transforms.md#missing-values-in-tables
        del missing["x"]
        settings = {key: value for key, value in settings.items() if key != "missing"} | {"missing": missing}
    keys = [f"data.{key}={written(value)}" for key, value in settings.items() if value != {}]
    words = [f"data.path={written(path)}", *keys, *FILLED * marks, *[f"task={task}"] * (task != "classification")]
    return shlex.join(["./run", "train", *words])


def _key(node: Any) -> str:
    return str(node._get_full_key(None)) or "data"


@contextmanager
def about_data(node: Any) -> Iterator[None]:
    """In this block, an error about a data file's content names its config key. node: the group `data`."""
    try:
        yield
    except ConfigError as error:
        key = _key(node)
        text = str(error) if key == "data" else re.sub(r"(?<![\w./-])data(?=\.[a-z])", key, str(error))
        if re.search("has no (group )?'", text) and (command := suggested_command(node)):
            text += f"; to train on it, type: {command}"
        if lacks := re.search(r"has no group '([^']+)'", text):
            for name, part in node.splits.items():
                if isinstance(part, Mapping) and part.get("group") == lacks[1]:
                    raise ConfigError(f"{key}.splits.{name}.group: {text}") from None
        named = re.search(r"\bdata(\.\w+)+", text)
        if named is not None and named.start() == 0:
            raise ConfigError(text) from None
        raise ConfigError(f"{named[0] if named else f'{key}.path'}: {text}") from None


def suggested_command(node: Any) -> str | None:
    """Return a command that trains on the file of a group `data`, by the fields in the file; None: not found."""
    from h5rows.integration import suggestion

    with h5_mistakes():
        found = suggestion(node.get("path"))
    return None if found is None else command_for(str(node.path), *found)


PROJECT = Project(
    name=__name__,
    root=Path(__file__).resolve().parents[2],
    # Allowed values of _target_, so that a config from somebody else cannot call arbitrary functions (torch.hub.load,
    # os.system, samebits.files.replace_text). To use another library, add its prefix here ("timm.*": the public classes
    # and functions defined in it), or one full name ("transformers.AutoModel.from_pretrained").
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
    # Functions that are called with arguments from the config only. Functions in lab's other folders need _partial_:
    # true, because the run adds arguments.
    factories=("lab.models.*",),
    remedies={
        "transformers.AutoModel": "use model=pretrained, which loads only safetensors and runs no code from the folder",
    },
    schema=RootConfig,
    own={"data": DataConfig, "optim": OptimConfig, "task": TaskConfig},
    # old import paths in saved configs: new ones
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
        "lab.datasets.mixed.in_shares": "lab.datasets.mixed.mixture",
        "lab.": "lab.",  # in a renamed fork: configs from before the renaming
    },
    # old keys in saved configs and on the command line: new ones
    moved_keys={
        f"trainer.{name}": f"process.{name}"
        for name in ("max_time", "stop_at_step", "timeout", "max_restarts", "save_async")
    }
    | {
        "trainer.straggler_share": "process.straggler_threshold",
        "process.straggler_share": "process.straggler_threshold",
        "trainer.eval_in_step": "trainer.pad_eval_batches",
        "data.split": "data.split_ratio",
        "data.values": "data.decode",
        "data.masked": "data.missing",
        "data.parts.*.split": "data.parts.*.split_ratio",
        "data.parts.*.values": "data.parts.*.decode",
        "data.parts.*.masked": "data.parts.*.missing",
        "task.frozen": "task.freeze",
        "task.ratio": "",  # template only
    },
    moved_values={"decode": {"meant": True, "stored": False}},
    # renamed arguments: only of this class, because another class may have an argument of the same name
    moved_arguments={
        "values": "lab.datasets.h5.Dataset",
        "masked": "lab.datasets.h5.Dataset",
        "frozen": "lab.tasks.finetune.Finetune",  # template only
        "ratio": "lab.tasks.fixmatch.FixMatch",  # template only
    },
    # names of version 0.2 that commands and yamls may still use, with a warning
    aliases=(
        "process.straggler_share",
        "trainer.eval_in_step",
        "data.split",
        "data.values",
        "data.masked",
        "data.parts.*.split",
        "data.parts.*.values",
        "data.parts.*.masked",
        "task.frozen",
        "lab.datasets.mixed.in_shares",
    ),
    # keys of paths; a relative path is relative to the working directory of the command
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
        "missing_columns": missing_columns,
        "folder_classes": "lab.datasets.image_folder:folder_classes",
        "column_shape": "lab.datasets.column_resolvers:column_shape",
        "column_outputs": "lab.datasets.column_resolvers:column_outputs",
        "first_part": "lab.datasets.mixture:first_part",
    },
    watching=("callback",),
    default_arguments={"seed": "seed", "batch_size": "trainer.global_batch_size"},
    expand=expand,
)
