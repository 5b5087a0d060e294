"""Generators: every one is seeded, every rank draws its own numbers, and a saved state brings all of them back."""

from __future__ import annotations

import io
import random
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from common import old_rng_state

from samebits.steps import StepRNG, rng_bytes, seed_everything, set_rng_bytes, set_rng_state

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    before = rng_bytes(CPU)
    yield
    set_rng_bytes(before, CPU)


def draws() -> dict[str, float]:
    """One number of each generator; numpy's and Python's Gaussian ones keep a second in store."""
    return {
        "python": random.random(),
        "python gauss": random.gauss(0, 1),
        "numpy": float(np.random.random()),
        "numpy gauss": float(np.random.standard_normal()),
        "torch": float(torch.rand(())),
    }


def test_a_seed_sets_every_generator_and_each_rank_draws_its_own() -> None:
    seen: dict[tuple[int, int], dict[str, float]] = {}
    for seed, stream in [(0, 0), (0, 1), (1, 0), (1, 1), (2**32 - 1, 0)]:
        draws()
        seed_everything(seed, stream)
        seen[seed, stream] = draws()
        seed_everything(seed, stream)
        assert draws() == seen[seed, stream], "a seed alone decides"
    for name in draws():
        assert len({drawn[name] for drawn in seen.values()}) == len(seen), f"{name}: two ranks or seeds draw alike"
    seed_everything(3)
    alone = draws()
    seed_everything(3, stream=0)
    assert draws() == alone, "one process is rank 0"


def test_numbers_of_a_step_do_not_come_again() -> None:
    """What all ranks draw alike differs behind each backward pass and in each step; a rank's own go on as if none had
    been drawn."""

    def drawn(step: int) -> list[dict[str, float]]:
        with StepRNG(step, CPU) as step_rng:
            found = []
            for _ in range(2):
                step_rng.use_shared()
                found.append(draws())
                step_rng.use_per_rank()
        return found

    seed_everything(5, stream=1)
    alone = draws()
    steps = []
    for rank in (1, 2):
        seed_everything(5, stream=rank)
        steps.append(drawn(0) + drawn(1))
        if rank == 1:
            assert draws() == alone
    assert steps[0] == steps[1]
    for name in draws():
        assert len({one[name] for one in steps[0]}) == 4, name


def test_seeds_mean_the_same_in_every_version() -> None:
    """A run outlives the code that made it: its command gives the same weights and the same order of draws."""
    seed_everything(7, stream=3)
    words = np.random.SeedSequence([7, 3]).generate_state(4).tolist()
    assert torch.initial_seed() == (words[2] << 32) + words[3]
    expected = random.Random(words[0]).random(), np.random.RandomState(words[1]).random_sample()
    assert (random.random(), np.random.random()) == expected


def test_a_state_of_before_0_2_brings_every_generator_back() -> None:
    seed_everything(5)
    draws()  # the Gaussian generators now hold a number in store
    file = io.BytesIO()
    torch.save(old_rng_state(), file)
    expected = [draws() for _ in range(3)]
    file.seek(0)
    seed_everything(6)
    set_rng_state(torch.load(file, weights_only=True), CPU)
    assert [draws() for _ in range(3)] == expected


@pytest.mark.parametrize("stored", [True, False])
def test_a_row_of_bytes_brings_every_generator_back(stored: bool) -> None:
    """Of the same length whether Gaussian generators hold a number in store or not; what follows it is returned."""
    seed_everything(5)
    length = len(rng_bytes(CPU))
    if stored:
        draws()
    row = rng_bytes(CPU)
    assert len(row) == length < 11_000
    expected = [draws() for _ in range(3)]
    seed_everything(6)
    behind = torch.tensor([1, 2, 3], dtype=torch.uint8)
    assert set_rng_bytes(torch.cat([row, behind]), CPU).tolist() == [1, 2, 3]
    assert [draws() for _ in range(3)] == expected


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_generator_of_the_device_is_saved_too(monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """With a stand-in for the device's own generator; a state of the CPU alone leaves it as it is."""
    own, set_to = torch.arange(16, dtype=torch.uint8), []
    module, device = getattr(torch, kind), torch.device(kind)
    monkeypatch.setattr(module, "get_rng_state", lambda *device: own)
    monkeypatch.setattr(module, "set_rng_state", lambda state, *device: set_to.append(state.tolist()))
    row, cpu_row = rng_bytes(device), rng_bytes(CPU)
    assert len(row) == len(cpu_row) + len(own)
    set_rng_bytes(row, device)
    assert set_to == [own.tolist()]
    set_rng_bytes(cpu_row, device)
    set_rng_bytes(row, CPU)
    assert len(set_to) == 1
    old = old_rng_state()
    set_rng_state({**old, kind: own}, device)
    assert len(set_to) == 2
    set_rng_state(old, device)  # a checkpoint that the CPU wrote
    set_rng_state({**old, kind: own}, CPU)  # one of a GPU, read on the CPU
    assert len(set_to) == 2
