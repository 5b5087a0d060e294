"""hardware.deterministic sets all of torch's switches."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch

from samebits.device.hardware import make_deterministic
from samebits.steps import rng_bytes, set_rng_bytes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def _generators_as_they_were() -> Iterator[None]:
    before = rng_bytes(CPU)
    yield
    set_rng_bytes(before, CPU)


def test_deterministic_means_all_three_switches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUBLAS_WORKSPACE_CONFIG", "")  # so that it is as before for the tests after this one
    monkeypatch.delenv("CUBLAS_WORKSPACE_CONFIG")
    monkeypatch.setattr(torch.backends.cudnn, "benchmark", True)
    try:
        make_deterministic()
        assert torch.are_deterministic_algorithms_enabled()
        assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert torch.backends.cudnn.benchmark is False
        assert os.environ["CUBLAS_WORKSPACE_CONFIG"] == ":4096:8"
    finally:
        torch.use_deterministic_algorithms(False)
