"""debug=waits: file and line of what waits for the device in a step."""

from __future__ import annotations

from pathlib import Path

import pytest
from common import QUICK
from torch import Tensor

import lab.models.mlp
from samebits.testing import start_run


@pytest.mark.parametrize("asks", [True, False])
def test_each_line_that_waits_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, asks: bool) -> None:
    original = lab.models.mlp.MLP.forward

    def forward(self: lab.models.mlp.MLP, x: Tensor) -> Tensor:
        if self.training and asks and x.sum().item() < 0:
            raise ValueError
        return original(self, x)

    monkeypatch.setattr(lab.models.mlp.MLP, "forward", forward)
    options = [option for option in QUICK if not option.startswith(("trainer.", "logger"))]
    run = start_run(tmp_path, *options, "debug=waits", "trainer.max_steps=3")
    lines = [line for line in (run / "train.log").read_text().splitlines() if "waits for" in line or "waited" in line]
    assert len(lines) == 1, lines
    line = forward.__code__.co_firstlineno + 1
    wanted = f"{__file__}:{line}: Tensor.item waits for the device, 3 times in 3 steps"
    assert lines[0].endswith(wanted if asks else "no line waited for the device in 3 steps")
