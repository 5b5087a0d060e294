"""Decide which shards each rank writes into a sharded checkpoint, and make the index of all shards.

torch's own function, dcp.save, gathers a pickled plan from each rank at each save. Rank 0 merges the plans in Python,
sends each rank its part, and later sends the whole index to all. For 100 ranks this takes seconds of CPU time
(benchmarks/scale_shards.py), during which the loop hardly runs. Here each rank decides alone what it writes, without
a message. Only the index needs all ranks, and SavePlan keeps it: saves of the same tensors with the same sharding
write the same index.

torch.distributed.checkpoint (DCP) is imported in the functions that use it.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from samebits.checkpoints.archives import write_tensor
from samebits.checkpoints.integrity import CHUNK, Summing
from samebits.shards import is_dtensor, local_parts
from samebits.world import World

Row = list[Any]  # [number of the tensor, offsets, sizes, first byte, number of bytes] of one shard in a rank's file


class Shard(NamedTuple):
    """A part of a tensor: the tensor's number and key, the part's first index and its size in each dimension."""

    number: int
    key: str
    offsets: list[int]
    sizes: list[int]


class SavePlan:
    """The shards that this rank writes, and on rank 0 the index. They are kept until the tensors or their sharding
    change.

    rows: this rank's shards as the index has them; None before the first save.
    """

    def __init__(self) -> None:
        self._layout: list[tuple[Any, ...]] | None = None
        self._shards: list[Shard] = []
        self.rows: list[Row] | None = None
        self.index: bytes | None = None

    def shards(self, tensors: Mapping[str, Tensor], world: World) -> list[Shard]:
        """Return the shards that this rank writes."""
        layout = [
            (key, value.dtype, value.shape, *((value.device_mesh, value.placements) if is_dtensor(value) else ()))  # type: ignore[attr-defined]
            for key, value in tensors.items()
        ]
        if layout != self._layout:
            self._layout, self._shards = layout, own_shards(tensors, world)
            self.rows = self.index = None
        return self._shards


def own_shards(tensors: Mapping[str, Tensor], world: World) -> list[Shard]:
    """Return the shards that this rank writes. Several ranks may hold the same shard (trainer.fsdp.replicas, buffers):
    the one with the fewest bytes so far writes it. All ranks compute the same answer."""
    found: list[Shard] = []
    written: dict[int, list[int]] = {}  # number of copies -> bytes that the holder of each copy writes
    for number, (key, value) in enumerate(tensors.items()):
        copies, own = _copies(value, world)
        load = written.setdefault(copies, [0] * copies)
        writer = load.index(min(load))
        load[writer] += value.numel() * value.element_size()
        if writer != own:
            continue
        offsets, sizes = [0] * value.dim(), list(value.shape)
        if is_dtensor(value):
            (chunk,) = value.__create_chunk_list__()  # type: ignore[attr-defined]
            offsets, sizes = list(chunk.offsets), list(chunk.sizes)
        if 0 not in sizes or 0 in value.shape:  # a tensor of few rows leaves nothing for some ranks
            found.append(Shard(number, key, offsets, sizes))
    return found


def _copies(value: Any, world: World) -> tuple[int, int]:
    """Return (number of ranks that hold the same shard as this rank, this rank's number among them)."""
    if not is_dtensor(value):
        return world.size, world.rank
    copies, own = 1, 0
    for dim, placement in enumerate(value.placements):
        if placement.is_replicate():
            size = value.device_mesh.size(dim)
            copies, own = copies * size, own * size + value.device_mesh.get_coordinate()[dim]
    return copies, own


def write_shards(path: Path, tensors: Mapping[str, Tensor], shards: Sequence[Shard]) -> tuple[int, int, list[Row]]:
    """Write the shards into one file, as DCP does. Return (bytes, CRC-32, rows of the index)."""
    rows = []
    with open(path, "wb", buffering=0) as file, io.BufferedWriter(summed := Summing(file), CHUNK) as buffered:
        for number, key, offsets, sizes in shards:
            part = local_parts([tensors[key]])[0].detach().cpu()
            if part.untyped_storage().nbytes() != part.nbytes:
                part = part.clone()  # torch.save writes the whole storage
            first = buffered.tell()
            write_tensor(part, buffered)
            rows.append([number, offsets, sizes, first, buffered.tell() - first])
        buffered.flush()
        os.fsync(file.fileno())
        return file.tell(), summed.sum, rows


def file_of(rank: int) -> str:
    """Return the name of a rank's file, which DCP gives it too."""
    return f"__{rank}_0.distcp"


def is_whole(shape: Sequence[int], parts: Sequence[tuple[Sequence[int], Sequence[int]]]) -> bool:
    """Return True if the parts are a grid that has each element of the shape once. parts: (offsets, sizes) of each."""
    if 0 in shape:
        return all(0 in sizes for _, sizes in parts)
    cells = 1
    for dim, size in enumerate(shape):
        end, cuts = 0, sorted({(offsets[dim], sizes[dim]) for offsets, sizes in parts})
        for offset, length in cuts:
            if offset != end or length < 1:
                return False
            end += length
        if end != size:
            return False
        cells *= len(cuts)
    return len({tuple(offsets) for offsets, _ in parts}) == len(parts) == cells


def make_index(tensors: Mapping[str, Tensor], rows: Sequence[Sequence[Row]]) -> bytes:
    """Return DCP's index. rows: of each rank. Raise ValueError if the shards of a tensor are not the whole tensor."""
    from torch.distributed.checkpoint.filesystem import _StorageInfo
    from torch.distributed.checkpoint.metadata import (
        ChunkStorageMetadata,
        Metadata,
        MetadataIndex,
        TensorProperties,
        TensorStorageMetadata,
    )

    keys = list(tensors)
    chunks: list[list[ChunkStorageMetadata]] = [[] for _ in keys]
    places = {}
    for rank, own in enumerate(rows):
        name = file_of(rank)
        for number, offsets, sizes, first, length in own:
            places[MetadataIndex(keys[number], offsets, len(chunks[number]))] = _StorageInfo(name, first, length)
            chunks[number].append(ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)))
    entries = {}
    for (key, value), parts in zip(tensors.items(), chunks):
        if not is_whole(value.shape, [(part.offsets, part.sizes) for part in parts]):
            raise ValueError(f"the shards of {key} do not make up its shape {tuple(value.shape)}")
        entries[key] = TensorStorageMetadata(TensorProperties(dtype=value.dtype), value.size(), parts)
    # planner_data is for torch's tools that convert a checkpoint: the path of each key in a nested state dict
    return pickle.dumps(Metadata(entries, {key: (key,) for key in keys}, places))  # type: ignore[arg-type]
