"""Muon for matrices and AdamW for the rest: two optimizers that all else sees as one."""

from __future__ import annotations

import copy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import NEEDS_GPT, QUICK, assert_equal, compose, last_checkpoint, metrics, needs, raise_at_step, start_run
from method import SMALL, Shipped, go_on
from omegaconf import OmegaConf
from torch import nn

import lab.descend
from engine.checkpoints import checkpoint
from engine.errors import ConfigError
from lab.config import Config
from lab.make import make_optimizer
from lab.network import make_model
from lab.optim import Schedule, trainable
from lab.optimizers.by_shape import ByShape
from lab.schedules.cosine import Cosine

pytestmark = [
    needs("conf/optim/muon.yaml"),
    pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9"),
]


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4), nn.Linear(4, 2))


def config_of(*overrides: str) -> Config:
    return Config.of(compose(*QUICK, "optim=muon", "trainer.max_steps=1", *overrides))


def optimizer_of(model: nn.Module, *overrides: str) -> Any:
    return make_optimizer(config_of(*overrides), trainable([("", model)]), "the model")


def backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randint(0, 7, (9,))).square().mean().backward()


REST = ("optim.rest_names=['^0','^4']", "optim.lr=0.01", "optim.weight_decay=0.1")


@pytest.mark.slow
def test_it_is_two_optimizers_by_hand() -> None:
    """Step by step and bit for bit, under a schedule, with each one's own values and what does not decay."""
    mine, theirs = small(), small()
    optimizer = optimizer_of(mine, *REST, "+optim.rest.lr=0.003")
    schedule = Schedule(optimizer, Cosine(0.2, 0.1), 10)
    p = dict(theirs.named_parameters())
    muon = torch.optim.Muon(
        [p["1.weight"], p["3.weight"]], lr=0.01, weight_decay=0.1, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    decaying, others = [p["0.weight"], p["4.weight"]], [p[k] for k in p if p[k].dim() == 1]
    adamw = torch.optim.AdamW(
        [{"params": decaying}, {"params": others, "weight_decay": 0.0}],
        lr=0.003, weight_decay=0.1, betas=(0.9, 0.95), fused=True,
    )  # fmt: skip
    for step in range(8):
        schedule.set_rates(step)
        factor = Cosine(0.2, 0.1)(step, 10)
        for one, lr in ((muon, 0.01), (adamw, 0.003)):
            for group in one.param_groups:
                group["lr"] = lr * factor
        backward(mine, step), backward(theirs, step)
        optimizer.step(), muon.step(), adamw.step()
        for name, value in mine.named_parameters():
            assert torch.equal(value, p[name]), (step, name)
        mine.zero_grad(), theirs.zero_grad()


@pytest.mark.slow
def test_one_state_is_saved_and_goes_on() -> None:
    """Parameters numbered in a row; the loaded groups are those that both parts work on."""
    mine, other = small(), small()
    first, second = optimizer_of(mine, *REST), optimizer_of(other, *REST)
    for step in range(3):
        backward(mine, step)
        first.step()
        mine.zero_grad()
    saved = copy.deepcopy(first.state_dict())
    assert [group["params"] for group in saved["param_groups"]] == [[0, 1], [2, 3], [4, 5, 6, 7, 8]]
    assert not any("param_names" in group for group in saved["param_groups"])
    other.load_state_dict(mine.state_dict())
    second.load_state_dict(saved)
    assert_equal(second.state_dict(), first.state_dict())
    for optimizer in (first, second):
        for group in optimizer.param_groups:
            group["lr"] *= 0.5
    for step in range(3, 6):
        for model, optimizer in ((mine, first), (other, second)):
            backward(model, step)
            optimizer.step()
            model.zero_grad()
    assert_equal(other.state_dict(), mine.state_dict())
    assert_equal(second.state_dict(), first.state_dict())
    assert len(second.state) == 9


@pytest.mark.slow
@NEEDS_GPT
def test_which_are_muons(tmp_path: Path) -> None:
    """Of the language model neither the embeddings nor the head; all decay but the norms; factors on top."""
    from lab.models.gpt import GPT

    model = GPT([8], 20, 16, 2, 1, 0.0)
    optimizer = optimizer_of(model, "+optim.lr_factors={qkv: 0.5}")
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    kinds = [type(part).__name__ for part in optimizer.parts for _ in part.param_groups]
    found = {name: (kind, g.get("lr_factor", 1.0), g["weight_decay"]) for kind, g, names_ in
             zip(kinds, optimizer.param_groups, groups) for name in names_}  # fmt: skip
    for name, p in model.named_parameters():
        kind = "Muon" if p.dim() == 2 and name.startswith("blocks") else "AdamW"
        assert found[name] == (kind, 0.5 if "qkv" in name else 1.0, 0.01 if p.dim() == 2 else 0.0), name


@pytest.mark.slow
def test_decay_that_only_a_part_names_spares_norms_and_biases() -> None:
    optimizer = optimizer_of(small(), "optim.weight_decay=0", "+optim.rest.weight_decay=0.2", "optim.rest_names=['^4']")
    assert [(g["weight_decay"], len(g["params"])) for g in optimizer.param_groups] == [(0.0, 3), (0.2, 1), (0.0, 5)]


@pytest.mark.slow
def test_matrices_alone_or_none() -> None:
    optimizer = optimizer_of(nn.Linear(3, 2, bias=False))
    assert [type(part).__name__ for part in optimizer.parts] == ["Muon"]
    for model in (nn.Conv2d(1, 2, 3), nn.LayerNorm(3)):
        with pytest.raises(
            ConfigError, match=r"^optim\.matrices: no trained parameter is a matrix, or .* optim=adamw$"
        ):
            optimizer_of(model)


@pytest.mark.slow
def test_mistakes_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"^optim\.rest_names: '\(' is no regular expression: "):
        optimizer_of(small(), "optim.rest_names=['(']")
    for override, line in (
        ("optim.lr=-1", r"^optim\.lr: must be >= 0"),
        ("optim.matrices.momentun=0.9", "momentun"),
        ("optim.matrices._partial_=false", r"^optim\.matrices\.params: .* needs a value for 'params'"),
        ("optim.matrices._target_=torch.optim.Moun", r"^optim\.matrices\._target_: torch\.optim has no 'Moun' - did"),
    ):
        with pytest.raises(Exception, match=line):
            config_of(override if "momentun" not in override else f"+{override}")
    monkeypatch.delattr(torch.optim, "Muon")  # as before torch 2.9
    with pytest.raises(ConfigError, match=r"^optim\.matrices\._target_: torch\.optim has no 'Muon'"):
        config_of()


