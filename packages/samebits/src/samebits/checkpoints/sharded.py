"""Save sharded checkpoints: each rank writes its shards into one directory, in the format of
torch.distributed.checkpoint (DCP).

    last_000000040.dcp/
      __0_0.distcp, __1_0.distcp, ...   tensors of the model, its EMA and the optimizer
      .metadata                         DCP's index: the file and offset of each shard of each tensor
      rest.pt                           the rest of the payload, sizes and CRC-32 of the files; written last

The directory is written under a temporary name and renamed. Any number of ranks can read it (resharding), and so can
torch's own functions (dcp.load). DCP's index is a pickle; only DCP's own classes are allowed in it. shard_plan.py says
why dcp.save is not used. DCP is imported in the functions that use it.

torch's get_state_dict and set_state_dict are not used, for these reasons (measured with torch 2.13 and 240 sharded
parameters): they unpickle numbers and options of the optimizer, which can run any code; a new optimizer takes a step
with lr=0, which moves the weights if its step does not scale with lr; a load takes 1.5 to 1.9 times the CPU time; the
state dict of a save takes 14 ms instead of 0.3 ms.
"""

from __future__ import annotations

import errno
import os
import pickle
import shutil
import warnings
import zlib
from collections.abc import Callable, Collection, Mapping
from enum import EnumMeta
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from samebits.checkpoints.integrity import (
    WHOLE,
    RankShare,
    check_files,
    check_tensors,
    check_zip,
    failure_line,
    reading,
)
from samebits.checkpoints.shard_plan import Row, SavePlan, file_of, is_whole, make_index, write_shards
from samebits.errors import RunFailed
from samebits.files import check_regular, sync_folder
from samebits.schema import misfits
from samebits.shards import empty_like, is_dtensor, is_sharded
from samebits.world import World

SUFFIX, REST, INDEX = ".dcp", "rest.pt", ".metadata"
ENTRIES = ("model", "ema", "optimizer")
_DCP = "torch.distributed.checkpoint"
_METADATA = ["Metadata", "TensorStorageMetadata", "TensorProperties", "ChunkStorageMetadata", "MetadataIndex"]
_METADATA += ["StorageMeta", "BytesStorageMetadata", "_MEM_FORMAT_ENCODING"]
_IN_INDEX = {
    ("torch", "Size"),
    ("torch.serialization", "_get_layout"),
    ("collections", "OrderedDict"),
    ("pathlib", "PosixPath"),
    ("pathlib._local", "PosixPath"),
    (f"{_DCP}.filesystem", "_StorageInfo"),
    *((f"{_DCP}.metadata", name) for name in _METADATA),
    *(("torch", name) for name, value in vars(torch).items() if isinstance(value, torch.dtype)),
}
KINDS = {"files": dict[str, int], "sums": dict[str, int], "keys": list[str]}  # in rest.pt, in addition to the payload
Template = Callable[[str], "Tensor | None"]  # key of a tensor, as in `split` -> DTensor with its sharding


def save(
    payload: dict[str, Any],
    path: Path,
    world: World,
    save_file: Callable[[dict[str, Any], Path], None],
    group: Any = None,
    plan: SavePlan | None = None,
) -> None:
    """Save a sharded checkpoint; all ranks call this.

    payload: its tensors are DTensors or equal on all ranks. save_file: writes rest.pt. group: the ranks' process group,
    None for the default one (World.thread_group). plan: of the run's earlier saves. Raise RunFailed if the files cannot
    be written.
    """
    temporary = path.with_name(f".{path.name}.tmp")
    tensors, rest = split(payload)
    _make_folder(temporary, path, world, group)
    plan = plan or SavePlan()
    sizes, sums = _write_parts(temporary, path, tensors, plan, world, group)
    if plan.index is None:  # on ranks other than 0
        return
    try:
        _write_index(temporary, plan.index, sizes.keys())
        sizes[INDEX], sums[INDEX] = len(plan.index), zlib.crc32(plan.index)
        save_file(rest | {"files": sizes, "sums": sums, "keys": list(tensors)}, temporary / REST)
    except (OSError, RunFailed) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        _raise_failure([0, failure_line(error)], path, error)
    before = set_aside(path)  # deleted last, because it takes seconds, in which the process may be killed
    temporary.replace(path)
    sync_folder(path.parent)
    shutil.rmtree(before, ignore_errors=True)


def _make_folder(folder: Path, path: Path, world: World, group: Any) -> None:
    """Make an empty folder on rank 0, before any rank writes into it."""
    error = None
    if world.is_main:
        try:
            shutil.rmtree(folder, ignore_errors=True)  # left by a process that was killed
            folder.mkdir()  # not its parents: the run directory may have been removed
        except OSError as caught:
            error = caught
    _raise_failure(world.broadcast_object(error and [0, failure_line(error)], group), path, error)


