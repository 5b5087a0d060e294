"""A model built without memory: its __init__ runs on the meta device, and weights are computed later, one by one.

    tape = Tape()
    with tape: model = GPT(...)     operations on new tensors are recorded, none is carried out
    shard(model, ...)               still without memory
    fill_model(model, ...)              memory for this rank's shards; each weight is computed, and its shard kept

The weights are bit for bit those of a plain build from the same seed, whatever __init__ does (scaled or zeroed layers,
tables of sines, tied weights): a random operation is carried out with the state that torch's generator would have had.
To get from one state to the next its numbers must be drawn, so most weights are drawn as the tape is read in order, and
those that later operations change a second time. At most one weight, and what it is made of, is in memory at a time.

What cannot be recorded raises Unrecorded: weights that leave torch (numpy), or that are drawn with a generator of the
model's own.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_unflatten

TRUNC_NORMAL = "_no_grad_trunc_normal_"
OVERWRITES = ("normal_", "uniform_", "zero_", "fill_", "copy_")  # what was in the tensor before does not matter


class Unrecorded(Exception):
    """The model's __init__ does what a tape does not hold; build it as usual."""


@dataclass(frozen=True)
class Ref:
    """A tensor of the recording: part of a storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


@dataclass
class Operation:
    function: Any
    arguments: list[Any]  # flat; tensors of the recording as Ref, others as they are
    spec: Any
    results: list[Any]
    reads: set[int]  # storages
    writes: set[int]  # changed in place, or made
    clears: bool  # it sets all of the storage that it writes
    random: bool
    versions: list[tuple[Tensor, int]]  # real tensors among the arguments: no tape sees how these change
    state: Tensor | None = None  # the generator's, before it


class Tape(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.operations: list[Operation] = []
        self._kept: dict[int, Any] = {}  # storages on meta, kept alive: their numbers must not be used again
        self._bytes: dict[int, int] = {}
        self._state = torch.get_rng_state()
        self._disguise = _Disguise()
        self._scratch = torch.UntypedStorage(0)
        self._drawn = 0  # operations whose random numbers have been drawn

    # ---- recording

    def __enter__(self) -> Any:
        if self._drawn == len(self.operations):  # random numbers may have been drawn since
            self._state = torch.get_rng_state()
        self._disguise.__enter__()
        self._trunc_normal = getattr(nn.init, TRUNC_NORMAL, None)
        setattr(nn.init, TRUNC_NORMAL, self._record_trunc_normal)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        setattr(nn.init, TRUNC_NORMAL, self._trunc_normal)
        self._disguise.__exit__(*error)

    def _record_trunc_normal(self, tensor: Tensor, *more: Any, **options: Any) -> Tensor:
        """As one operation: it draws again until all values are within the limits, which would read the values."""
        with torch._C.DisableTorchFunction():
            flat, spec = tree_flatten(((_ref(tensor), *more), options))
            self._record(self._trunc_normal, flat, spec, [tensor], tensor)
        return tensor

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        with torch._C.DisableTorchFunction():
            return self._dispatched(function, args, dict(kwargs or {}))

    def _dispatched(self, function: Any, args: Any, kwargs: dict[str, Any]) -> Any:
        flat, spec = tree_flatten((args, kwargs))
        tensors = [value for value in flat if isinstance(value, Tensor)]
        recorded = [value for value in tensors if value.is_meta]
        name = function.overloadpacket.__name__
        if not tensors and _makes(function, kwargs):
            kwargs["device"] = torch.device("meta")
            made = function(*args, **kwargs)
            kwargs |= {"device": torch.device("cpu"), "dtype": made.dtype, "pin_memory": False}
            flat, spec = tree_flatten((args, {k: v for k, v in kwargs.items() if _takes(function, k)}))
            self._record(function, flat, spec, [], made)
            return made
        if not recorded:
            if torch.Tag.nondeterministic_seeded in function.tags:
                raise Unrecorded(f"{function} draws by numbers that are no weights")
            return function(*args, **kwargs)
        if name == "_local_scalar_dense":
            return function(self.value(recorded[0]))
        if name == "_to_copy" and torch.device(kwargs.get("device") or "meta").type == "cpu":  # .tolist(), .cpu()
            return function(self.value(recorded[0]), **kwargs)
        if any(torch.device(value).type not in ("cpu", "meta") for value in flat if isinstance(value, torch.device)):
            raise Unrecorded(f"{function} moves a weight to another device")
        written = [value for value in _written(function, args, kwargs) if isinstance(value, Tensor)]
        if any(not value.is_meta for value in written):
            raise Unrecorded(f"{function} writes weights into a tensor that was made before the model")
        before = [_ref(value) if isinstance(value, Tensor) and value.is_meta else value for value in flat]
        on_meta_args, on_meta_kwargs = tree_unflatten([_meta(value) for value in flat], spec)
        result = function(*on_meta_args, **on_meta_kwargs)
        self._record(function, before, spec, written, result)
        return result

    def _record(self, function: Any, arguments: list[Any], spec: Any, written: list[Tensor], result: Any) -> None:
        results = [value for value in tree_flatten(result)[0] if isinstance(value, Tensor)]
        real = [value for value in arguments if isinstance(value, Tensor)]
        refs = [value for value in arguments if isinstance(value, Ref)]
        own = {ref.storage for ref in refs}
        if any(number not in self._kept for number in own):
            raise Unrecorded("the model is built on the meta device by its own code")
        new = [value for value in results if _storage(value) not in own]
        for value in new:
            number = _storage(value)
            self._kept[number], self._bytes[number] = value.untyped_storage(), value.untyped_storage().nbytes()
        if not written and not new:  # a view
            return
        truncated = function is self._trunc_normal
        random = truncated or torch.Tag.nondeterministic_seeded in function.tags
        inputs = len(refs) + len(real) - len(written)
        if random and (inputs or any(isinstance(value, torch.Generator) for value in arguments)):
            raise Unrecorded(f"{function} draws weights from other tensors, or by a generator of the model's own")
        overwrites = bool(written) and (truncated or function.overloadpacket.__name__ in OVERWRITES)
        if overwrites:
            ref = _ref(written[0])
            overwrites = ref.dtype.itemsize * math.prod(ref.size) == self._bytes[ref.storage]
            own = {one.storage for one in refs[1:]} if overwrites else own
        elif new and re.search(r"^new_|_like$", function.overloadpacket.__name__):
            own = set()  # takes the shape, not the content
        self.operations.append(
            Operation(
                function,
                arguments,
                spec,
                [_ref(value) for value in results],
                reads=own,
                writes={_storage(value) for value in (*written, *new)},
                clears=bool(new) or overwrites,
                random=random,
                versions=[(value, value._version) for value in real],
            )
        )

    # ---- carrying out

    def draw(self, upto: int | None = None, then: Callable[[int, Operation], bool] = lambda i, one: False) -> None:
        """Find the generator's state before each random operation up to number `upto` (None: all), by drawing; torch's
        generator then has the state that a plain build leaves. then(number, operation): does it itself, or is False."""
        end = len(self.operations) if upto is None else upto
        torch.set_rng_state(self._state)
        todo = [one for one in self.operations[self._drawn : end] if one.random]
        states = torch.empty(len(todo), len(self._state), dtype=torch.uint8)  # at once: small ones would split the heap
        for operation, state in zip(todo, states):
            operation.state = state
        for number in range(self._drawn, end):
            operation = self.operations[number]
            if operation.random:
                assert operation.state is not None
                operation.state.copy_(torch.get_rng_state())
                if not then(number, operation):
                    self._run(operation, {})
            self._drawn = number + 1
        self._state = torch.get_rng_state()

    def clear(self) -> None:
        """Free what the operations hold, such as a file's tensors that were copied into weights."""
        self.operations.clear()
        self._scratch = torch.UntypedStorage(0)

    def value(self, tensor: Tensor) -> Tensor:
        """A recorded tensor's value at this point of the recording."""
        ref = _ref(tensor)
        slice_ = self._made_of(ref.storage, len(self.operations))
        with _own_random_state(), torch.no_grad():
            if any(self.operations[number].random for number in slice_):
                self.draw(slice_[-1] + 1)
            return _tensor(ref, self._replay(slice_))

    def fill(self, tensors: Iterable[tuple[Tensor, Callable[[Tensor], None]]]) -> None:
        """tensors: (recorded tensor, what to do with its value, whose memory is used again afterwards)."""
        wanted: dict[int, list[tuple[Ref, Callable[[Tensor], None]]]] = {}
        for tensor, use in tensors:
            wanted.setdefault(_storage(tensor), []).append((_ref(tensor), use))
        slices = {storage: self._made_of(storage, len(self.operations)) for storage in wanted}

        def finish(storage: int) -> None:
            storages = self._replay(slices.pop(storage))
            for ref, use in wanted[storage]:
                use(_tensor(ref, storages))

        def last_of(number: int, operation: Operation) -> bool:
            """Finishes the weight of which this random operation is the last."""
            found = [storage for storage in operation.writes if storage in slices and slices[storage][-1] == number]
            for storage in found:
                finish(storage)
            return bool(found)

        with _own_random_state(), torch.no_grad():
            if any(self.operations[number].random for numbers in slices.values() for number in numbers):
                self.draw(then=last_of)
            for storage in list(slices):
                finish(storage)

    def _made_of(self, storage: int, end: int) -> list[int]:
        """The numbers of the operations before `end` on which the storage's content depends, in order."""
        needed, found = {storage}, []
        for number in range(end - 1, -1, -1):
            operation = self.operations[number]
            if operation.writes & needed:
                found.append(number)
                if operation.clears:
                    needed -= operation.writes - operation.reads
                needed |= operation.reads
        return found[::-1]

    def _replay(self, numbers: list[int]) -> dict[int, Any]:
        storages: dict[int, Any] = {}
        for number in numbers:
            operation = self.operations[number]
            if operation.random:
                assert operation.state is not None
                torch.set_rng_state(operation.state.clone())  # a row of a matrix: torch 2.13 crashes on it
            self._run(operation, storages)
        return storages

    def _memory(self, size: int, used: dict[int, Any]) -> Any:
        """A storage; one is used again and again, as malloc would not always find the same place."""
        if any(storage is self._scratch for storage in used.values()):
            return torch.UntypedStorage(size)
        if self._scratch.nbytes() < size:
            self._scratch = torch.UntypedStorage(size)
        return self._scratch

    def _run(self, operation: Operation, storages: dict[int, Any]) -> None:
        if any(value._version != version for value, version in operation.versions):
            raise Unrecorded(f"{operation.function} read a tensor that was changed afterwards")
        for value in operation.arguments:
            if isinstance(value, Ref) and value.storage not in storages:
                storages[value.storage] = self._memory(self._bytes[value.storage], storages)
        real = [_tensor(value, storages) if isinstance(value, Ref) else value for value in operation.arguments]
        args, kwargs = tree_unflatten(real, operation.spec)
        results = [value for value in tree_flatten(operation.function(*args, **kwargs))[0] if isinstance(value, Tensor)]
        for ref, value in zip(operation.results, results):
            if (ref.size, ref.stride, ref.dtype) != (tuple(value.shape), value.stride(), value.dtype):
                raise Unrecorded(f"{operation.function} gives another layout on the meta device")
            storages.setdefault(ref.storage, value.untyped_storage())


