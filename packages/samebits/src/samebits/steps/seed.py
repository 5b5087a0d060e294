"""Seed, save and restore all random number generators, and give each step its random numbers."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.torch_private import is_torchs_own, steps_bare

IN_STEPS, IN_EVALUATIONS = 1, 2  # last numbers of keys with four, which so differ from each other and from shorter keys
_CPU = torch.device("cpu")
_run_seed = 0


def seed_everything(seed: int, stream: int = 0) -> None:
    """Seed Python, numpy and torch on all devices. stream: e.g. the rank, so that ranks draw different numbers."""
    global _run_seed
    _run_seed = seed
    torch.manual_seed(_seed_host(seed, stream))


@contextmanager
def restored_rng(device: torch.device) -> Iterator[None]:
    """After this block, continue with the random numbers that would have followed without it."""
    before = _states(device)
    try:
        yield
    finally:
        _set_states(before, device)


@contextmanager
def seeded(seed: int | Tensor, *stream: int, device: torch.device = _CPU) -> Iterator[None]:
    """In this block, draw the numbers that follow seed_everything(seed). Afterwards, continue as before.

    seed: or the bytes of `rng_bytes`, to draw the numbers that follow that state.
    stream: numbers that distinguish this block from other blocks with the same seed."""
    with restored_rng(device):
        if isinstance(seed, Tensor):
            set_rng_bytes(seed, device)
        else:
            _seed_torch(_seed_host(seed, *(stream or (0,))), device)
        yield


def _seed_torch(seed: int, device: torch.device) -> None:
    torch.default_generator.manual_seed(seed)  # torch.manual_seed is slow if a device is not in use
    if device.type in ("cuda", "mps"):
        getattr(torch, device.type).manual_seed(seed)


def _seed_host(*key: int) -> int:
    """Seed Python and numpy from the key, and return a seed for torch."""
    # SeedSequence distinguishes (seed 0, stream 1) from (seed 1, stream 0); seed + stream would not
    words = np.random.SeedSequence(key).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    return (int(words[2]) << 32) + int(words[3])


@contextmanager
def warn_of_new_seed(who: str, effect: str, warn: Callable[[str], None]) -> Iterator[None]:
    """Warn if torch's seed has changed after this block. who: the subject of the warning. effect: its predicate."""
    before = torch.initial_seed()
    yield
    if torch.initial_seed() != before:
        warn(
            f"{who} {effect}, because it sets torch's seed: remove torch.manual_seed, or draw from a torch.Generator "
            "of your own"
        )


def with_seed_check(step: Callable[..., Any], who: str, warn: Callable[[str], None]) -> Callable[..., Any]:
    """Return the training step, with a warning if it sets torch's seed. Call it once, because it takes longer."""

    @wraps(step)
    def checked(*args: Any) -> Any:
        with warn_of_new_seed(who, "may draw the same random numbers, such as dropout masks, in each step", warn):
            return step(*args)

    return checked


class StepRNG:
    """Switch the random number generators within a step between shared and per-rank numbers.

    Forward and backward passes use each rank's own numbers. All ranks draw the same numbers

    - when learning rates are set;
    - between a backward pass and the next forward pass, or the end of the step (the `with` block),

    because code that changes weights, such as an optimizer that adds noise, must do the same on all ranks.

    The shared numbers depend on the seed of the run, the step and the number of calls of `use_shared` in it, not on the
    ranks. They do not affect the numbers of each rank. Nothing here waits for the device: the generator states are on
    the host."""

    def __init__(self, step: int, device: torch.device, drawn: bool = True) -> None:
        """Create the switch. drawn: False if it is known that no code draws shared numbers, which saves 0.2 ms per
        step."""
        self._step, self._device, self._drawn = step, device, drawn
        self._shared_calls = 0
        self._own: dict[str, Any] | None = None  # states of this rank while the numbers are shared

    def __enter__(self) -> StepRNG:
        return self

    def __exit__(self, *_: object) -> None:
        self.use_per_rank()

    def use_shared(self) -> None:
        """Use the same numbers on all ranks. Call it after a backward pass and before the rates are set."""
        if not self._drawn:
            return
        self._own = self._own or _states(self._device)
        seed = _seed_host(_run_seed, self._step, self._shared_calls, IN_STEPS)
        self._shared_calls += 1
        _seed_torch(seed, self._device)

    def use_per_rank(self) -> None:
        """Use this rank's own numbers. Call it before a forward pass and after the rates are set."""
        if self._own is not None:
            _set_states(self._own, self._device)
            self._own = None

    @contextmanager
    def repeatable(self, modules: Iterable[nn.Module]) -> Iterator[None]:
        """Run a forward pass that will be repeated: the next pass draws the same numbers again.

        After the block, the buffers of `modules` have their former values, and numbers are shared until the next pass.
        """
        self.use_per_rank()
        states = _states(self._device)
        buffers = [
            (part, name, buffer, None if buffer is None else buffer.clone())
            for module in modules
            for part in module.modules()
            for name, buffer in part._buffers.items()
        ]
        yield
        for part, name, buffer, value in buffers:
            if buffer is not None and value is not None:
                buffer.copy_(value)
            if part._buffers.get(name) is not buffer:  # the forward pass has assigned another tensor
                part._buffers[name] = buffer
        _set_states(states, self._device)
        self.use_shared()


