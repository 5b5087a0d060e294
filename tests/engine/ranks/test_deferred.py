"""Weights of a model that is built on the meta device are, bit for bit, those of a plain build."""

from __future__ import annotations

import copy
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from conftest import ROOT, limit
from ranks import on_ranks
from torch import Tensor, nn

from engine.ranks import deferred
from engine.ranks.deferred import Tape, Unrecorded, fill_model, tensors_of

CPU = torch.device("cpu")


class Odd(nn.Module):
    """What an __init__ may do beside making layers."""

    def __init__(self) -> None:
        super().__init__()
        self.rates = torch.linspace(0, 0.1, 4).tolist()
        self.rate = torch.linspace(0, 0.1, 4)[2].item()
        self.linear = nn.Linear(5, 4)
        nn.init.orthogonal_(self.linear.weight, gain=0.5)
        self.short = nn.Linear(4, 5, bias=False)
        nn.init.trunc_normal_(self.short.weight, std=0.02)
        self.scale = nn.Parameter(torch.randn(3, 3) * 0.1)
        with torch.no_grad():
            self.scale[0] = 7.0
            self.scale.mul_(2)
            self.scale.data[1:] /= 3
            self.linear.bias.copy_(torch.tensor([1.0, 2, 3, 4]))
        self.spread = float(self.scale.detach().std())  # looks at drawn values
        angles = torch.outer(torch.arange(6).float(), 1 / 10000 ** (torch.arange(0, 8, 2) / 8))
        self.register_buffer("cos", angles.cos(), persistent=False)
        self.register_buffer("order", torch.randperm(7))
        self.mask = torch.tril(torch.ones(3, 3))  # a plain attribute
        self.noise = torch.rand(4)
        self.norm, self.embedding = nn.BatchNorm1d(4), nn.Embedding(9, 3, padding_idx=2)
        self.recurrent = nn.LSTM(3, 4, 2)
        self.tied = nn.Linear(3, 9, bias=False)
        self.tied.weight = self.embedding.weight
        self.product = nn.Parameter(self.scale.detach().clone().t() @ self.scale.detach())
        self.normed = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
        if self.linear.weight.is_meta or self.linear.weight.device != CPU:
            raise AssertionError("a model sees a CPU")
        for p in self.recurrent.parameters():
            p.data.mul_(0.5)


def gpt() -> nn.Module:
    pytest.importorskip("lab.models.gpt")
    from lab.models.gpt import GPT

    return GPT([8], 11, width=16, heads=2, layers=3, dropout=0.0)


def resnet() -> nn.Module:
    pytest.importorskip("lab.models.resnet")
    from lab.models.resnet import ResNet

    return ResNet([3, 16, 16], 10, 8, [1, 1], 0.0)


def recorded(make: Callable[[], nn.Module]) -> tuple[nn.Module, Tape]:
    torch.manual_seed(3)
    tape = Tape()
    with tape:
        model = make()
    return model, tape


def named(model: nn.Module) -> dict[str, Tensor]:
    names = {module: name for name, module in model.named_modules()}
    return {f"{names[module]}.{name}": value for module, name, value in tensors_of(model)}


@pytest.mark.parametrize("make", [gpt, resnet, Odd, lambda: nn.TransformerDecoderLayer(8, 2, 16)])
def test_weights_are_those_of_a_plain_build(make: Callable[[], nn.Module]) -> None:
    torch.manual_seed(3)
    plain = make()
    after = torch.rand(2)
    model, tape = recorded(make)
    assert all(p.is_meta for p in model.parameters())
    before = torch.get_rng_state()
    fill_model(model, tensors_of(model), tape, CPU, CPU)
    assert torch.equal(torch.get_rng_state(), before)
    expected, found = named(plain), named(model)
    assert list(expected) == list(found)
    for name, value in expected.items():
        assert torch.equal(found[name], value), name
    for name in ("rate", "rates", "spread"):
        assert getattr(model, name, None) == getattr(plain, name, None)
    _, tape = recorded(make)
    tape.draw()
    assert torch.equal(torch.rand(2), after)


def test_a_weight_is_drawn_once_where_nothing_changes_it_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """GPT draws each layer as nn.Linear does, then anew: the first draws only move the generator."""
    model, tape = recorded(gpt)
    original, drawn = Tape._run, list[int]()
    monkeypatch.setattr(Tape, "_run", lambda self, one, s: (drawn.append(one.random), original(self, one, s))[1])
    fill_model(model, tensors_of(model), tape, CPU, CPU)
    assert sum(drawn) == sum(one.random for one in tape.operations)


def test_nothing_is_drawn_for_what_a_checkpoint_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    def make() -> nn.Module:
        model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))
        model.register_buffer("table", torch.arange(4.0).cos(), persistent=False)
        return model

    model, tape = recorded(make)
    monkeypatch.setattr(Tape, "draw", lambda *_: pytest.fail("drawn"))
    kept = {id(value) for value in model.state_dict(keep_vars=True).values()}
    fill_model(model, [entry for entry in tensors_of(model) if id(entry[2]) not in kept], tape, CPU, CPU)
    assert torch.equal(model.table, torch.arange(4.0).cos())  # type: ignore[arg-type]
    assert not any(value.is_meta for value in model.state_dict().values())