class _Disguise(TorchFunctionMode):
    """A model's code sees tensors on the CPU: some initialisers of torch leave a tensor on meta as it is."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in _SEEN and args[0].is_meta:
            return _SEEN[function]
        if function is Tensor.__setitem__ and isinstance(args[2], (bool, int, float)) and args[0].is_meta:
            # torch would make a tensor of the number where no tape sees it
            args = (args[0], args[1], torch.full((), args[2], dtype=args[0].dtype))
        return function(*args, **kwargs or {})


_SEEN: dict[Any, Any] = {
    Tensor.is_meta.__get__: False,  # type: ignore[attr-defined]
    Tensor.is_cpu.__get__: True,  # type: ignore[attr-defined]
    Tensor.device.__get__: torch.device("cpu"),  # type: ignore[attr-defined]
}


Held = list[tuple[nn.Module, str, Tensor]]


def tensors_of(model: nn.Module) -> Held:
    """(module, attribute, tensor): all parameters, buffers, and tensors that are plain attributes."""
    kinds = ((module, vars(module)[kind]) for module in model.modules() for kind in ("_parameters", "_buffers"))
    found = [*kinds, *((module, vars(module)) for module in model.modules())]
    return [(module, k, v) for module, inner in found for k, v in inner.items() if isinstance(v, Tensor)]


def fill_model(model: nn.Module, recorded: Held, tape: Tape, weights_on: torch.device, device: torch.device) -> None:
    """Give a recorded model, which may have been sharded since, memory and values, in place.

    recorded: what of `tensors_of`, before it was sharded, gets its value; the rest is left uninitialised.
    weights_on: device of sharded parameters; device: of all else.
    """
    allocate_model(model, weights_on, device)
    tape.fill((value, partial(_set, module, name, device)) for module, name, value in recorded if value.is_meta)


def allocate_model(model: nn.Module, weights_on: torch.device, device: torch.device) -> None:
    def moved(value: Tensor) -> Tensor:
        place = weights_on if hasattr(value, "full_tensor") else device
        return torch.empty_like(value, device=place) if value.is_meta else value.to(place)

    model._apply(moved)


def copy_tensors(source: nn.Module, target: nn.Module) -> None:
    """target: a copy of `source`, sharded in the same way."""
    with torch.no_grad():
        for (_, _, value), (module, name, _) in zip(tensors_of(source), tensors_of(target), strict=True):
            _set(module, name, value.device, getattr(value, "_local_tensor", value))


def _set(module: nn.Module, name: str, device: torch.device, value: Tensor) -> None:
    """value: the whole tensor, or this rank's shard of it."""
    now = getattr(module, name)
    if now.is_meta:  # a plain attribute
        setattr(module, name, value.to(device, copy=True))
    elif hasattr(now, "full_tensor"):
        own = now._local_tensor
        own.copy_(value if value.shape == own.shape else _shard(value, now))
    else:
        now.copy_(value)