def uses_no_rng(schedule: Any, optimizers: Iterable[Optimizer], others: Iterable[Any] = ()) -> bool:
    """Return True if a schedule, its optimizers and `others` are known to draw no random numbers."""
    return all(map(declares_no_rng, [schedule.factor, *others])) and all(map(optimizer_uses_no_rng, optimizers))


def optimizer_uses_no_rng(optimizer: Optimizer) -> bool:
    """Return True if an optimizer is known to draw no random numbers.

    It must be one of torch's, or declare it in its class, and so must all of its `parts`.
    """
    return is_torchs_own(optimizer) or (
        declares_no_rng(optimizer)
        and steps_bare(optimizer)
        and all(map(optimizer_uses_no_rng, getattr(optimizer, "parts", ())))
    )


def declares_no_rng(one: Any) -> bool:
    """Return True if the class of an object has `uses_rng = False`. It is not inherited: a subclass may draw."""
    return vars(type(one)).get("uses_rng") is False


# The bytes of a rank's generators: the lengths of all parts, then the parts with these dtypes. Python: words, second
# number of the last pair (NaN: none); numpy: words, (position, whether there is a second number), that number; torch's
# CPU generator; the GPU's generator.
_KINDS = (np.uint32, np.float64, np.uint32, np.int64, np.float64, np.uint8, np.uint8)


def rng_bytes(device: torch.device) -> Tensor:
    """Return the states of the generators as bytes, (N,) uint8: 10 KB, the same N on all ranks."""
    state = _states(device)
    (_, keys, second), (_, words, place, has, cached) = state["python"], state["numpy"]
    gpu = state.get(device.type, torch.empty(0, dtype=torch.uint8))
    values = keys, [np.nan if second is None else second], words, [place, has], [cached], state["torch"], gpu
    parts = [np.asarray(value, kind).tobytes() for value, kind in zip(values, _KINDS)]
    head = np.array([len(part) for part in parts], np.int64).tobytes()
    return torch.frombuffer(bytearray(b"".join([head, *parts])), dtype=torch.uint8)


def set_rng_bytes(row: Tensor, device: torch.device) -> Tensor:
    """Restore the generators from the beginning of the bytes, and return the rest of them."""
    data = row.numpy().tobytes()
    lengths = np.frombuffer(data, np.int64, len(_KINDS))
    ends = 8 * len(_KINDS) + np.cumsum(lengths)
    parts = [np.frombuffer(data[end - n : end], kind) for n, end, kind in zip(lengths, ends, _KINDS)]
    keys, second, words, place, cached, cpu, gpu = parts
    state: dict[str, Any] = {
        "python": (3, keys.tolist(), None if np.isnan(second[0]) else float(second[0])),
        "numpy": ("MT19937", words.copy(), int(place[0]), int(place[1]), float(cached[0])),
        "torch": torch.from_numpy(cpu.copy()),
    }
    if len(gpu) and device.type != "cpu":
        state[device.type] = torch.from_numpy(gpu.copy())
    _set_states(state, device)
    return row[int(ends[-1]) :]


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    """Restore the generators from the format of checkpoints before 0.2. state: plain containers and tensors."""
    kind, keys, *rest = state["numpy"]
    _set_states({**state, "numpy": (kind, keys.numpy().astype(np.uint32), *rest)}, device)


def _states(device: torch.device) -> dict[str, Any]:
    """Return the states in the formats of the generators."""
    state = {"python": random.getstate(), "numpy": np.random.get_state(), "torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def _set_states(state: dict[str, Any], device: torch.device) -> None:
    version, keys, gauss_next = state["python"]
    random.setstate((version, tuple(keys), gauss_next))
    np.random.set_state(state["numpy"])
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