def _write_parts(
    folder: Path, path: Path, tensors: dict[str, Tensor], plan: SavePlan, world: World, group: Any
) -> tuple[dict[str, int], dict[str, int]]:
    """Write this rank's file. On rank 0 set `plan.index`, and return ({file: bytes}, {file: CRC-32}) of all ranks."""
    error, size, total = None, 0, 0
    rows: list[Row] = []
    try:
        size, total, rows = write_shards(folder / file_of(world.rank), tensors, plan.shards(tensors, world))
    except Exception as caught:
        error = caught
    told = world.gather_object([error and failure_line(error), size, total, rows != plan.rows], group)
    failure = next(([rank, line] for rank, (line, *_) in enumerate(told) if line), None)
    # an index needs the rows of all ranks. They are the same in each save of the same tensors
    renew = plan.index is None or any(changed for *_, changed in told)
    failure, renew = world.broadcast_object([failure, renew], group)
    if failure and world.is_main:
        shutil.rmtree(folder, ignore_errors=True)
    _raise_failure(failure, path, error)
    if renew:
        all_rows, plan.rows = world.gather_object(rows, group), rows
        plan.index = make_index(tensors, all_rows) if world.is_main else None
    sizes = {file_of(rank): size for rank, (_, size, *_) in enumerate(told)}
    return sizes, {file_of(rank): total for rank, (_, _, total, _) in enumerate(told)}


def _write_index(folder: Path, index: bytes, files: Collection[str]) -> None:
    """Write the index. Raise FileNotFoundError if a rank has written its file into another folder."""
    unseen = sorted(set(files) - set(os.listdir(folder)))
    if unseen:
        raise FileNotFoundError(
            errno.ENOENT,
            f"rank 0 does not see {unseen[0]}, which another host has written: they must share the directory",
        )
    with open(folder / INDEX, "wb") as file:
        file.write(index)
        file.flush()
        os.fsync(file.fileno())


def _raise_failure(failure: Any, path: Path, error: Exception | None) -> None:
    """Raise RunFailed if a rank has failed. failure: [rank, text] or None. error: this rank's own."""
    if failure:
        rank, text = failure
        raise RunFailed(f"{path} cannot be written: {text} (rank {rank}); earlier checkpoints are complete") from error


def set_aside(path: Path) -> Path:
    """Rename a checkpoint directory before its deletion: a part of it is no checkpoint. Return its new path."""
    hidden = path.with_name(f".{path.name}.old")
    shutil.rmtree(hidden, ignore_errors=True)
    if path.exists():
        path.replace(hidden)
    return hidden


def split(payload: dict[str, Any]) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return ({model.<name>, ema.<name>, optimizer.<number>.<name>: tensor}, the payload without these tensors)."""
    tensors = {f"model.{name}": value for name, value in payload["model"].items()}
    if payload["ema"] is not None:
        tensors |= {f"ema.{name}": value for name, value in payload["ema"].items()}
    kept: dict[int, dict[str, Any]] = {}
    for number, values in payload["optimizer"]["state"].items():
        kept[number] = {name: value for name, value in values.items() if not isinstance(value, Tensor)}
        tensors |= {f"optimizer.{number}.{k}": value for k, value in values.items() if isinstance(value, Tensor)}
    rest = {key: value for key, value in payload.items() if key not in ENTRIES}
    rest["optimizer"] = payload["optimizer"] | {"state": kept}
    return tensors, rest


def joined(tensors: Mapping[str, Tensor], rest: dict[str, Any]) -> dict[str, Any]:
    """Return the payload from the results of `split`."""
    payload: dict[str, Any] = {**rest, "model": {}, "ema": {}}
    state = {number: dict(values) for number, values in rest["optimizer"]["state"].items()}
    for key, value in tensors.items():
        part, name = key.split(".", 1)
        if part == "optimizer":
            number, name = name.split(".", 1)
            state[int(number)][name] = value
        else:
            payload[part][name] = value
    payload["ema"] = payload["ema"] or None
    payload["optimizer"] = rest["optimizer"] | {"state": state}
    for key in ("files", "sums", "keys", "shards"):
        payload.pop(key, None)
    return payload


def head(path: Path, share: RankShare = WHOLE) -> dict[str, Any]:
    """Return the payload without its tensors; "shards" is the directory. Raise if a file is missing or damaged.

    share: (rank, ranks), the part of the files that this rank checks.
    """
    check_regular(path / REST)
    check_zip(path / REST)
    rest: dict[str, Any] = torch.load(path / REST, map_location="cpu", weights_only=True)
    check_tensors(rest)
    sums = rest.get("sums", {})  # older checkpoints have sizes only
    if wrong := misfits({**rest, "sums": sums}, KINDS):
        raise ValueError(f"{REST}: keys of a wrong type: {', '.join(wrong)}")
    if not sums.keys() <= rest["files"].keys():
        raise ValueError(f"{REST} has checksums of files that are not in the checkpoint")
    check_files(path, rest["files"], sums, share)
    return rest | {"shards": str(path)}


def _member(kind: Any, name: str) -> Any:
    if isinstance(kind, EnumMeta) and name in kind.__members__:
        return kind[name]
    raise pickle.UnpicklingError(f"{INDEX} requires {name} of {kind}, which a checkpoint never contains")


class _Index(pickle.Unpickler):
    """Unpickle DCP's index with only the classes in _IN_INDEX, because a checkpoint must not run code."""

    def find_class(self, module: str, name: str) -> Any:
        """Return an allowed class. Raise UnpicklingError for any other."""
        if (module, name) in _IN_INDEX:
            return super().find_class(module, name)
        if (module, name) == ("builtins", "getattr"):  # a member of an enum in pickles of Python 3.11.0 to 3.11.3
            return _member
        raise pickle.UnpicklingError(f"{INDEX} requires {module}.{name}, which a checkpoint never contains")


