"""task=contrastive: embeddings of all ranks, with gradients, and a temperature that is learned."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from shipped import Shipped
from torch import nn
from torch.nn import functional as F

from lab import tune
from lab.restore import score_checkpoint
from lab.tasks.contrastive import Contrastive
from samebits.checkpoints import load_checkpoint
from samebits.children import run_in_subprocess
from samebits.device import resolve_hardware
from samebits.errors import ConfigError
from samebits.testing import SMALL, WAYS, TaskTests, compose, start_run

RUN = (
    "task=contrastive", "model.num_outputs=32", "model.hidden=[32]", "task.projector.hidden=[32]",
    "task.projector.num_outputs=16", "~task.augment.crop", "optim.lr=1e-2", "+optim.eps=1e-5",
)  # fmt: skip


class TestContrastive(Shipped):
    """The 250 samples of an evaluation leave a last batch of 10, which 3 ranks share with two padded rows."""

    loss_names = ("top1", "temperature")
    overfits_to = 0.2
    ways = (["micro-batches", "2 ranks, micro-batches", "3 ranks"],)
    test_debug_overfit = TaskTests.test_debug_overfit

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return RUN

    def test_the_temperature_is_learned_and_saved(self, straight: Path) -> None:
        file = sorted((straight / "checkpoints").glob("last_*.pt"))[-1]
        learned = math.exp(-load_checkpoint(file)["task"]["log_scale"])
        assert learned != pytest.approx(0.07, rel=1e-4)
        assert score_checkpoint(file, "val", [])["temperature"] == pytest.approx(learned)


def test_the_losses_are_those_of_the_formula() -> None:
    torch.manual_seed(0)
    model, task = nn.Linear(4, 3), Contrastive(nn.Linear(3, 2), 0.2, ["a", "b"], {}, {})
    batch = {"a": torch.randn(5, 4), "b": torch.randn(5, 4), "sample_id": torch.tensor([7, 8, 9, 10, -1])}
    losses, seen = task.losses(model, batch)
    torch.testing.assert_close(seen, model(batch["a"]))
    a, b = (F.normalize(task.projector(model(batch[name])), dim=1)[:4] for name in "ab")  # the last does not count
    logits, target = a @ b.T / 0.2, torch.arange(4)
    wanted = (
        F.cross_entropy(logits, target, reduction="none") + F.cross_entropy(logits.T, target, reduction="none")
    ) / 2
    torch.testing.assert_close(losses["loss"][:4], wanted)
    torch.testing.assert_close(losses["temperature"], torch.full((5,), 0.2))
    assert torch.equal(losses["top1"][:4], ((logits.argmax(1) == target).float() + (logits.argmax(0) == target)) / 2)


@pytest.mark.slow
def test_two_ranks_are_tried_and_counted_with_the_whole_batch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What tune's rates and profiler.flop compute in one process."""
    monkeypatch.setattr(tune, "LR_RATES", tune.LR_RATES[::50])
    tried, counted = [], []
    for ranks in (WAYS["2 ranks"], ()):
        run = (*SMALL, *RUN, *ranks)
        tried.append(run_in_subprocess("lr", tune.measure, "lr", compose(*run)))
        folder = start_run(tmp_path / str(len(ranks)), *run, "profiler.flop=true", "trainer.max_steps=3")
        line = json.loads((folder / "metrics.jsonl").read_text().splitlines()[0])
        counted.append(line["perf/tflop_per_s"] / line["perf/samples_per_s"])
    assert [rate for rate, _ in tried[0]] == tune.LR_RATES
    assert tried[0] == tried[1]
    assert counted[0] == pytest.approx(counted[1])


# ---- what cannot be


@pytest.mark.slow
def test_what_cannot_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for overrides, line in (
        (("trainer=fsdp", "hardware.num_procs=2"), "trainer=fsdp: Contrastive has parameters (log_"),
        (("trainer=dp", "hardware.device=auto"), "trainer=dp: Contrastive compares all samples of a batch"),
    ):
        if "trainer=dp" in overrides:  # on the machine of a test, which has no two GPUs
            monkeypatch.setattr(
                "samebits.process.rank.resolve_hardware",
                lambda own, given: resolve_hardware(own, replace(given, strategy="single")),
            )
        with pytest.raises(ConfigError, match=re.escape(line)):
            start_run(tmp_path / "run", *SMALL, *RUN, *overrides)


def test_a_prediction_is_the_representation() -> None:
    task, model, x = Contrastive(nn.Linear(3, 2), 0.1, ["x", "x"], {}, {}), nn.Linear(4, 3), torch.rand(2, 4)
    assert torch.equal(task.predict(model, {"x": x}), model(x))
