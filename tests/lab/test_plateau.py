"""optim/schedule=plateau: a learning rate that falls where the monitored score is not getting better."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from common import QUICK, needs
from hypothesis import given, settings, strategies as st

from lab.optim import Schedule
from lab.schedules.plateau import Plateau
from samebits.errors import ConfigError
from samebits.testing import SMALL, WAYS, broken_off, compose, last_checkpoint, start_run, values

pytestmark = needs("conf/optim/schedule/plateau.yaml")
# no score is better than the first by so much: the rate falls at the second and the third evaluation
FALLS = ("optim/schedule=plateau", "optim.schedule.warmup=0", "optim.schedule.patience=1", "optim.schedule.gamma=0.5",
         "optim.schedule.threshold=50", "model.hidden=[16]")  # fmt: skip


@pytest.mark.slow
def test_the_rate_falls_from_the_next_step_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of two ranks that break off between the falls, too."""
    run = (*SMALL, *FALLS, "trainer.log_every=1", "optim.lr=0.01")
    straight = start_run(tmp_path / "straight", *run)
    ranks = broken_off(tmp_path / "ranks", monkeypatch, [6, 11], *run, *WAYS["2 ranks"])
    for folder in (straight, ranks):
        assert values(folder, "train/lr") == pytest.approx([0.01] * 8 + [0.005] * 4)
        assert last_checkpoint(folder)["schedule"]["factor"]["scale"] == 0.25
    assert "step 8: the learning rate is now 0.005 (val/loss=" in (straight / "train.log").read_text()


def test_a_score_that_is_never_finite_ends_no_run(tmp_path: Path) -> None:
    """Recall of nothing: NaN in each evaluation, so there is no best score to print."""
    nothing = ("+task.metrics.none={_target_: lab.metrics.confusion.ConfusionMatrix, num_classes: 11}",
               "monitor.key=val/none/recall_10", "monitor.mode=max", "data.num_outputs=11")  # fmt: skip
    start_run(tmp_path, *SMALL, *FALLS, *nothing)
    assert "is now 0.0005 (val/none/recall_10=nan, best nan)" in (tmp_path / "train.log").read_text()


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.sampled_from([0.5, 0.9, 0.95, 1.0, 2.0, math.nan, math.inf]), max_size=30),
    st.integers(1, 4), st.sampled_from([0.0, 0.02, 0.1]),
)  # fmt: skip
def test_it_falls_where_that_of_torch_does(scores: list[float], patience: int, threshold: float) -> None:
    """torch's falls one evaluation later: its patience is how many it bears."""
    optimizers = [torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0) for _ in "ab"]
    theirs = torch.optim.lr_scheduler.ReduceLROnPlateau(
        optimizers[0], factor=0.5, patience=patience - 1, threshold=threshold, min_lr=0.1
    )
    own = Schedule(optimizers[1], Plateau(0.0, 0.5, patience, threshold, 0.1), 100)
    for step, score in enumerate(scores):
        own.set_rates(step)
        theirs.step(score)
        changed = own.on_score(score, step + 1)
        own.set_rates(step + 1)
        assert changed in ({}, {"": own.last_lr})
        assert optimizers[1].param_groups[0]["lr"] == pytest.approx(optimizers[0].param_groups[0]["lr"])


def test_the_warmup_rises_first() -> None:
    """Its evaluations do not count, and the rate falls from the peak."""
    own = Plateau(0.1, 0.5, 1, 0.0, 0.0)
    assert not any(own.on_score(1.0, step, 100) for step in (0, 5, 9))
    assert not own.on_score(1.0, 10, 100)
    assert own.on_score(1.0, 11, 100)
    assert [own(step, 100) for step in (0, 4, 50)] == pytest.approx([0.05, 0.25, 0.5])


def test_a_resume_falls_when_the_run_would_have() -> None:
    """From a checkpoint after any of the evaluations: how many were stale, and what the best was, come along."""

    def made() -> Schedule:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(1))], lr=1.0)
        return Schedule(optimizer, Plateau(0.0, 0.5, 3, 0.0, 0.01), 100)

    scores = [1.0, 0.5, 0.9, 0.8, 0.7, 0.6, 0.6, 0.6, 0.4, 0.5, 0.5, 0.5]
    straight = made()
    wanted = [straight.on_score(score, step) for step, score in enumerate(scores)]
    assert [step for step, rates in enumerate(wanted) if rates] == [4, 7, 11]
    for cut in range(len(scores)):
        before, after = made(), made()
        for step in range(cut):
            before.on_score(scores[step], step)
        after.load_state_dict(json.loads(json.dumps(before.state_dict())))
        assert [after.on_score(scores[step], step) for step in range(cut, len(scores))] == wanted[cut:], cut


UNSCORED = (
    r"^optim\.schedule: Plateau needs val/loss, but trainer\.eval_every is null - set "
    r"trainer\.eval_every=20, for example, or use optim/schedule=constant$"
)


@pytest.mark.slow
def test_what_cannot_be() -> None:
    run = (*QUICK, "trainer.max_steps=3", "optim/schedule=plateau")
    for option, line in (
        ("trainer.eval_every=null", UNSCORED),
        ("debug=overfit", UNSCORED),
        ("optim.schedule.patience=0", r"^optim\.schedule\.patience: must be >= 1, got 0"),
        ("optim.schedule.gamma=1", r"^optim\.schedule\.gamma: must be < 1, got 1"),
    ):
        with pytest.raises(ConfigError, match=line):
            compose(*run, option)
    for remedy in ("trainer.eval_every=20", "optim/schedule=constant"):
        compose(*run, "debug=overfit", remedy)


@pytest.mark.slow
def test_no_validation_split(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=r"^optim\.schedule\._target_=lab\.schedules\.plateau\.Plateau: needs a validation split"
    ):
        start_run(tmp_path, *QUICK, *FALLS, "trainer.max_steps=3", "data.splits.val=null")
