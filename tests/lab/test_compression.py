"""pruning.* and quantization.*: the model is sparse or rounded wherever it is scored, saved, loaded and exported."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from common import needs
from torch import Tensor, nn
from torch.nn import functional as F

from lab import load_run
from lab.groups import PruningConfig, QuantizationConfig
from lab.pruning import Pruner, extend, sparsity_at
from lab.quantization import Quantized, fake_quantize, quantize, round_weights
from lab.restore import score_checkpoint
from samebits.checkpoints import load_checkpoint
from samebits.errors import ConfigError
from samebits.testing import SMALL, TaskTests, assert_equal, last_checkpoint, result, resume_run, start_run, values
from samebits.testing.processes import slow

PRUNED = ("pruning.sparsity=0.8", "pruning.every=2", "pruning.end=0.5")
ROUNDED = ("quantization.weight_bits=4", "quantization.activation_bits=4")
OPTIONS = ("model.hidden=[32]", "optim.lr=1e-2", "+optim.eps=1e-5")


def zeros(weights: dict[str, Tensor]) -> list[float]:
    return [float((w == 0).float().mean()) for w in weights.values() if w.dim() > 1]


class TestPruning(TaskTests):
    """Kills, ranks, micro-batches and skipped steps change nothing."""

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return (*PRUNED, *OPTIONS)

    def test_what_is_scored_saved_and_loaded_is_sparse(self, straight: Path) -> None:
        held = last_checkpoint(straight)
        best = load_checkpoint(max((straight / "checkpoints").glob("best_*.pt")))
        for weights in (held["model"], held["ema"], best["ema"], load_run(straight)[0].state_dict()):
            assert zeros(weights) == pytest.approx([0.8, 0.8], abs=2e-3)
        assert any(not torch.equal(held["ema"][name], value) for name, value in held["model"].items())
        assert values(straight, "train/sparsity")[-1] == pytest.approx(0.8, abs=2e-3)
        assert score_checkpoint(straight, "val", [])["loss"] == pytest.approx(result(straight)["val/loss"], rel=1e-4)


class TestQuantization(TaskTests):
    """Rounding is a jump, so tiny differences of the inputs may grow to a step of the rounding: tolerances are larger
    than without it. What it depends on is tested below bit for bit."""

    relative, absolute, absolute_of_weights = 2e-2, 2e-3, 2e-3
    half_precision = 0.5

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("quantization.weight_bits=8", "quantization.activation_bits=8", *OPTIONS)

    def test_the_loaded_model_computes_with_rounded_weights(self, straight: Path) -> None:
        model = load_run(straight)[0]
        layers = [part for part in model.modules() if isinstance(part, Quantized)]
        assert [type(part).__name__ for part in layers] == ["QuantizedLinear"] * 2
        assert last_checkpoint(straight)["model"].keys() == model.state_dict().keys()
        assert score_checkpoint(straight, "val", [])["loss"] == pytest.approx(result(straight)["val/loss"], rel=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("task=swa", "task.start=0.5", "task.every=2"), marks=needs("conf/task/swa.yaml")),
        slow(("task=gan", "model=autoencoder"), marks=needs("conf/task/gan.yaml")),
    ],
)
def test_other_tasks_and_optimizers(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = start_run(tmp_path, *SMALL, *options, *PRUNED)
    assert min(zeros(load_run(run)[0].state_dict())) > 0.79
