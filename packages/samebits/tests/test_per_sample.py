"""Losses and metrics are one value per sample."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from samebits.errors import ConfigError
from samebits.per_sample import check_per_sample, first_samples


@pytest.mark.parametrize("wrong", [torch.zeros(32), torch.zeros(4, 8), torch.zeros(()), torch.zeros(3)])
def test_a_value_a_sample_or_an_error(wrong: Tensor) -> None:
    check_per_sample(torch.zeros(4), 4, "task.criterion")
    with pytest.raises(ConfigError, match=r"^task\.criterion: must return one value per sample, \(B,\) = \(4,\), but "):
        check_per_sample(wrong, 4, "task.criterion")


@pytest.mark.parametrize(
    ("wrong", "kind"),
    [
        (None, "None"),
        *((one, f"a value of type {type(one).__name__}") for one in (0.5, [1], {"a": 1}, torch.zeros(4).numpy())),
    ],
)
def test_what_is_not_a_tensor_is_named(wrong: Any, kind: str) -> None:
    with pytest.raises(ConfigError) as error:
        check_per_sample(wrong, 4, "task.metrics.own")
    said = "must return one value per sample, (B,) = (4,), but returned"
    assert str(error.value) == f"task.metrics.own: {said} {kind}: return a torch.Tensor"


def test_complex_values_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"^task: .* but returned complex numbers: return real ones, such as "):
        check_per_sample(torch.zeros(4, dtype=torch.complex64), 4, "task")


def test_a_broadcast_is_not_to_be_averaged_away() -> None:
    output, target = torch.zeros(4, 1), torch.zeros(4)
    with pytest.raises(ConfigError, match=r"shape \(4, 4\) - \(B, 1\) and \(B,\) broadcast to \(B, B\)"):
        check_per_sample((output - target).square(), 4, "task")


def test_first_samples_of_nested_outputs() -> None:
    value = {"a": torch.arange(5), "b": (torch.zeros(5, 2), torch.tensor(3)), "c": list("abcde"), "d": "abcde"}
    cut = first_samples(value, 5, 2)
    assert cut["a"].tolist() == [0, 1]
    assert cut["b"][0].shape == (2, 2)
    assert cut["b"][1] == 3
    assert cut["c"] == ["a", "b"]
    assert cut["d"] == "abcde"
    assert first_samples(value, 5, 5) is value
