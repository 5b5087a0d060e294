"""What a model holds in evaluation mode stays in it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from common import QUICK
from torch import Tensor, nn

import lab.models.mlp
from lab.average import modules_in_eval_mode, set_training_mode
from samebits.testing import last_checkpoint, start_run


class Frozen(nn.Module):
    """Its first norm, of two, and its dropout are held in evaluation mode, as those of a frozen backbone."""

    __module__ = "lab.models.mlp"

    def __init__(self, input_shape: Any, num_outputs: int, hidden: Any, dropout: float) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.BatchNorm1d(64), nn.Dropout(1.0)).requires_grad_(False).eval()
        self.norm, self.head = nn.BatchNorm1d(64), nn.Linear(64, num_outputs)

    def forward(self, x: Tensor) -> Tensor:
        still = self.backbone(x.flatten(1))
        assert self.backbone.training or still.any()
        return self.head(self.norm(still))


@pytest.mark.parametrize("rules", [1, 2])
def test_a_frozen_norm_stays_frozen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rules: int) -> None:
    """Behind an evaluation, too, and said in the log. A run from before goes on as it began."""
    monkeypatch.setattr(lab.models.mlp, "Frozen", Frozen, raising=False)
    run = start_run(
        tmp_path, *QUICK, "model._target_=lab.models.mlp.Frozen", "trainer.max_steps=4", "trainer.eval_every=2",
        f"rules={rules}",
    )  # fmt: skip
    held = last_checkpoint(run)["model"]
    assert bool(held["backbone.0.running_mean"].any()) is (rules == 1)
    assert held["norm.num_batches_tracked"] == 4
    said = "modules that the model keeps in evaluation mode: backbone\n" in (run / "train.log").read_text()
    assert said is (rules == 2)


class OfItsOwn(nn.Module):
    """Its `train` keeps the norm in evaluation mode, which a new object does not have it in yet."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.head = nn.BatchNorm1d(2), nn.Linear(2, 2)

    def train(self, mode: bool = True) -> OfItsOwn:
        super().train(mode)
        self.norm.eval()
        return self


def test_modes_are_those_that_the_model_has() -> None:
    part = nn.Sequential(nn.Linear(2, 2), nn.Sequential(nn.Dropout(), nn.Dropout())).eval()
    part[1][1].train()  # a head of a body that is held
    net = nn.ModuleList([OfItsOwn(), part, nn.Dropout()])
    for _ in range(2):
        set_training_mode(net)
        training = [name for name, module in net.named_modules() if module.training]
        assert training == ["", "0", "0.head", "1.1.1", "2"]
    assert modules_in_eval_mode(net) == ["0.norm", "1"]
    assert modules_in_eval_mode(nn.Sequential(nn.Linear(2, 2)).eval()) == [""]
