"""task=lbfgs: an optimizer with a closure, in the loop's parts."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest
import torch
from common import needs
from shipped import Shipped
from torch.nn import functional as F

from samebits.errors import ConfigError
from samebits.testing import SMALL, metrics, start_run

pytestmark = needs("data/digits.h5")
RUN = ("task=lbfgs", "optim=lbfgs", "model.hidden=[32]", "trainer.clip_norm=null")


class TestLBFGS(Shipped):
    relative, half_precision = 1e-2, 2.0  # a line search takes other steps for other roundings

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


def test_it_is_torch_s_own(tmp_path: Path) -> None:
    own = ("optim.schedule.warmup=0", *plain.PLAIN[7:], "trainer.log_every=1")
    run = (*SMALL, *RUN, *own)
    model = plain.first_weights(*run)
    optimizer = torch.optim.LBFGS(model.parameters(), 1.0, 4, history_size=10, line_search_fn="strong_wolfe")
    losses = []
    for x, y in plain.batches():

        def closure(x: torch.Tensor = x, y: torch.Tensor = y) -> torch.Tensor:
            optimizer.zero_grad()
            loss = F.cross_entropy(model(x), y)
            loss.backward()
            return loss

        losses.append(optimizer.step(closure).item())
    folder = start_run(tmp_path, *run)
    assert [line["train/loss"] for line in metrics(folder)] == pytest.approx(losses, rel=1e-3)
    plain.assert_trained(folder, model)


@pytest.mark.slow
def test_what_cannot_be(tmp_path: Path) -> None:
    for overrides, line in (
        (RUN[:-1], r"^trainer\.clip_norm=1\.0: LBFGS needs the gradients of the loss"),
        (RUN[1:], r"^optim\._target_=torch\.optim\.LBFGS: LBFGS needs a task whose train_step passes a closure: "),
    ):
        with pytest.raises(ConfigError, match=line):
            start_run(tmp_path, *SMALL, *overrides)
