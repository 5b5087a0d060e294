"""callback=energy: the power of the GPUs of all ranks."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from common import QUICK

from lab.callbacks.energy import GpuPower
from samebits.errors import ConfigError
from samebits.testing import start_run


def test_power_is_the_difference_of_the_counters_of_all_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    readings, clock = iter([1000.0, 4000.0, 4600.0]), iter([0.0, 10.0, 12.0])
    counter = SimpleNamespace(joules=lambda: next(readings))
    monkeypatch.setattr("lab.callbacks.energy.EnergyCounter", lambda uuid: counter)
    monkeypatch.setattr("lab.callbacks.energy.time", SimpleNamespace(monotonic=lambda: next(clock)))
    gpu = SimpleNamespace(get_device_properties=lambda device: SimpleNamespace(uuid="1234"))
    fake = SimpleNamespace(cuda=gpu, tensor=lambda values, device: torch.tensor(values))
    monkeypatch.setattr("lab.callbacks.energy.torch", fake)
    callback, state, values = GpuPower(), SimpleNamespace(), {"train/loss": 1.0}
    world = SimpleNamespace(device=torch.device("cuda"), all_reduce_sum=lambda tensor: 2 * tensor)  # two equal ranks
    callback.run = SimpleNamespace(world=world)
    callback.on_start(state)
    callback.on_log(state, values)
    assert values == {"train/loss": 1.0, "perf/power_w": 600.0}
    callback.on_log(state, values)
    assert values["perf/power_w"] == 600.0


def test_energy_without_a_gpu_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="callback=energy: measures NVIDIA GPUs, but this run uses cpu - remove it"):
        start_run(tmp_path / "run", *QUICK, "trainer.max_steps=1", "callback=energy")