def test_a_step_that_is_not_finite_moves_neither() -> None:
    model = small()
    optimizer = optimizer_of(model, *REST)
    for bad in (1.0, 0.0):
        before = copy.deepcopy(model.state_dict())
        backward(model, 0)
        lab.descend.update(optimizer, torch.tensor(bad))
        same = [torch.equal(value, before[name]) for name, value in model.state_dict().items()]
        assert all(same) if bad else not any(same)
        model.zero_grad()


# ---- in a run

LEARNS = ("optim=muon", "optim.lr=0.1", "model.hidden=[16]")


@pytest.mark.slow
class TestMuon(Shipped):
    test_compiling_changes_nothing: Any = None  # the model's, whatever moves its weights

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return LEARNS

    @pytest.fixture
    def small(self, run: tuple[str, ...]) -> tuple[str, ...]:
        """Muon's rounding is that of bf16, so with steps that are small beside it."""
        return (*SMALL, "trainer.ema_decay=0.9", *run, "optim.lr=0.01")


@pytest.mark.slow
def test_values_that_a_resume_changes_hold_for_both(tmp_path: Path) -> None:
    """As for a single optimizer: what the config says goes before what the checkpoint holds."""
    run = start_run(tmp_path / "run", *QUICK, "optim=muon", "trainer.max_steps=4")
    cfg = OmegaConf.load(run / "config.yaml")
    cfg.optim.matrices.momentum, cfg.optim.rest.betas, cfg.trainer.max_steps = 0.8, [0.8, 0.9], 6  # type: ignore
    OmegaConf.save(cfg, run / "config.yaml")
    go_on(run)
    groups = last_checkpoint(run)["optimizer"]["param_groups"]
    assert [(g.get("momentum"), g.get("betas") and list(g["betas"])) for g in groups] == [
        (0.8, None), (None, [0.8, 0.9]),
    ]  # fmt: skip


@pytest.mark.slow
def test_another_optimizer_does_not_go_on_from_it(tmp_path: Path) -> None:
    run = start_run(tmp_path / "run", *QUICK, "optim=muon", "trainer.max_steps=2")
    with pytest.raises(ConfigError, match=r"^optim: the checkpoint"):
        start_run(run, *QUICK, "trainer.max_steps=3", "optim=adamw")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sharded", "fp16", "skip"])
def test_it_goes_on_in_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """With a sharded model (its matrices are gathered for the step), fp16's scaler, and steps that may be skipped."""
    more = {
        "sharded": ("trainer=fsdp", "hardware.num_procs=2"),
        "fp16": ("hardware.precision=fp16",),
        "skip": ("trainer.non_finite=skip",),
    }[way]
    common = (*QUICK, *LEARNS, "trainer.log_every=1", "trainer.save_every=2", "trainer.eval_every=null")
    plain = start_run(tmp_path / "plain", *common, "trainer.max_steps=6")
    straight = start_run(tmp_path / "straight", *common, "trainer.max_steps=6", *more)
    losses = [[line["train/loss"] for line in metrics(run) if "train/loss" in line] for run in (plain, straight)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-2)
    with monkeypatch.context() as patch:
        raise_at_step(patch, 5, RuntimeError("killed"))
        with pytest.raises(Exception, match=r"killed|failed|exit"):
            start_run(tmp_path / "run", *common, "trainer.max_steps=6", *more)
    go_on(tmp_path / "run")
    newest = [max((run / "checkpoints").glob("last_*"), key=lambda p: p.stem) for run in (straight, tmp_path / "run")]
    assert_equal(*(checkpoint.load_checkpoint(path) for path in newest))


def test_it_takes_plain_parameters_too() -> None:
    """As any optimizer does, without names."""
    model = make_model(config_of())
    make = partial(ByShape, matrices=torch.optim.Muon, rest=torch.optim.SGD, rest_names=["^x"], lr=0.1, weight_decay=0)
    assert [len(group["params"]) for group in make(model.parameters()).param_groups] == [2, 2]
