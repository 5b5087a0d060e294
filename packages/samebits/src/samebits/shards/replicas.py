"""Do all ranks hold the same? Each computes a checksum of the bits of every tensor; ranks compare them.

plain tensors            the same on all ranks
DTensors (trainer=fsdp)  a shard is the same on the ranks that hold this shard; with replicas=1 no other does
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from samebits.errors import RunFailed
from samebits.shards.tensors import is_part, local_parts
from samebits.world import World, to_host

ODD = 0x9E3779B97F4A7C15 - (1 << 64)  # 2**64 / golden ratio, as int64
BLOCK, DEVICE_BLOCK = 1 << 16, 1 << 22  # numbers that are multiplied at once: in a core's cache; on a GPU
# by the bytes of a number; of 64 bits the highest would count but once
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int32}

Sums = dict[str, dict[str, Any]]  # {which ranks hold the same: {name: checksum}}


class Replicas:
    """Ends the run where ranks have parted. step: the last at which they were equal."""

    def __init__(self, step: int = 0) -> None:
        self.step = step

    @torch.no_grad()
    def check(self, held: Iterable[tuple[str, Any]], step: int, world: World) -> None:
        """RunFailed, on all ranks, if a value is not the same on all that should hold it. All ranks call this.

        held: (name, tensor or number). Waits for the device, once for each device that holds some of them."""
        if world.size == 1:
            return
        own = _sums(held)
        digests = {
            whose: hashlib.blake2b(repr(sums).encode(), digest_size=16).hexdigest() for whose, sums in own.items()
        }
        if world.broadcast_object(_unlike(world.gather_object(digests)) is not None):
            # the names in a second message, as there are thousands
            name, one, other = world.broadcast_object(_first_unlike(world.gather_object(own)))
            raise RunFailed(
                f"ranks {one} and {other} no longer hold the same {name} at step {step} (all was equal at step "
                f"{self.step}): what changes weights, the optimizer's state or the task's buffers must do so alike on "
                "all ranks, callbacks too; nothing of this was saved"
            )
        self.step = step


def numbers_in(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    """(name, value) of the tensors and numbers in nested containers."""
    if isinstance(value, (Tensor, bool, int, float, complex, str)):
        yield name, value
    elif isinstance(value, (dict, list, tuple)):
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            yield from numbers_in(f"{name} {key}", item)


def checksum(value: Tensor) -> Tensor:
    """0-d int64, on the tensor's device: the sum of its bits as numbers times odd ones of their places, modulo 2**64.
    So a change of one number always changes it, and others but once in 2**60 or so."""
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
            sums[name] = 0  # its place: all ranks have the same order
            waiting.setdefault(total.device, []).append((sums, name, total))
        else:
            sums[name] = repr(value)
    for entries in waiting.values():
        numbers = to_host(torch.stack([total for *_, total in entries]))
        for (sums, name, _), number in zip(entries, numbers):
            sums[name] = number
    return found


def _holders(value: Any) -> str:
    """A text that ranks share that hold the same of `value`: for a DTensor, its shard."""
    if not is_part(value):
        return "all"
    places = zip(value.device_mesh.get_coordinate(), value.placements)
    return f"shard {[place for place, placement in places if placement.is_shard()]}"


def _unlike(told: Sequence[Mapping[str, Any]]) -> tuple[str, int, int] | None:
    """Returns (key, rank, rank) of the first key that two ranks have with unlike values. told: of each rank."""
    seen: dict[str, int] = {}
    for rank, values in enumerate(told):
        for key, value in values.items():
            first = seen.setdefault(key, rank)
            if told[first][key] != value:
                return key, first, rank
    return None


def _first_unlike(told: Sequence[Sums]) -> tuple[str, int, int] | None:
    """Returns (name, rank, rank) of the first value that differs; a name that one of the two lacks differs, too."""
    if (found := _unlike(told)) is None:  # not on rank 0
        return None
    whose, one, other = found
    a, b = told[one][whose], told[other][whose]
    name = next(name for name in (*a, *b) if a.get(name) != b.get(name) or (name in a) != (name in b))
    return name, one, other
