"""trainer=dp: the gradients of shares on several devices are those of the whole batch. Here the devices are the CPU,
twice or three times; the copies of the weights alone need GPUs."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from common import QUICK
from torch import nn

import samebits.device.hardware
import samebits.parallel.ddp
from lab.losses.cross_entropy import CrossEntropy
from lab.objective import LossModule
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError
from samebits.parallel.data_parallel import Replicas
from samebits.testing import last_checkpoint, result, start_run, values

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


@pytest.mark.parametrize(("size", "devices"), [(12, 2), (13, 3), (1, 2), (2, 3)])
def test_losses_and_gradients_are_those_of_the_whole_batch(size: int, devices: int) -> None:
    batch = {"x": torch.randn(size, 8), "y": torch.randint(4, (size,))}
    one, shared = net(), net()
    task = Supervised(CrossEntropy(label_smoothing=0.0), {})
    expected, output = LossModule(one, task)(batch)
    losses, nothing = Replicas(LossModule(shared, task), [CPU] * devices)(batch)
    torch.testing.assert_close(losses, expected)
    assert output is nothing is None  # nothing in training reads it
    expected["loss"].mean().backward()
    losses["loss"].mean().backward()
    for a, b in zip(shared.parameters(), one.parameters(), strict=True):
        torch.testing.assert_close(a.grad, b.grad)


@pytest.mark.slow
def test_a_run_learns_what_one_device_does(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(samebits.device.hardware, "choose_device", lambda hardware: "cpu")
    common = (*QUICK, "trainer.max_steps=12", "trainer.log_every=1", "hardware.device=auto")
    one = start_run(tmp_path / "one", *common)
    for module in (samebits.parallel.ddp, samebits.device.hardware):
        monkeypatch.setattr(module, "gpus", lambda: [CPU] * 3)
    more = (*common, "trainer=dp", "hardware.micro_batch_size=8")  # 64 samples: 3 passes of up to 3 x 8
    run = start_run(tmp_path / "dp", *more)
    torch.testing.assert_close(last_checkpoint(run)["model"], last_checkpoint(one)["model"], rtol=1e-3, atol=1e-4)
    assert values(run, "train/loss") == pytest.approx(values(one, "train/loss"), rel=1e-4)
    assert result(run)["test/accuracy"] == pytest.approx(result(one)["test/accuracy"], abs=0.01)


@pytest.mark.slow
def test_it_needs_two_gpus(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"trainer=dp: .* got [01] - use trainer=single"):
        start_run(tmp_path / "run", "trainer=dp", "logger=none")
