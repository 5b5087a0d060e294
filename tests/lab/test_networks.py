"""Models, losses, metrics, and the synthetic data."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

from lab.datasets.synthetic import Synthetic
from lab.losses.cross_entropy import CrossEntropy
from lab.losses.squared_error import SquaredError
from lab.metrics.absolute_error import AbsoluteError
from lab.metrics.accuracy import Accuracy
from lab.models.mlp import MLP
from samebits.errors import ConfigError

C = 7


# ---- models ----


@settings(max_examples=25, deadline=None)
@given(
    shape=st.lists(st.integers(1, 5), max_size=4),
    hidden=st.lists(st.integers(1, 9), max_size=3),
    batch=st.integers(0, 3),
)
def test_mlp_maps_any_shape_to_outputs(shape: list[int], hidden: list[int], batch: int) -> None:
    model = MLP(input_shape=shape, num_outputs=C, hidden=hidden, dropout=0.1)
    assert model(torch.randn(batch, *shape)).shape == (batch, C)
    assert [m.out_features for m in model.modules() if isinstance(m, nn.Linear)] == [*hidden, C]


def test_dropout_is_of_training_alone() -> None:
    torch.manual_seed(0)
    model, x = MLP((1, 4, 4), C, hidden=[32], dropout=0.5), torch.randn(4, 1, 4, 4)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_an_input_that_does_not_fit_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"shape \(4, 4\).*\(16,\)"):
        MLP((4, 4), C, [], 0.0)(torch.rand(2, 16))


# ---- losses and metrics ----


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.uint8])
def test_cross_entropy_reduces_to_torchs(smoothing: float, dtype: torch.dtype) -> None:
    output, y = torch.randn(9, C, dtype=torch.float64), torch.randint(C, (9,))
    loss = CrossEntropy(smoothing)(output, {"y": y.to(dtype)})
    torch.testing.assert_close(loss.mean(), F.cross_entropy(output, y, label_smoothing=smoothing))
    one_by_one = [F.cross_entropy(o[None], t[None], label_smoothing=smoothing) for o, t in zip(output, y, strict=True)]
    torch.testing.assert_close(loss, torch.stack(one_by_one))
    torch.testing.assert_close(CrossEntropy(smoothing)(output, {"y": y[:, None]}), loss)


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("label", [-100, -1, C])
def test_no_label_outside_of_the_classes_has_a_loss_of_0(smoothing: float, label: int) -> None:
    """-100 is a label that PyTorch's cross_entropy ignores by default."""
    with pytest.raises(ConfigError, match=rf"batch\['y'\] has .*{label}.* the model has {C} classes"):
        CrossEntropy(smoothing)(torch.randn(4, C), {"y": torch.tensor([0, label, 0, 0])})


@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_soft_targets_equal_hard_ones_and_mix_linearly(smoothing: float) -> None:
    criterion, output = CrossEntropy(smoothing), torch.randn(9, C)
    a, b = torch.randint(C, (2, 9))
    one_hot_a, one_hot_b = F.one_hot(a, C).float(), F.one_hot(b, C).float()
    hard_a, hard_b = criterion(output, {"y": a}), criterion(output, {"y": b})
    torch.testing.assert_close(criterion(output, {"y": one_hot_a}), hard_a)
    mixed = criterion(output, {"y": 0.3 * one_hot_a + 0.7 * one_hot_b})
    torch.testing.assert_close(mixed, 0.3 * hard_a + 0.7 * hard_b)
    assert torch.equal(Accuracy()(output, {"y": one_hot_a}), Accuracy()(output, {"y": a}))


@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3)])
def test_squared_and_absolute_error_reduce_to_torchs(shape: tuple[int, ...]) -> None:
    y = torch.randn(6, *shape)
    output = torch.randn(6, *shape)
    flat = output.reshape(6, math.prod(shape))
    for prediction in (output, flat):  # a flat output stands for any target of as many elements, (B, 1) for (B,) too
        squared, absolute = SquaredError()(prediction, {"y": y}), AbsoluteError()(prediction, {"y": y})
        assert squared.shape == absolute.shape == (6,)
        torch.testing.assert_close(squared.mean(), F.mse_loss(output, y))
        torch.testing.assert_close(absolute.mean(), F.l1_loss(output, y))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_losses_of_half_precision_are_computed_in_float32(dtype: torch.dtype) -> None:
    logits, y = (30 * torch.randn(8, C)).to(dtype), torch.randint(C, (8,))
    loss = CrossEntropy(0.0)(logits, {"y": y})
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss, F.cross_entropy(logits.float(), y, reduction="none"))
    far = torch.full((2, 3), 1000.0, dtype=dtype)  # the square does not fit into float16
    expected = torch.full((2,), 1e6)
    torch.testing.assert_close(SquaredError()(far, {"y": torch.zeros(2, 3, dtype=dtype)}), expected)
    assert AbsoluteError()(far, {"y": torch.zeros(2, 3, dtype=dtype)}).dtype == torch.float32


