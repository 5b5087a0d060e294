"""The energy counter of a GPU, with a library in place of NVML."""

from __future__ import annotations

import ctypes
from typing import Any

import pytest

from samebits.host import EnergyCounter


class FakeNvml:
    """NVML of one GPU. status: what its counter returns."""

    def __init__(self, status: int = 0) -> None:
        self.status, self.millijoules = status, 7_000

    def nvmlInit_v2(self) -> int:
        return 0

    def nvmlDeviceGetHandleByUUID(self, name: ctypes.c_char_p, gpu: Any) -> int:
        gpu._obj.value = 42
        return 0 if name.value == b"GPU-1234" else 6

    def nvmlDeviceGetTotalEnergyConsumption(self, gpu: ctypes.c_void_p, found: Any) -> int:
        assert gpu.value == 42
        found._obj.value = self.millijoules
        return self.status


@pytest.mark.parametrize("uuid", ["1234", "GPU-1234"])  # as torch and as nvidia-smi print it
def test_it_is_read_in_joules(monkeypatch: pytest.MonkeyPatch, uuid: str) -> None:
    nvml = FakeNvml()
    monkeypatch.setattr(ctypes, "CDLL", lambda name: nvml)
    counter = EnergyCounter(uuid)
    nvml.millijoules += 500
    assert counter.joules() == 7.5


def test_a_gpu_without_a_counter_is_an_error_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ctypes, "CDLL", lambda name: FakeNvml(status=3))
    with pytest.raises(OSError, match="error 3, not supported by this GPU"):
        EnergyCounter("1234")
    with pytest.raises(OSError, match="error 6, not found"):
        EnergyCounter("5678")
