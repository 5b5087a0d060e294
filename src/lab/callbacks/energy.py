"""Log the power of a run's GPUs, from which a report computes the energy of a sweep."""

from __future__ import annotations

import time
from typing import Any

import torch

from lab.callbacks.base import Callback
from samebits.errors import ConfigError
from samebits.host import EnergyCounter


class GpuPower(Callback):
    """Log perf/power_w: the mean power since the last log in watts, of the GPUs of all ranks. It is the difference of
    the driver's energy counter (NVIDIA, Volta or later), which includes other processes on the same GPU."""

    def on_start(self, state: Any) -> None:
        """Read the counter. Raise ConfigError if the device has none."""
        device = self.run.world.device
        if device.type != "cuda":
            raise ConfigError(f"callback=energy: measures NVIDIA GPUs, but this run uses {device.type} - remove it")
        try:
            self.counter = EnergyCounter(str(torch.cuda.get_device_properties(device).uuid))
        except OSError as error:
            raise ConfigError(f"callback=energy: cannot read the energy of {device}: {error} - remove it") from error
        self.last = time.monotonic(), self.counter.joules()

    def on_log(self, state: Any, values: dict[str, float]) -> None:
        """Add the power to the logged values."""
        now, (then, before) = (time.monotonic(), self.counter.joules()), self.last
        watts = torch.tensor([(now[1] - before) / (now[0] - then)], device=self.run.world.device)
        values["perf/power_w"] = self.run.world.all_reduce_sum(watts).item()
        self.last = now
