"""pruning.* and quantization.*: the model is sparse or rounded wherever it is scored, saved, loaded and exported."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from common import needs
from torch import Tensor, nn
from torch.nn import functional as F

from lab import load_run
from lab.frozen_networks import provide_frozen
from lab.groups import PruningConfig, QuantizationConfig
from lab.layers import layers_of
from lab.model_io import exported
from lab.pruning import extend, sparsity_at
from lab.quantization import Quantized, fake_quantize, quantize, round_weights
from lab.restore import score_checkpoint
from lab.tasks.base import Task
from samebits.checkpoints import export as write_weights, load_checkpoint
from samebits.errors import ConfigError
from samebits.testing import SMALL, TaskTests, assert_equal, last_checkpoint, result, resume_run, start_run, values

PRUNED = ("pruning.sparsity=0.8", "pruning.every=2", "pruning.end=0.5")
OPTIONS = ("model.hidden=[32]", "optim.lr=1e-2", "+optim.eps=1e-5")


def zeros(weights: dict[str, Tensor]) -> list[float]:
    return [float((w == 0).float().mean()) for w in weights.values() if w.dim() > 1]


@pytest.mark.slow
class TestPruning(TaskTests):
    """Kills, ranks, micro-batches and skipped steps change nothing."""

    overfits_to = 0.3  # with a fifth of the weights

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


@pytest.mark.slow
class TestQuantization(TaskTests):
    """Rounding is a jump, so tiny differences of the inputs may grow to a step of the rounding: tolerances are larger
    than without it. What it depends on is tested below bit for bit."""

    relative, absolute, absolute_of_weights = 2e-2, 2e-3, 2e-3
    half_precision = 0.5
    ranks = (1,)  # it keeps nothing from step to step that ranks could share

    @pytest.fixture
    def run(self) -> tuple[str, ...]:
        return ("quantization.weight_bits=8", "quantization.activation_bits=8", *OPTIONS)

    def test_the_loaded_model_computes_with_rounded_weights(self, straight: Path) -> None:
        model = load_run(straight)[0]
        layers = [part for part in model.modules() if isinstance(part, Quantized)]
        assert [type(part).__name__ for part in layers] == ["QuantizedLinear"] * 2
        assert last_checkpoint(straight)["model"].keys() == model.state_dict().keys()
        assert score_checkpoint(straight, "val", [])["loss"] == pytest.approx(result(straight)["val/loss"], rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [
        pytest.param(("task=swa", "task.start=0.5", "task.every=2"), marks=needs("conf/task/swa.yaml")),
        pytest.param(
            ("task=gan", "model.input_shape=[4]", "model.num_outputs=64", "trainer.ema_decay=0.9"),
            marks=(needs("conf/task/gan.yaml"), pytest.mark.slow),
        ),
        pytest.param(("optim=schedule_free",), marks=(needs("conf/optim/schedule_free.yaml"), pytest.mark.slow)),
        pytest.param(
            ("model=resnet", "model.width=4", "model.blocks=[1]", "pruning.scope=model"),
            marks=(needs("conf/model/resnet.yaml"), pytest.mark.slow),
        ),
    ],
)
def test_pruning_with_other_tasks_optimizers_and_models(tmp_path: Path, options: tuple[str, ...]) -> None:
    run = start_run(tmp_path, *SMALL, *PRUNED, *options)
    model = load_run(run)[0]
    weights = [p for name, p in model.named_parameters() if p.dim() > 1]
    assert sum(int((p == 0).sum()) for p in weights) / sum(p.numel() for p in weights) > 0.79


def test_the_best_model_is_as_sparse_as_the_last(tmp_path: Path) -> None:
    """Even if a denser one had a better score: here a higher loss, as nothing is learned."""
    loss = "+task.metrics.nll={_target_: lab.losses.cross_entropy.CrossEntropy, label_smoothing: 0.0}"
    worst = (loss, "monitor.key=val/nll", "monitor.mode=max", "optim.lr=1e-9", "trainer.eval_every=2")
    run = start_run(tmp_path, *SMALL, *PRUNED, *worst)
    best = load_checkpoint(max((run / "checkpoints").glob("best_*.pt")))
    assert best["step"] > 6
    assert min(zeros(best["model"])) > 0.79


@pytest.mark.slow
def test_a_longer_schedule_keeps_pruned_weights_at_zero(tmp_path: Path) -> None:
    run = start_run(tmp_path, *SMALL, *PRUNED)
    before = last_checkpoint(run)["model"]
    resume_run(run, trainer__max_steps=40)
    after = last_checkpoint(run)["model"]
    for name, value in before.items():
        if value.dim() > 1:
            assert not after[name][value == 0].any()
            assert not torch.equal(after[name], value)


def test_the_schedule_is_zhu_and_gupta_s() -> None:
    pruning = PruningConfig(sparsity=0.8, start=0.1, end=0.5, every=10)
    found = {step: sparsity_at(pruning, step, 100) for step in range(100)}
    due = {step: s for step, s in found.items() if s is not None}
    assert due == pytest.approx({10 * (k + 1): 0.8 * (1 - (1 - k / 4) ** 3) for k in range(5)})
    whole = PruningConfig(sparsity=0.5, start=1.0, end=1.0)
    assert [step for step in range(100) if sparsity_at(whole, step, 100) is not None] == [99]  # it must come


@pytest.mark.parametrize("together", [False, True])
def test_the_smallest_weights_are_pruned(together: bool) -> None:
    """Exactly so many, ties too, and those that were pruned remain so."""
    weights = [nn.Parameter(torch.arange(1.0, 11.0)), nn.Parameter(torch.full((10,), -100.0))]
    masked = [(p, torch.ones(10, dtype=torch.bool)) for p in weights]
    assert extend(masked, 0.5, together)
    assert [int(mask.sum()) for _, mask in masked] == ([0, 10] if together else [5, 5])
    assert not masked[0][1][:5].any()
    assert not extend(masked, 0.3, together)
    assert [int(mask.sum()) for _, mask in masked] == ([0, 10] if together else [5, 5])


def test_rounding_is_to_integers_of_a_scale_and_its_gradient_is_the_identity() -> None:
    x = torch.randn(6, 50, requires_grad=True)
    rounded = fake_quantize(x, 8, (0,))
    scale = x.detach().abs().amax(1) / 127
    wanted = torch.fake_quantize_per_channel_affine(x.detach(), scale, torch.zeros(6), 0, -127, 127)
    torch.testing.assert_close(rounded, wanted, rtol=0, atol=1e-6)
    (gradient,) = torch.autograd.grad(rounded.sum(), x)
    torch.testing.assert_close(gradient, torch.ones_like(x))
    assert len(fake_quantize(x, 2, ()).unique()) == 3
    assert torch.equal(fake_quantize(torch.zeros(2, 3), 8, (0,)), torch.zeros(2, 3))
    torch.testing.assert_close(fake_quantize(rounded, 8, (0,)), rounded, rtol=1e-6, atol=0)


@pytest.mark.parametrize("kind", [nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d])
def test_a_sample_s_output_does_not_depend_on_the_other_samples(kind: Any) -> None:
    dims = 2 + (kind is not nn.Linear) * (int(kind.__name__[-2]) if kind is not nn.Linear else 0)
    layer = kind(3, 4) if kind is nn.Linear else kind(3, 4, 3, padding=1)
    plain = layer.weight.detach().clone()
    model = quantize(nn.Sequential(layer), QuantizationConfig(weight_bits=4, activation_bits=4))
    x = torch.randn(5, 3, *[6] * (dims - 2)) * torch.arange(1, 6).view(5, *[1] * (dims - 1)) ** 4
    torch.testing.assert_close(model(x)[:2], model(x[:2]))
    assert torch.equal(layer.weight, plain)
    wanted, given = layer.rounded_weight(), torch.stack([fake_quantize(one, 4, ()) for one in x])
    bare = F.linear(given, wanted, layer.bias) if kind is nn.Linear else layer._conv_forward(given, wanted, layer.bias)
    torch.testing.assert_close(model(x), bare)
    before = model(x)
    torch.testing.assert_close(round_weights(model)(x), before)


def test_export_writes_rounded_weights(tmp_path: Path) -> None:
    """An ordinary model with them computes what the quantized one does, but for the rounding of its inputs."""
    run = start_run(tmp_path, *SMALL, "quantization.weight_bits=3", "trainer.ema_decay=0.9")
    write_weights(run, tmp_path / "weights.pt", False, "pt", exported)
    held = torch.load(tmp_path / "weights.pt", weights_only=True)
    assert_equal(held, dict(round_weights(load_run(run)[0]).state_dict()))
    for name, value in held.items():
        assert value.dim() < 2 or max(len(row.unique()) for row in value) <= 7, name
    write_weights(run, tmp_path / "own.pt", False)
    assert max(len(row.unique()) for row in torch.load(tmp_path / "own.pt", weights_only=True)["0.weight"]) > 7


@pytest.mark.slow
def test_quantization_with_shards(tmp_path: Path) -> None:
    options = (*SMALL, "quantization.weight_bits=8", "quantization.activation_bits=8")
    one = start_run(tmp_path / "one", *options)
    two = start_run(tmp_path / "two", *options, "trainer=fsdp", "hardware.num_procs=2")
    assert result(two)["val/loss"] == pytest.approx(result(one)["val/loss"], rel=1e-2)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("pruning.every=3",), r"pruning\.every=3: has no effect, because pruning\.sparsity is null"),
        (("quantization.activation_bits=8",), r"activation_bits=8: has no effect, because quantization\.weight_bits"),
        (("pruning.sparsity=1",), r"pruning\.sparsity"),
        (("pruning.sparsity=0.5", "pruning.start=0.9"), r"pruning\.end=0\.75: must be at least pruning\.start=0\.9"),
        (("pruning.sparsity=0.5", "trainer=fsdp"), r"trainer=fsdp: pruning\.sparsity=0\.5 compares all weights"),
        (("pruning.sparsity=0.5", "pruning.exclude=[head]"), r"pruning\.exclude: 'head' matches no .*names are 0, 2"),
        (("quantization.weight_bits=8", "quantization.exclude=[.]"), "MLP has no linear or convolutional layer"),
    ],
)
def test_mistakes(tmp_path: Path, options: tuple[str, ...], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        start_run(tmp_path, *SMALL, *options)


def test_a_layer_with_its_own_forward_is_refused() -> None:
    class Own(nn.Linear):
        """A layer that may compute something else."""

    with pytest.raises(ConfigError, match=r"quantization: 0 is a Own.*exclude=\[\"\^0\$\"\]"):
        quantize(nn.Sequential(Own(2, 2)), QuantizationConfig(weight_bits=8))


def test_a_tied_weight_is_refused() -> None:
    """The embedding would be exported rounded, and pruned, but evaluated as it is."""
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False))
    model[1].weight = model[0].weight
    for key in ("quantization", "pruning"):
        with pytest.raises(ConfigError, match=rf"^{key}: 1 shares its weight with another module, such as an "):
            layers_of(model, key, [])


def test_torchs_fused_evaluation_is_not_used() -> None:
    """It reads the weights of a transformer's layers without rounding."""
    model = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
    quantize(model, QuantizationConfig(weight_bits=2, activation_bits=None, exclude=["out_proj"]))
    x = torch.randn(3, 4, 8)
    trained = model(x)
    with torch.no_grad():
        torch.testing.assert_close(model.eval()(x), trained)


def test_a_frozen_copy_stays_quantized(tmp_path: Path) -> None:
    task = Task()
    model = quantize(nn.Linear(4, 2), QuantizationConfig(weight_bits=2))
    node, x = {"_target_": "torch.nn.Linear", "in_features": 4, "out_features": 2}, torch.randn(3, 4)
    outputs = []
    for begins in (True, False):
        task.frozen_networks = {"teacher": None}
        provide_frozen(task, model, node, tmp_path, begins, writes=True)
        outputs.append(task.frozen_networks["teacher"](x))
    assert torch.equal(*outputs)
    assert not torch.equal(outputs[0], nn.functional.linear(x, model.weight, model.bias))  # type: ignore[arg-type]


def test_the_masks_change_about_twenty_times() -> None:
    """One jump to the final sparsity would destroy the model."""
    pruning = PruningConfig(sparsity=0.9)
    changes = [share for step in range(40) if (share := sparsity_at(pruning, step, 40)) is not None]
    assert len(changes) >= 20
    assert max(b - a for a, b in pairwise(changes)) < 0.3