def load(
    path: Path,
    entries: Collection[str] = ENTRIES,
    template: Template = lambda key: None,
    checked: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the payload. entries: keys whose tensors are loaded. checked: what `head` has returned.

    A tensor with a template of its shape is read as this rank's shard; any other is read whole, on the CPU.
    """
    import torch.distributed.checkpoint as dcp

    rest = dict(head(path) if checked is None else checked)
    with open(path / INDEX, "rb") as file:
        metadata = _Index(file).load()

    class Reader(dcp.FileSystemReader):
        def read_metadata(self, *args: Any, **kwargs: Any) -> Any:
            return metadata  # torch's own would unpickle the index again, and run code that is in it

    tensors = {}
    room, index = sum(rest["files"].values()), metadata.state_dict_metadata
    if strange := {info.relative_path for info in metadata.storage_data.values()} - rest["files"].keys():
        raise ValueError(f"{INDEX} names {strange.pop()!r}, which is not a file of the checkpoint")
    for key in dict.fromkeys(rest["keys"]):
        room -= index[key].size.numel() * index[key].properties.dtype.itemsize
        if room < 0 or not is_whole(index[key].size, [(chunk.offsets, chunk.sizes) for chunk in index[key].chunks]):
            raise ValueError(f"{INDEX}: the shape of {key}, {tuple(index[key].size)}, does not fit the saved data")
        if key.split(".", 1)[0] in entries:
            stored, like = index[key], template(key)
            dtype = stored.properties.dtype
            in_part = like is not None and like.shape == stored.size
            tensors[key] = empty_like(like, dtype) if in_part else torch.empty(stored.size, dtype=dtype)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*load in a single process")
        try:
            dcp.load(tensors, storage_reader=Reader(path), no_dist=True)
        except dcp.api.CheckpointException as error:  # a BaseException
            raise ValueError(f"{path} cannot be read: {next(iter(error.failures.values()))[0]}") from error
    if "optimizer" not in entries:
        rest["optimizer"] = {"state": {}, "param_groups": []}
    return joined(tensors, rest)


def reshard_like(
    payload: dict[str, Any], model: nn.Module, optimizer: Any = None, entries: Collection[str] = ENTRIES
) -> dict[str, Any]:
    """Return the payload with its tensors sharded in the same way as `model`.

    payload: as `load_lazily` returns it. If it has no tensors, they are read from its directory. entries: keys of the
    payload whose tensors are read.
    """
    template = templates(model, optimizer)
    if "shards" in payload:
        with reading(Path(payload["shards"])):
            return load(Path(payload["shards"]), entries, template, checked=payload)
    if not is_sharded(model):
        return payload
    tensors, rest = split(payload)
    return joined({key: _cut(value, template(key)) for key, value in tensors.items()}, rest)


def templates(model: nn.Module, optimizer: Any) -> Template:
    """Return a Template: weights are sharded like the model's, optimizer state like its parameter."""
    weights = model.state_dict()
    parameters = [p for group in optimizer.param_groups for p in group["params"]] if optimizer else []

    def template(key: str) -> Tensor | None:
        part, name = key.split(".", 1)
        number = int(name.split(".")[0]) if part == "optimizer" else 0
        if part == "optimizer":
            like = parameters[number] if number < len(parameters) else None
        else:
            like = weights.get(name)
        return like if is_dtensor(like) else None

    return template


def _cut(value: Tensor, like: Tensor | None) -> Tensor:
    """Return this rank's shard of a whole tensor, or the whole tensor if it has no template of its shape."""
    if like is None or like.shape != value.shape:
        return value
    from torch.distributed.tensor import DTensor, distribute_tensor

    assert isinstance(like, DTensor)
    # src_data_rank=None: each rank has the whole tensor and keeps its shard, without communication
    mesh = like.device_mesh
    cut = distribute_tensor(value.to(mesh.device_type), mesh, like.placements, src_data_rank=None)
    return empty_like(like, value.dtype).copy_(cut)  # type: ignore[no-any-return] # with CPU offload the weights are on the host