def test_weights_may_be_loaded_and_copied_before_they_are_there() -> None:
    """As Task.initialize and Task.attach do: some weights from a file, then a copy of the model as a teacher."""
    torch.manual_seed(0)
    loaded = nn.Linear(4, 4).state_dict()
    torch.manual_seed(3)
    plain = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    model, tape = recorded(lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)))
    with tape:
        model[0].load_state_dict(loaded)  # type: ignore[index]
        teacher = copy.deepcopy(model)
        model[1].weight.data.zero_()  # type: ignore[index]
    for net in (model, teacher):
        fill_model(net, tensors_of(net), tape, CPU, CPU)
        assert torch.equal(net[0].weight, loaded["weight"])  # type: ignore[index]
        assert torch.equal(net[1].bias, plain[1].bias)  # type: ignore[index]
    assert torch.equal(teacher[1].weight, plain[1].weight)  # type: ignore[index]
    assert not model[1].weight.any()  # type: ignore[index]


def own_generator() -> None:
    nn.Parameter(torch.empty(3)).data.normal_(generator=torch.Generator())


def test_what_cannot_be_recorded_says_so() -> None:
    outside = torch.zeros(2, 2)

    def changed_later() -> nn.Module:
        layer = nn.Linear(2, 2)
        layer.weight.data.copy_(outside)
        return layer

    for wrong in (own_generator, lambda: outside.copy_(nn.Linear(2, 2).weight.data), lambda: torch.bernoulli(outside)):
        with pytest.raises(Unrecorded):
            recorded(wrong)  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        recorded(lambda: np.asarray(torch.rand(2)))  # type: ignore[arg-type, return-value]
    model, tape = recorded(changed_later)
    outside += 1
    with pytest.raises(Unrecorded, match="changed afterwards"):
        fill_model(model, tensors_of(model), tape, CPU, CPU)


@pytest.mark.parametrize(("ranks", "replicas"), [(3, 1), (4, 2)])
def test_shards_are_those_of_the_whole(tmp_path: Path, ranks: int, replicas: int) -> None:
    """Where rows do not divide evenly, and some ranks have none; the moving average too; then a forward pass."""

    def work(world: Any, folder: Path) -> None:
        from test_fsdp import fsdp_config

        from engine.ranks.fsdp import shard

        def make() -> nn.Module:
            model = nn.Sequential(nn.Linear(6, 5), nn.BatchNorm1d(5), nn.Linear(5, 2))
            nn.init.trunc_normal_(model[0].weight)
            model[1].table = torch.rand(2)
            return model

        torch.manual_seed(3)
        plain = make()
        model, tape = recorded(make)
        ema, known = copy.deepcopy(model).requires_grad_(False), tensors_of(model)
        for part in (model, ema):
            shard(part, fsdp_config(replicas=replicas), "fp32", world, compiled=False)
        fill_model(model, known, tape, CPU, CPU)
        deferred.allocate_model(ema, CPU, CPU)
        deferred.copy_tensors(model, ema)
        for part in (model, ema):
            for name, value in part.state_dict().items():
                whole = value.full_tensor() if hasattr(value, "full_tensor") else value
                assert torch.equal(whole, plain.state_dict()[name]), name
            assert torch.equal(part[1].table, plain[1].table)  # type: ignore[index]
        x = torch.randn(4, 6)
        assert torch.equal(model(x), plain(x))

    on_ranks(work, tmp_path / "ranks", ranks)


MEMORY = """
import json, resource, sys
import torch, torch.distributed as dist
from torch.testing._internal.distributed.fake_pg import FakeStore
from engine.ranks.deferred import Tape, fill_model, tensors_of
from engine.ranks.distributed import World
from engine.ranks.fsdp import shard
from engine.ranks.options import FsdpConfig
from torch import nn

MB = 2**20
dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=8)
class Net(nn.Module):
    def __init__(self, width, layers):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        for block in self.blocks:
            nn.init.normal_(block.weight)
    def forward(self, x):
        return x
def build(width, layers):
    tape, cpu = Tape(), torch.device("cpu")
    with tape:
        model = Net(width, layers)
    known = tensors_of(model)
    shard(model, FsdpConfig(), "fp32", World(0, 8, 0, cpu), compiled=False)
    fill_model(model, known, tape, cpu, cpu)
    return model
build(8, 2)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
build(1024, 40)  # 40 x 4 MB
print(json.dumps(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before))
"""


def test_a_rank_needs_memory_for_its_shards() -> None:
    """160 MB of weights over 8 ranks: 20 MB, and the weight that is being computed."""
    done = subprocess.run(
        [sys.executable, "-c", MEMORY], capture_output=True, text=True, timeout=limit(60), cwd=ROOT / "src"
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) < 20 + 3 * 4 + 30
