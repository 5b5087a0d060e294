"""task=pcgrad: gradients that point against each other are projected, as in the paper."""

from __future__ import annotations

from pathlib import Path

import plain
import pytest
import torch
from common import needs
from shipped import Stateless
from torch import Tensor, nn
from torch.nn import functional as F

from lab.tasks.pcgrad import Grouped, PCGrad, without_conflicts
from samebits.errors import ConfigError
from samebits.testing import SMALL, last_checkpoint, metrics, start_run

pytestmark = needs("data/digits.h5")
RUN = ("task=pcgrad", "model.hidden=[32]", "optim.lr=3e-3")


class TestPCGrad(Stateless):
    loss_names = ("fine", "coarse")
    logged = ("loss", "fine", "coarse", "conflicts")

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN


def surgery(model: nn.Module, x: Tensor, y: Tensor) -> float:
    """The paper's algorithm 1 for two losses, where the order has no part. Returns 1.0 if they are in conflict."""
    output = model(x)
    even = output[:, ::2].logsumexp(1) - output.logsumexp(1)
    odd = output[:, 1::2].logsumexp(1) - output.logsumexp(1)
    losses = F.cross_entropy(output, y), -torch.where(y % 2 == 0, even, odd).mean()
    own = [torch.autograd.grad(loss, [*model.parameters()], retain_graph=True) for loss in losses]
    a, b = (torch.cat([g.flatten() for g in gradients]) for gradients in own)
    dot = a @ b
    whole = a + b if dot >= 0 else (a - dot / (b @ b) * b) + (b - dot / (a @ a) * a)
    for p, g in zip(model.parameters(), whole.split([p.numel() for p in model.parameters()])):
        p.data -= 0.1 * g.view_as(p)
    return float(dot < 0)


def test_it_is_the_paper_s_algorithm(tmp_path: Path) -> None:
    run = (*SMALL, *RUN, *plain.PLAIN, "trainer.log_every=1")
    model = plain.first_weights(*run)
    conflicts = [surgery(model, x, y) for x, y in plain.batches()]
    folder = start_run(tmp_path, *run)
    plain.assert_trained(folder, model)
    assert [line["train/conflicts"] for line in metrics(folder)] == conflicts


def test_what_is_left_points_against_no_other() -> None:
    """Of two losses; and where none is in conflict the sum is the plain one."""
    a, b = [torch.tensor([1.0, 0.0]), torch.tensor([0.5])], [torch.tensor([-1.0, 2.0]), torch.tensor([0.0])]
    whole, conflicts = without_conflicts([a, b], 0)
    assert conflicts == 1.0
    for gradient in (a, b):
        assert sum((x * y).sum() for x, y in zip(whole, gradient)) >= 0
    c = [torch.tensor([1.0, 1.0]), torch.tensor([1.0])]
    whole, conflicts = without_conflicts([a, c], 0)
    assert conflicts == 0.0
    assert [part.tolist() for part in whole] == [[2.0, 1.0], [1.5]]


def test_a_group_has_the_probability_of_its_classes() -> None:
    output, y = torch.randn(6, 5), torch.tensor([0, 1, 2, 3, 4, 0])
    groups = [[0, 3], [1, 2, 4]]
    wanted = [-output.softmax(1)[k, groups[y[k] in (1, 2, 4)]].sum().log().item() for k in range(6)]
    assert Grouped(groups)(output, {"y": y}).tolist() == pytest.approx(wanted, rel=1e-5)


def test_what_cannot_be() -> None:
    for groups in ([[0, 1], [1, 2]], [[0], [2]]):
        with pytest.raises(ConfigError, match="must contain each label, from 0, exactly once"):
            Grouped(groups)
    with pytest.raises(ConfigError, match=r"task\.criteria: \['a'\]: give two or more"):
        PCGrad({"a": lambda output, batch: output}, {})


@pytest.mark.slow
def test_a_score_of_its_own_may_be_monitored(tmp_path: Path) -> None:
    """Its terms are names of the yaml; another name is refused before anything is built."""
    run = (*SMALL, *RUN, "trainer.max_steps=2")
    best = last_checkpoint(start_run(tmp_path / "fine", *run, "monitor.key=val/fine"))
    assert best["best_score"] == pytest.approx(metrics(tmp_path / "fine")[-1]["val/fine"])
    with pytest.raises(ConfigError, match=r"no score 'val/fin' - did you mean val/fine\?.*val/coarse"):
        start_run(tmp_path / "fin", *run, "monitor.key=val/fin")
    assert not (tmp_path / "fin").exists()
