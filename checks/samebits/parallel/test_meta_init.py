"""A model built without memory is the model of a plain build, or it is refused; its weights come from rank 0."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from common import QUICK
from gpt import NEEDS_GPT
from torch import nn

from samebits.parallel import NeedsValues, build_on_meta
from samebits.testing import compose
from samebits.testing.processes import on_ranks


class Net(nn.Module):
    """Tied weights, buffers that no checkpoint holds, weights that are changed after they were drawn."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.norm, self.head = nn.Embedding(9, 5), nn.BatchNorm1d(5), nn.Linear(5, 9, bias=False)
        self.head.weight = self.embedding.weight
        self.linear, self.short = nn.Linear(5, 5), nn.Linear(5, 1)
        nn.init.trunc_normal_(self.linear.weight, std=0.02)
        nn.init.orthogonal_(self.short.weight)
        self.scale = nn.Parameter(torch.randn(3, 3) @ torch.eye(3))
        with torch.no_grad():
            self.scale[0] = 7.0
            self.linear.bias.copy_(torch.tensor([1.0, 2, 3, 4, 5]))
        self.register_buffer("table", torch.arange(5.0).cos(), persistent=False)
        self.register_buffer("order", torch.randperm(7))
        self.rates = np.linspace(0, 0.1, 4).tolist()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = self.head(self.norm(self.linear(self.embedding(x)) + self.table))
        return y * self.scale.sum() + self.short.weight.sum()


def gpt() -> nn.Module:
    pytest.importorskip("lab.models.gpt")
    from lab.models.gpt import GPT

    return GPT([8], 11, width=16, heads=2, layers=3, dropout=0.0)


def resnet() -> nn.Module:
    pytest.importorskip("lab.models.resnet")
    from lab.models.resnet import ResNet

    return ResNet([3, 16, 16], 10, 8, [1, 1], 0.0)


@pytest.mark.parametrize("make", [pytest.param(gpt, marks=NEEDS_GPT), resnet, Net])
def test_a_model_without_memory_is_built_as_others_are(make: Callable[[], nn.Module]) -> None:
    plain, built = make(), build_on_meta(make)
    for kind in (nn.Module.named_parameters, nn.Module.named_buffers):
        expected, found = (dict(kind(model)) for model in (plain, built))
        assert list(expected) == list(found)  # tied ones once
        assert all(value.is_meta for value in found.values())
        shapes = [[(value.shape, value.dtype) for value in held.values()] for held in (expected, found)]
        assert shapes[0] == shapes[1]


KEPT: list[Any] = []


def of_cpu_and_weights() -> float:
    table = torch.zeros(4, device="cpu")
    table.add_(nn.Linear(4, 4).bias.detach())
    return float(table[0])


def of_places() -> float:
    return float(torch.arange(4.0, device="cpu")[torch.randperm(4)][0])


def drawn_on_the_cpu() -> float:
    return float(torch.rand(1, device="cpu"))


def through_numpy() -> float:
    return float(np.asarray(torch.ones(2))[0])


@pytest.mark.parametrize(
    "odd",
    [
        of_cpu_and_weights,
        of_places,
        drawn_on_the_cpu,
        through_numpy,
        lambda: torch.linspace(0, 0.1, 4).tolist(),
        lambda: torch.ones(2),
        lambda: {"masks": [torch.ones(2)]},
        lambda: KEPT.append(torch.ones(2)),
    ],
)
def test_a_model_that_needs_values_is_refused(odd: Callable[[], Any]) -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(2, 2)
            self.odd = odd()

    with pytest.raises((NeedsValues, TypeError, RuntimeError)):  # the last two are torch's own
        build_on_meta(Odd)
    KEPT.clear()


@pytest.mark.slow
@pytest.mark.parametrize(("ranks", "replicas"), [(3, 1), (4, 2)])
def test_shards_are_those_of_rank_0(tmp_path: Path, ranks: int, replicas: int) -> None:
    """Where rows do not divide evenly, and some ranks have none; whether a rank has the model without memory or with
    values of its own; then a forward pass."""

    def work(world: Any, folder: Path) -> None:
        from test_fsdp import fsdp_config

        from samebits.parallel import shard

        torch.manual_seed(3)
        plain = Net()
        torch.manual_seed(3 + world.rank)
        model = build_on_meta(Net) if world.rank % 2 else Net()
        shard(model, fsdp_config(replicas=replicas), "fp32", world, compiled=False)
        expected = dict([*plain.named_parameters(), *plain.named_buffers()])
        for name, value in [*model.named_parameters(), *model.named_buffers()]:
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            assert torch.equal(whole, expected.pop(name)), name
        assert not expected
        x = torch.arange(8)
        assert torch.equal(model(x), plain(x))

    on_ranks(work, tmp_path / "ranks", ranks)


@pytest.mark.slow
def test_all_ranks_go_on_with_the_random_numbers_of_a_plain_build(tmp_path: Path) -> None:
    def work(world: Any, folder: Path) -> None:
        from lab.builders import make_model_of_rank
        from lab.config import Config
        from lab.model_io import make_model
        from samebits.loggers import Logger
        from samebits.steps import seed_everything

        config = Config.of(compose(*QUICK, "trainer=fsdp", "hardware.num_procs=2", "trainer.max_steps=1"))
        drawn = []
        for build in (lambda: make_model(config), lambda: make_model_of_rank(config, Logger(), world)):
            seed_everything(5)
            model = build()
            drawn.append(torch.rand(4))
        assert torch.equal(*drawn)
        assert all(p.is_meta == (world.rank > 0) for p in model.parameters())

    on_ranks(work, tmp_path / "ranks")


@pytest.mark.slow
def test_a_rank_needs_memory_for_its_shards(tmp_path: Path) -> None:
    """160 MB of weights over 4 ranks: 40 MB on each but rank 0, and a few times a weight, 4 MB, on its way."""

    def work(world: Any, folder: Path) -> None:
        from test_fsdp import fsdp_config

        from samebits.parallel import shard

        def peak_mb() -> float:
            return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024

        def layers(count: int, width: int) -> nn.Module:
            return nn.Sequential(*(nn.Linear(width, width) for _ in range(count)))

        def build(count: int, width: int) -> nn.Module:
            make = lambda: layers(count, width)  # noqa: E731
            model = build_on_meta(make) if world.rank else make()
            shard(model, fsdp_config(), "fp32", world, compiled=False)
            return model

        build(2, 8)  # what is imported and connected at the first time
        before = peak_mb()
        model = build(40, 1024)
        assert sum(p.to_local().nbytes for p in model.parameters()) < 42e6  # type: ignore[attr-defined]
        assert world.is_main or peak_mb() - before < 40 + 40

    on_ranks(work, tmp_path / "ranks", 4)
