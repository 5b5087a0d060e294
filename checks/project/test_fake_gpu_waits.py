"""A question to the device is noticed."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from fake_gpu import GPU, Waited, fake_gpu
from torch import Tensor
from torch._subclasses.fake_tensor import DynamicOutputShapeException
from torch.torch_version import TorchVersion

# fake_gpu uses names of torch that are private; with these versions it was seen to work
pytestmark = pytest.mark.skipif(torch.__version__ < TorchVersion("2.11"), reason="needs torch 2.11")
QUESTIONS: list[Callable[[Tensor], Any]] = [
    lambda x: x.sum().item(), lambda x: float(x[0]), lambda x: 1 if x.sum() > 2 else 0, lambda x: x.tolist(),
    lambda x: x.cpu(), lambda x: torch.equal(x, x), lambda x: torch.linalg.inv(torch.diag(x)),
    lambda x: x + torch.tensor([1.0, 2.0, 3.0], device=x.device), lambda x: x.copy_(torch.ones(3)),
    lambda x: x[torch.tensor([0, 1])],
]  # fmt: skip
# without an order; a mask, whose count of values the host must know; tensors of two devices
UNORDERED: list[Callable[[Tensor], Any]] = [
    lambda x: x.cumsum(0), lambda x: x.double().cumsum(0), lambda x: torch.histc(x), lambda x: x.median(0),
]  # fmt: skip
IMPOSSIBLE: list[Callable[[Tensor], Any]] = [
    lambda x: x[x > 1], lambda x: x + torch.ones(3), lambda x: torch.stack([x, x.cpu()]),
]  # fmt: skip


def test_a_question_is_noticed() -> None:
    with fake_gpu(None) as (gpu, _):
        x = torch.ones(3, device=GPU)
        for question in QUESTIONS:
            with pytest.raises(Waited), gpu.refused():
                question(x)
        for spoil in IMPOSSIBLE:
            with pytest.raises((DynamicOutputShapeException, RuntimeError)):
                spoil(x)
        x.long().cumsum(0)
        assert not gpu.unordered
        for sum_up in UNORDERED:
            sum_up(x)
            assert gpu.unordered
            gpu.unordered.clear()
