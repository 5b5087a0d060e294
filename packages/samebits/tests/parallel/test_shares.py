"""Shares of a batch on several devices. Here the devices are the CPU."""

from __future__ import annotations

import threading
from typing import Any

import torch
from torch import Tensor, nn

from samebits.parallel.data_parallel import Replicas, split
from samebits.testing.processes import limit

CPU = torch.device("cpu")


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 4))


def test_shares_are_equal_to_one_sample_and_keep_lists() -> None:
    shares = split({"x": torch.arange(11), "name": [str(i) for i in range(11)]}, [CPU] * 3)
    assert [len(share["x"]) for share in shares] == [3, 4, 4]
    assert torch.equal(torch.cat([share["x"] for share in shares]), torch.arange(11))
    assert [name for share in shares for name in share["name"]] == [str(i) for i in range(11)]


def test_devices_work_at_the_same_time_under_the_loops_settings() -> None:
    meeting = threading.Barrier(2, timeout=limit(30))  # passes only if both shares are in their forward pass at once
    seen: list[Any] = []

    class Noting(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.model = net()

        def forward(self, batch: dict[str, Tensor]) -> tuple[dict[str, Tensor], Tensor]:
            meeting.wait()
            output = self.model(batch["x"])
            seen.append((output.dtype, torch.is_grad_enabled()))
            return {"loss": output.float().sum(1)}, output

    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        Replicas(Noting(), [CPU, CPU])({"x": torch.randn(4, 8)})
    assert seen == [(torch.bfloat16, False)] * 2
