"""Muon for matrices and AdamW for the rest: two optimizers that all else sees as one."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from common import QUICK, needs
from optimizer_base import optimizer_of
from torch import nn

import lab.optimizer_step
from lab.config import Config
from lab.optim import Schedule
from lab.optimizers import muon
from lab.schedules.cosine import Cosine
from samebits.errors import ConfigError
from samebits.testing import assert_equal, compose, last_checkpoint, raise_at_step, resume_run, start_run, values

pytestmark = needs("conf/optim/muon.yaml")


def small() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Embedding(7, 6), nn.Linear(6, 5), nn.LayerNorm(5), nn.Linear(5, 4), nn.Linear(4, 2))


def config_of(*overrides: str) -> Config:
    return Config.of(compose(*QUICK, "optim=muon", "trainer.max_steps=1", *overrides))


def backward(model: nn.Module, step: int) -> None:
    torch.manual_seed(step)
    model(torch.randint(0, 7, (9,))).square().mean().backward()


REST = ("optim.rest_names=['^0','^4']", "optim.lr=0.01", "optim.weight_decay=0.1")


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch has Muon since 2.9")
def test_it_is_two_optimizers_by_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """Step by step, under a schedule, with each one's own values and what does not decay: AdamW bit for bit, Muon to
    the rounding of float32."""
    monkeypatch.setitem(muon.HALF, "cpu", torch.bfloat16)
    mine, theirs = small(), small()
    optimizer = optimizer_of(mine, "optim=muon", *REST, "+optim.rest.lr=0.003")
    schedule = Schedule(optimizer, Cosine(0.2, 0.1), 10)
    p = dict(theirs.named_parameters())
    theirs_muon = torch.optim.Muon(
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
        for one, lr in ((theirs_muon, 0.01), (adamw, 0.003)):
            for group in one.param_groups:
                group["lr"] = lr * factor
        backward(mine, step), backward(theirs, step)
        optimizer.step(), theirs_muon.step(), adamw.step()
        for name, value in mine.named_parameters():
            torch.testing.assert_close(value, p[name], rtol=2e-4, atol=2e-5, msg=f"{step}, {name}")
        mine.zero_grad(), theirs.zero_grad()


@pytest.mark.slow
def test_which_are_muons(tmp_path: Path) -> None:
    """Of the language model neither the embeddings nor the head; all decay but the norms; factors on top."""
    model = pytest.importorskip("lab.models.gpt").GPT([8], 20, 16, 2, 1, 0.0)
    optimizer = optimizer_of(model, "optim=muon", "+optim.lr_factors={qkv: 0.5}")
    names = {id(p): name for name, p in model.named_parameters()}
    groups = [[names[id(p)] for p in group["params"]] for group in optimizer.param_groups]
    kinds = [type(part).__name__ for part in optimizer.parts for _ in part.param_groups]
    found = {name: (kind, g.get("lr_factor", 1.0), g["weight_decay"]) for kind, g, names_ in
             zip(kinds, optimizer.param_groups, groups) for name in names_}  # fmt: skip
    for name, p in model.named_parameters():
        kind = "Muon" if p.dim() == 2 and name.startswith("blocks") else "AdamW"
        assert found[name] == (kind, 0.5 if "qkv" in name else 1.0, 0.01 if p.dim() == 2 else 0.0), name


@pytest.mark.slow
def test_matrices_alone_or_none() -> None:
    optimizer = optimizer_of(nn.Linear(3, 2, bias=False), "optim=muon")
    assert [type(part).__name__ for part in optimizer.parts] == ["Muon"]
    for model in (nn.Conv2d(1, 2, 3), nn.LayerNorm(3)):
        with pytest.raises(
            ConfigError, match=r"^optim\.matrices: no trained parameter is a matrix, or .* optim=adamw$"
        ):
            optimizer_of(model, "optim=muon")


@pytest.mark.slow
def test_mistakes_are_one_line() -> None:
    with pytest.raises(ConfigError, match=r"^optim\.rest_names: '\(' is not a regular expression: "):
        optimizer_of(small(), "optim=muon", "optim.rest_names=['(']")
    with pytest.raises(
        ConfigError, match=r"^optim\.matrices\.adjust_lr_fn=rms: must be one of original, match_rms_adamw"
    ):
        optimizer_of(small(), "optim=muon", "optim.matrices.adjust_lr_fn=rms")
    for override, line in (
        ("optim.lr=-1", r"^optim\.lr: must be >= 0"),
        ("optim.matrices.momentun=0.9", "momentun"),
        ("optim.matrices._partial_=false", r"^optim\.matrices\.params: .* requires 'params'"),
        ("optim.matrices._target_=torch.optim.Moun", r"^optim\.matrices\._target_: torch\.optim has no 'Moun' - did"),
    ):
        with pytest.raises(Exception, match=line):
            config_of(override if "momentun" not in override else f"+{override}")


def test_a_step_that_is_not_finite_moves_neither() -> None:
    model = small()
    optimizer = optimizer_of(model, "optim=muon", *REST)
    for bad in (1.0, 0.0):
        before = copy.deepcopy(model.state_dict())
        backward(model, 0)
        lab.optimizer_step.update(optimizer, torch.tensor(bad))
        same = [torch.equal(value, before[name]) for name, value in model.state_dict().items()]
        assert all(same) if bad else not any(same)
        model.zero_grad()


# ---- in a run

LEARNS = ("optim=muon", "optim.lr=0.1", "model.hidden=[16]")


@pytest.mark.slow
@pytest.mark.parametrize("way", ["sharded", "skip"])
def test_it_goes_on_in_other_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    """With a sharded model (its matrices are gathered for the step), and steps that may be skipped."""
    more = {"sharded": ("trainer=fsdp", "hardware.num_procs=2"), "skip": ("trainer.non_finite=skip",)}[way]
    common = (*QUICK, *LEARNS, "trainer.log_every=1", "trainer.save_every=2", "trainer.eval_every=null")
    plain = start_run(tmp_path / "plain", *common, "trainer.max_steps=6")
    straight = start_run(tmp_path / "straight", *common, "trainer.max_steps=6", *more)
    assert values(straight, "train/loss") == pytest.approx(values(plain, "train/loss"), rel=1e-2)
    with monkeypatch.context() as patch:
        raise_at_step(patch, 5, RuntimeError("killed"))
        with pytest.raises(Exception, match=r"killed|failed|exit"):
            start_run(tmp_path / "run", *common, "trainer.max_steps=6", *more)
    assert_equal(last_checkpoint(resume_run(tmp_path / "run")), last_checkpoint(straight))
