"""Train with one process on several GPUs (trainer=dp), with the loss computed on each of them.

nn.DataParallel gathers all outputs on the first GPU, which then needs more memory and time than the others. Here each
of N GPUs computes its losses, (B/N,), and only these are gathered. The first GPU still has the weights, the summed
gradients and the optimizer state; the weights are copied to the others at each step."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn

from samebits.errors import ConfigError
from samebits.host import count_gpus


def gpus() -> list[torch.device]:
    """Return the GPUs that trainer=dp trains on: all visible ones. Do not initialize CUDA.

    Raise ConfigError if there are fewer than 2.
    """
    count = count_gpus()
    if count < 2:
        raise ConfigError(f"trainer=dp: requires at least 2 GPUs, got {count} - use trainer=single")
    return [torch.device("cuda", index) for index in range(count)]


class Replicas(nn.Module):
    """Wrap a module batch -> ({name: (B,) losses}, anything) for trainer=dp."""

    def __init__(self, module: nn.Module, devices: Sequence[torch.device]) -> None:
        super().__init__()
        self.module, self.devices = module, devices
        self.pool = ThreadPoolExecutor(len(devices), "replica")  # one thread per GPU: the forwards run in parallel

    def forward(self, batch: dict[str, Any]) -> tuple[dict[str, Tensor], None]:
        """Return ({name: (B,) losses on the first device}, None). The outputs are not gathered."""
        shares = split(batch, self.devices)
        kind = self.devices[0].type
        autocast = {"dtype": torch.get_autocast_dtype(kind), "enabled": torch.is_autocast_enabled(kind)}

        def one(module: nn.Module, share: dict[str, Any], device: torch.device) -> dict[str, Tensor]:
            # grad mode and autocast are per thread: a new thread has torch's defaults, not the loop's settings
            here = torch.cuda.device(device) if kind == "cuda" else nullcontext()
            with here, torch.set_grad_enabled(grad), torch.autocast(kind, **autocast):  # type: ignore[arg-type]
                return module(share)[0]

        grad = torch.is_grad_enabled()
        used = self.devices[: len(shares)]
        # one copy per GPU; backward sums their gradients on the first GPU. CPU devices share one module
        copies = [self.module] * len(used) if kind == "cpu" else nn.parallel.replicate(self.module, used)  # type: ignore[arg-type]
        losses = list(self.pool.map(one, copies, shares, used))
        return {name: torch.cat([part[name].to(self.devices[0]) for part in losses]) for name in losses[0]}, None


def split(batch: dict[str, Any], devices: Sequence[torch.device]) -> list[dict[str, Any]]:
    """Split a batch into one share per device; sizes differ by at most 1.

    A batch with fewer samples than devices gives one share per sample.
    """
    size = len(next(iter(batch.values())))
    count = min(size, len(devices))
    ends = [size * (i + 1) // count for i in range(count)]
    return [
        {k: v[a:b].to(device, non_blocking=True) if isinstance(v, Tensor) else v[a:b] for k, v in batch.items()}
        for device, a, b in zip(devices, [0, *ends], ends)
    ]
