"""SOAP: the paper's algorithm, in a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs
from optimizer_base import assert_moves_as, optimizer_of, small
from shipped import Shipped
from torch import Tensor

from samebits.errors import ConfigError, RunFailed
from samebits.testing import SMALL, start_run

pytestmark = needs("conf/optim/soap.yaml")


def turned(value: Tensor, bases: dict[int, Tensor]) -> Tensor:
    """Dimension d of the value times each column of basis d."""
    for d, basis in bases.items():
        value = torch.movedim(torch.movedim(value, d, -1) @ basis, -1, d)
    return value


@pytest.mark.parametrize("max_size", [10_000, 3])
def test_it_is_the_papers_algorithm(max_size: int) -> None:
    """Vyas et al. 2024, algorithm 3, and 4 for the bases; for a convolution each of its dimensions has one."""

    def plain(i: int, weight: Tensor, gradient: Tensor, held: dict[str, Any]) -> Tensor:
        t = held["t"] = held.get("t", -1) + 1
        sizes = {d: size for d, size in enumerate(weight.shape) if weight.dim() > 1 and size <= max_size}
        flat = {d: gradient.movedim(d, 0).reshape(size, -1) for d, size in sizes.items()}
        if t == 0:
            held |= {"M": torch.zeros_like(weight), "V": torch.zeros_like(weight)}
            held["L"] = {d: 0.1 * one @ one.T for d, one in flat.items()}
            held["Q"] = {d: torch.linalg.eigh(one @ one.T).eigenvectors.flip(1) for d, one in flat.items()}
            return weight
        held["M"] = 0.8 * held["M"] + 0.2 * gradient
        held["V"] = 0.9 * held["V"] + 0.1 * turned(gradient, held["Q"]) ** 2
        mean, square = held["M"] / (1 - 0.8**t), held["V"] / (1 - 0.9**t)
        # eps beside the root of the moment as it is stored, as in the authors' code
        eps = 1e-3 / (1 - 0.9**t) ** 0.5
        direction = turned(turned(mean, held["Q"]) / (square.sqrt() + eps), {d: q.T for d, q in held["Q"].items()})
        decay = 0.3 if weight.dim() > 1 else 0.0
        for d, one in flat.items():
            held["L"][d] = 0.9 * held["L"][d] + 0.1 * one @ one.T
            if t % 2 == 0:
                held["Q"][d] = torch.linalg.qr(held["L"][d] @ held["Q"][d]).Q
        return weight - held["lr"] * (direction + decay * weight)

    model = small()
    values = ("optim.betas=[0.8,0.9]", "optim.weight_decay=0.3", "optim.eps=1e-3", "optim.basis_every=2")
    optimizer = optimizer_of(model, "optim=soap", *values, f"optim.max_size={max_size}")
    assert_moves_as(optimizer, model, plain, [0.1, 0.02, 0.005, 0.01, 0.02, 0.03])


class TestSOAP(Shipped):
    test_ranks_and_micro_batches_change_nothing = None  # type: ignore[assignment]  # bases of other roundings

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("optim=soap", "optim.basis_every=3")


@pytest.mark.slow
def test_shards_are_refused(tmp_path: Path) -> None:
    with pytest.raises((ConfigError, RunFailed), match=r"optim: SOAP requires whole matrices, .* - use trainer=ddp"):
        start_run(tmp_path, *SMALL, "optim=soap", "trainer=fsdp", "hardware.num_procs=2")
