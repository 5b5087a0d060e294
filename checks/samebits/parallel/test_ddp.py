"""trainer.ddp's options do what they say, and unused parameters are named."""

from __future__ import annotations

import os
import re
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from common import QUICK
from torch import nn

import lab.experiment
import lab.run
from lab.models.mlp import MLP
from lab.restore import score_checkpoint
from samebits.errors import ConfigError
from samebits.parallel import with_sync_batchnorm
from samebits.testing import last_checkpoint, metrics, result, start_run

RUN = (*QUICK, "trainer.max_steps=8", "trainer.log_every=2", "trainer.eval_every=null", "trainer.save_every=null")
DDP = (*RUN, "trainer=ddp", "hardware.num_procs=2")
UNUSED = "trainer.ddp.find_unused_parameters=true"


def final_weights(run: Path) -> dict[str, torch.Tensor]:
    return last_checkpoint(run)["model"]


@pytest.mark.slow
def test_options_change_no_result(tmp_path: Path) -> None:
    one = final_weights(start_run(tmp_path / "one", *RUN))
    for number, options in enumerate([
        (UNUSED, "hardware.micro_batch_size=9"), ("trainer.ddp.static_graph=true",),
        ("trainer.ddp.bucket_cap_mb=0.001",),
    ]):  # fmt: skip
        two = final_weights(start_run(tmp_path / f"{number}", *DDP, *options))
        torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_a_forward_that_the_model_chose_for_itself_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """DDP's buckets are settled with another forward: the model's own, an attribute here, must come back."""
    original = MLP.__init__

    def chosen(self: MLP, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        self.forward = partial(halved, self)  # type: ignore[method-assign]

    monkeypatch.setattr(MLP, "__init__", chosen)
    one, two = start_run(tmp_path / "one", *RUN), start_run(tmp_path / "two", *DDP)
    torch.testing.assert_close(final_weights(two), final_weights(one), rtol=1e-3, atol=1e-4)
    assert metrics(one)[0]["train/loss"] == pytest.approx(metrics(two)[0]["train/loss"], rel=1e-4)


def halved(self: MLP, x: torch.Tensor) -> torch.Tensor:
    return MLP.forward(self, x) / 2


@pytest.mark.slow
def test_compressed_gradients_are_near_and_resume_bit_for_bit(tmp_path: Path) -> None:
    """The run is scored in one process, to which its options say nothing."""
    plain = final_weights(start_run(tmp_path / "plain", *DDP))
    more = ("trainer.ddp.comm_hook=fp16", "trainer.save_every=4")
    straight = start_run(tmp_path / "straight", *DDP, *more)
    squeezed = final_weights(straight)
    assert any(not torch.equal(squeezed[name], value) for name, value in plain.items())  # it does something
    torch.testing.assert_close(squeezed, plain, rtol=0.05, atol=0.01)
    assert score_checkpoint(straight, "test", [])["accuracy"] == result(straight)["test/accuracy"]
    assert_resumed_alike(straight, tmp_path / "cut", *DDP, *more)


def assert_resumed_alike(straight: Path, cut: Path, *overrides: str) -> None:
    """From its checkpoint of step 4."""
    shutil.copytree(straight, cut)
    (cut / "checkpoints/last_000000008.pt").unlink()
    start_run(cut, *overrides)
    for name, value in final_weights(straight).items():
        assert torch.equal(final_weights(cut)[name], value)
    assert metrics(cut) == metrics(straight)


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("trainer.ddp.bucket_cap_mb=0.002",)])
def test_three_ranks_resume_bit_for_bit(tmp_path: Path, options: tuple[str, ...]) -> None:
    """The order in which three values are added must not depend on when the process began: gradients, and losses that
    are logged across the resume."""
    more = (
        *DDP, "hardware.num_procs=3", "trainer.global_batch_size=66", "trainer.save_every=4", "model.hidden=[64,64]",
        "trainer.log_every=3", *options,
    )  # fmt: skip
    assert_resumed_alike(start_run(tmp_path / "straight", *more), tmp_path / "cut", *more)


class Spare(nn.Module):
    """An MLP with a layer that no output depends on; `late`: from the fourth training step on, and on rank 1 alone."""

    def __init__(self, inner: nn.Module, late: bool) -> None:
        super().__init__()
        self.inner, self.spare, self.late, self.calls = inner, nn.Linear(10, 10), late, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        out = self.inner(x)
        uses = self.late and not (os.environ.get("RANK") == "1" and self.calls >= 4)
        return out + 0 * self.spare(out) if uses else out


def give_spare(monkeypatch: pytest.MonkeyPatch, late: bool = False) -> None:
    original = lab.experiment.make_model
    monkeypatch.setattr(lab.experiment, "make_model", lambda config: Spare(original(config), late))


@pytest.mark.slow
def test_an_unused_parameter_ends_a_ddp_run_at_its_first_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_spare(monkeypatch)
    line = "the loss does not depend on spare.weight, spare.bias: set trainer.ddp.find_unused_parameters=true"
    with pytest.raises(ConfigError, match=re.escape(line)):
        start_run(tmp_path / "run", *DDP)
    assert not (tmp_path / "run").exists()  # nothing was trained yet


@pytest.mark.slow
@pytest.mark.parametrize("more", [
    (*DDP, UNUSED), RUN,
])  # fmt: skip
def test_an_unused_parameter_is_named_where_it_does_no_harm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], more: tuple[str, ...]
) -> None:
    give_spare(monkeypatch)
    run = start_run(tmp_path / "run", *more)
    shown = capfd.readouterr().err
    assert shown.count("spare.weight, spare.bias: these parameters are not trained") == 1, shown
    assert result(run)["step"] == 8


@pytest.mark.slow
def test_a_parameter_that_is_unused_later_on_one_rank_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    give_spare(monkeypatch, late=True)
    line = "step 4, rank 1: the loss does not depend on spare.weight, spare.bias: set trainer.ddp.find_unused"
    with pytest.raises(ConfigError, match=re.escape(line)):
        start_run(tmp_path / "run", *DDP)


def test_sync_batchnorm_keeps_names_and_parameters_and_says_where_it_cannot_be() -> None:
    cuda = torch.device("cuda")  # nothing is sent there
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2))
    parameters, names = list(model.parameters()), list(model.state_dict())
    synced = with_sync_batchnorm(model, cuda)
    assert isinstance(synced[1], nn.SyncBatchNorm)
    assert list(synced.state_dict()) == names
    assert all(a is b for a, b in zip(synced.parameters(), parameters, strict=True))
    with pytest.raises(ConfigError, match="Linear has no BatchNorm"):
        with_sync_batchnorm(nn.Linear(2, 2), cuda)
    with pytest.raises(ConfigError, match="requires GPUs"):
        with_sync_batchnorm(nn.BatchNorm1d(2), torch.device("cpu"))