def _shard(value: Tensor, like: Any) -> Tensor:
    """This rank's part of a whole tensor."""
    for dim, placement in enumerate(like.placements):
        if placement.is_shard():
            parts = value.chunk(like.device_mesh.size(dim), placement.dim)
            number = like.device_mesh.get_local_rank(dim)
            value = parts[number] if number < len(parts) else value.narrow(placement.dim, 0, 0)
    return value


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage()._cdata


def _ref(tensor: Tensor) -> Ref:
    return Ref(_storage(tensor), tensor.dtype, tuple(tensor.shape), tensor.stride(), int(tensor.storage_offset()))


def _tensor(ref: Ref, storages: dict[int, Any]) -> Tensor:
    return torch.empty(0, dtype=ref.dtype).set_(storages[ref.storage], ref.offset, ref.size, ref.stride)


def _meta(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("meta")
    return value.to("meta") if isinstance(value, Tensor) and not value.is_meta else value


def _takes(function: Any, name: str) -> bool:
    return any(argument.name == name for argument in function._schema.arguments)


def _makes(function: Any, kwargs: dict[str, Any]) -> bool:
    """Whether the function makes a tensor on the CPU from numbers alone."""
    return _takes(function, "device") and torch.device(kwargs.get("device") or "cpu").type == "cpu"


def _written(function: Any, args: Any, kwargs: dict[str, Any]) -> Iterator[Any]:
    """The arguments that the function changes in place."""
    for place, argument in enumerate(function._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = args[place] if place < len(args) else kwargs.get(argument.name)
            yield from value if isinstance(value, (list, tuple)) else [value]


@contextmanager
def _own_random_state() -> Iterator[None]:
    before = torch.get_rng_state()
    try:
        yield
    finally:
        torch.set_rng_state(before)