def test_accuracy_counts_hits_of_each_sample() -> None:
    output = torch.tensor([[2.0, 1.0], [2.0, 1.0], [0.0, 1.0]])
    y = torch.tensor([0, 1, 1])
    for target in (y, y[:, None], y.to(torch.uint8)):
        assert Accuracy()(output, {"y": target}).tolist() == [1.0, 0.0, 1.0]


def _logits(*shape: int) -> Tensor:
    return torch.zeros(shape)


@pytest.mark.parametrize(
    ("call", "output", "y", "says"),
    [
        (CrossEntropy(0.0), _logits(4, C), torch.zeros(4), "task=regression"),
        (CrossEntropy(0.0), _logits(4, C), torch.zeros(4, C + 1), "num_outputs"),
        (CrossEntropy(0.0), _logits(4, 1), torch.zeros(4, 1), "task=regression"),
        (CrossEntropy(0.0), _logits(4, C), torch.zeros(4, C, dtype=torch.int64), "one integer label"),
        (CrossEntropy(0.0), _logits(4, C), torch.full((4,), C), rf"label {C}, but .* {C} classes.*data\.num_outputs"),
        (CrossEntropy(0.0), _logits(4, C), torch.full((4,), -1), r"the label -1"),
        (CrossEntropy(0.0), _logits(4, C), torch.full((4,), -100), r"the label -100"),
        (CrossEntropy(0.0), _logits(4), torch.zeros(4, dtype=torch.int64), "one integer label"),
        (SquaredError(), _logits(4, C), torch.zeros(4, dtype=torch.int64), "task=classification"),
        (SquaredError(), _logits(4, C), torch.zeros(4), "num_outputs"),
        (SquaredError(), _logits(4, 1), torch.zeros(1, 4), "num_outputs"),
        (SquaredError(), _logits(4, 2, 3), torch.zeros(4, 3, 2), "num_outputs"),
        (Accuracy(), _logits(4, C), torch.zeros(4), "task=regression"),
        (CrossEntropy(0.0), _logits(4), torch.zeros(4), "task=regression"),
        (Accuracy(), _logits(4), torch.zeros(4), "a logit per class"),
        (Accuracy(), _logits(4, 1), torch.zeros(4, 1), r"torch\.float32 \(4, 1\): .*a logit per class"),
        (Accuracy(), _logits(4, 1), torch.zeros(4, dtype=torch.int64), "a logit per class"),
        (Accuracy(), _logits(4, C), torch.zeros(4, 2, dtype=torch.int64), "one integer label"),
        (AbsoluteError(), _logits(4, C), torch.zeros(4, dtype=torch.int64), "task=classification"),
        (AbsoluteError(), _logits(4, 1), torch.zeros(1, 4), "num_outputs"),
    ],
)
def test_mismatches_say_what_to_change(call: object, output: Tensor, y: Tensor, says: str) -> None:
    assert callable(call)
    with pytest.raises(ConfigError, match=says):
        call(output, {"y": y})


# ---- synthetic data ----


def test_synthetic_is_a_function_of_seed_and_split() -> None:
    def everything(seed: int, split: str) -> dict[str, Tensor]:
        dataset = Synthetic(64, (2, 3), 5, seed=seed, split=split)
        return dataset.gather(np.arange(len(dataset)))

    train = everything(0, "train")
    assert torch.equal(train["x"], everything(0, "train")["x"])
    assert torch.equal(train["y"], everything(0, "train")["y"])
    assert not torch.equal(train["x"], everything(1, "train")["x"])
    val, test = everything(0, "val"), everything(0, "test")
    assert len(val["x"]) == len(test["x"]) == 8
    assert not torch.equal(val["x"], test["x"])
    assert sorted(train["y"].bincount().tolist()) == [12, 13, 13, 13, 13]


def test_synthetic_gathers_into_buffers_what_spec_says() -> None:
    dataset = Synthetic(32, (3, 4), 5, seed=0, split="train")
    rows = np.array([3, 31, 3, 0])
    fresh = dataset.gather(rows)
    buffers = {field: torch.empty((4, *shape), dtype=dtype) for field, (shape, dtype) in dataset.spec.items()}
    pointers = {field: value.data_ptr() for field, value in buffers.items()}
    dataset.gather(rows, buffers)
    for field, value in buffers.items():
        assert value.data_ptr() == pointers[field]
        assert torch.equal(value, fresh[field])
        assert torch.equal(value[0], value[2])
    assert dataset.nbytes == 32 * (3 * 4 * 4 + 8)


def test_synthetic_rejects_what_it_lacks() -> None:
    with pytest.raises(ConfigError, match=r"'dev'.*train, val, test"):
        Synthetic(8, (2,), 2, seed=0, split="dev")
