"""Check that ranks have equal values: each computes checksums of the bits of its tensors, and the ranks compare them.

plain tensors            must be equal on all ranks
DTensors (trainer=fsdp)  a shard must be equal on the ranks that have the same shard; with replicas=1 there is only one
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _NormBase

from samebits.errors import RunFailed
from samebits.shards.tensors import is_dtensor, local_parts
from samebits.world import World, to_host

ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 / golden ratio, as int64
BLOCK, DEVICE_BLOCK = 1 << 16, 1 << 22  # numbers multiplied at once: in a CPU's cache; on a GPU
# by element size; in an int64 the highest bit would affect only one bit of the checksum
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

Sums = dict[str, dict[str, Any]]  # {text of _holders: {name: checksum}}


class ReplicaChecks:
    """Compare the values of ranks, and end the run if they differ. step: the last step at which they were equal."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    @torch.no_grad()
    def check(self, held: Iterable[tuple[str, Any]], step: int, world: World) -> None:
        """Raise RunFailed on all ranks if a value differs between ranks that should have the same one.

        held: (name, tensor or number). All ranks must call it. Waits once for each device that has some of the tensors.
        """
        if world.size == 1:
            return
        own = _sums(held)
        digests = {
            whose: hashlib.blake2b(repr(sums).encode(), digest_size=16).hexdigest() for whose, sums in own.items()
        }
        if world.broadcast_object(_unlike(world.gather_object(digests)) is not None):
            # names only if digests differ, because there are thousands
            name, one, other = world.broadcast_object(_first_unlike(world.gather_object(own)))
            raise RunFailed(
                f"ranks {one} and {other} no longer have the same {name} at step {step} (everything was equal "
                f"at step {self.step}): code that changes weights, the optimizer's state or the task's buffers must "
                "do the same on all ranks, also in callbacks; the differing state was not saved"
            )
        self.step = step

    @torch.no_grad()
    def warn_of_own_buffers(
        self, model: nn.Module, task: nn.Module, world: World, warn: Callable[[str], object]
    ) -> None:
        """Warn, on rank 0, if a buffer differs between ranks. All ranks must call it before a save at a stop.

        A checkpoint has the buffers of rank 0. If a stop saves it between two saves, all ranks resume with these, while
        the ranks of a run that is not stopped keep different ones. Not compared: buffers of torch's normalization
        layers, which are read only in evaluations, and the task's buffers that `sync_buffers` makes equal."""
        own = {
            f"task.{name}": buffer
            for name, buffer in _saved_buffers(task)
            if name.rpartition(".")[2].startswith("running_")
        }
        if world.size == 1 or not (own := dict(_saved_buffers(model)) | own):
            return
        if found := _first_unlike(world.gather_object(_sums(own.items()))):
            warn(
                f"the buffer {found[0]} differs between ranks, and this checkpoint has the one of rank 0: the resumed "
                "run will not equal a run that was not stopped here - compute the buffer from the samples of all ranks"
            )


def _saved_buffers(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Yield (name, buffer) of the saved buffers, without torch's normalization layers."""
    for prefix, part in module.named_modules():
        if isinstance(part, _NormBase) and type(part).__module__.startswith("torch."):
            continue
        for name, buffer in part.named_buffers(prefix, recurse=False):
            if name.rpartition(".")[2] not in part._non_persistent_buffers_set:
                yield name, buffer


def numbers_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Yield (name, value) of the tensors and numbers in nested containers."""
    if isinstance(value, (Tensor, bool, int, float, complex, str)):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(f"{name} {key}", item)


def checksum(value: Tensor) -> Tensor:
    """Return a checksum, 0-d int64 on the tensor's device: the sum of (bits of number i) * (odd factor i), modulo
    2**64.

    A change of a single number always changes it; other changes are missed about once in 2**60.
    """
    flat = value.contiguous().view(-1)
    if flat.is_complex():
        flat = torch.view_as_real(flat).view(-1)
    numbers = flat.view(INTEGERS[flat.element_size()])
    size = min(len(numbers), BLOCK if value.device.type == "cpu" else DEVICE_BLOCK)
    factors = torch.arange(1, size + 1, device=value.device).mul_(ODD).bitwise_or_(1)
    total = torch.zeros((), dtype=torch.int64, device=value.device)
    for block in numbers.split(max(size, 1)):
        total = total * ODD + (block.long() * factors[: len(block)]).sum()
    return total


def _sums(held: Iterable[tuple[str, Any]]) -> Sums:
    found: Sums = {}
    waiting: dict[torch.device, list[tuple[dict[str, Any], str, Tensor]]] = {}
    for name, value in held:
        sums = found.setdefault(_holders(value), {})
        if isinstance(value, Tensor):
            total = checksum(local_parts([value])[0])
            sums[name] = 0  # reserves its position, so that all ranks have the same order
            waiting.setdefault(total.device, []).append((sums, name, total))
        else:
            sums[name] = repr(value)
    for entries in waiting.values():
        numbers = to_host(torch.stack([total for *_, total in entries]))
        for (sums, name, _), number in zip(entries, numbers):
            sums[name] = number
    return found


def _holders(value: Any) -> str:
    """Return a text that is equal on ranks that should have the same `value`: for a DTensor it names the shard."""
    if not is_dtensor(value):
        return "all"
    places = zip(value.device_mesh.get_coordinate(), value.placements)
    return f"shard {[place for place, placement in places if placement.is_shard()]}"


def _unlike(told: Sequence[Mapping[str, Any]]) -> tuple[str, int, int] | None:
    """Return (key, rank, rank) of the first key for which two ranks have different values; None if there is none.

    told: one mapping per rank."""
    seen: dict[str, int] = {}
    for rank, values in enumerate(told):
        for key, value in values.items():
            first = seen.setdefault(key, rank)
            if told[first][key] != value:
                return key, first, rank
    return None


def _first_unlike(told: Sequence[Sums]) -> tuple[str, int, int] | None:
    """Return (name, rank, rank) of the first value that differs, or that only one of two ranks has."""
    if (found := _unlike(told)) is None:  # on ranks other than 0
        return None
    whose, one, other = found
    a, b = told[one][whose], told[other][whose]
    name = next(name for name in (*a, *b) if a.get(name) != b.get(name) or (name in a) != (name in b))
    return name, one, other
