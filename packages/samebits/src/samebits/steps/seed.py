"""Random number generators: seed them all, save them all."""

from __future__ import annotations

import random
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from samebits.torch_private import is_torchs_own, steps_bare

IN_STEPS = 1  # keeps the keys of steps apart from those of streams
_run_seed = 0


def seed_everything(seed: int, stream: int = 0) -> None:
    """Seed Python, numpy and torch on all devices. stream: differs per rank, so that ranks draw different numbers."""
    global _run_seed
    _run_seed = seed
    torch.manual_seed(_seed_host(seed, stream))


def _seed_host(*key: int) -> int:
    """Seed Python and numpy. Returns torch's seed."""
    # SeedSequence keeps (seed 0, stream 1) and (seed 1, stream 0) apart, which seed + stream would not
    words = np.random.SeedSequence(key).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    return (int(words[2]) << 32) + int(words[3])


class StepRNG:
    """The random numbers of a step: each rank's own in forward and backward passes; from a backward pass to the next
    forward pass, or to the end of the step (the block of `with`), and where the rates are set, the same on all ranks.

    What moves the weights must do so alike on all ranks: an optimizer that adds noise, a task that begins a dead unit
    anew. These numbers follow from the seed that the run was given, the step and the count of backward passes in it,
    and not from the ranks; each rank's own go on as if nothing had been drawn. Nothing here waits for the device: the
    state of its generator is kept on the host.
    """

    def __init__(self, step: int, device: torch.device, drawn: bool = True) -> None:
        """drawn: False where it is known that nothing draws, as this costs 0.2 ms."""
        self._step, self._device, self._drawn = step, device, drawn
        self._passes = 0
        self._own: dict[str, Any] | None = None  # the generators, while ranks draw the same

    def __enter__(self) -> StepRNG:
        return self

    def __exit__(self, *_: object) -> None:
        self.use_per_rank()

    def use_shared(self) -> None:
        """After a backward pass, and before the rates are set."""
        if not self._drawn:
            return
        self._own = self._own or _states(self._device)
        seed = _seed_host(_run_seed, self._step, self._passes, IN_STEPS)
        self._passes += 1
        torch.default_generator.manual_seed(seed)  # torch.manual_seed is slow where a device is not in use
        if self._device.type in ("cuda", "mps"):
            getattr(torch, self._device.type).manual_seed(seed)

    def use_per_rank(self) -> None:
        """Before a forward pass, and when the rates are set."""
        if self._own is not None:
            _set_states(self._own, self._device)
            self._own = None


def uses_no_rng(schedule: Any, optimizers: Iterable[Optimizer], others: Iterable[Any] = ()) -> bool:
    """Whether a schedule, its optimizers and these others are known to draw no random numbers."""
    return all(map(declares_no_rng, [schedule.factor, *others])) and all(map(optimizer_uses_no_rng, optimizers))


def optimizer_uses_no_rng(optimizer: Optimizer) -> bool:
    """Whether an optimizer is known to draw no random numbers: torch's, or one that says so, as all its parts do."""
    says = declares_no_rng(optimizer) and steps_bare(optimizer)
    return is_torchs_own(optimizer) or (says and all(map(optimizer_uses_no_rng, getattr(optimizer, "parts", ()))))


def declares_no_rng(one: Any) -> bool:
    """By `uses_rng = False` in its class itself: one that inherits from it may draw."""
    return vars(type(one)).get("uses_rng") is False


# what the bytes of a rank's generators are, in this order, behind the lengths of all of them: Python's words and the
# second number of its last pair (NaN: none); numpy's words, place and whether it has a second number, that number;
# torch's; those of the GPU
_KINDS = (np.uint32, np.float64, np.uint32, np.int64, np.float64, np.uint8, np.uint8)


def rng_row(device: torch.device) -> Tensor:
    """The generators' states as bytes, (N,) uint8: 10 KB, as many on each rank."""
    state = _states(device)
    (_, keys, second), (_, words, place, has, cached) = state["python"], state["numpy"]
    gpu = state.get(device.type, torch.empty(0, dtype=torch.uint8))
    values = keys, [np.nan if second is None else second], words, [place, has], [cached], state["torch"], gpu
    parts = [np.asarray(value, kind).tobytes() for value, kind in zip(values, _KINDS)]
    head = np.array([len(part) for part in parts], np.int64).tobytes()
    return torch.frombuffer(bytearray(b"".join([head, *parts])), dtype=torch.uint8)


def set_rng_row(row: Tensor, device: torch.device) -> Tensor:
    """Returns what follows the generators' bytes."""
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
    """state: plain containers and tensors, as checkpoints before 0.2 hold the generators' states."""
    kind, keys, *rest = state["numpy"]
    _set_states({**state, "numpy": (kind, keys.numpy().astype(np.uint32), *rest)}, device)


def _states(device: torch.device) -> dict[str, Any]:
    """As the generators give them."""
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
