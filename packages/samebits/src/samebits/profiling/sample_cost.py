"""Count the work of a training sample, tokens and FLOP, for the speeds that are logged."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

# Dense peak in TFLOP/s from NVIDIA's data sheets (half of the values that are given with sparsity). Keys are parts of
# torch.cuda.get_device_name; the first match is used. fp32: without tensor cores, like precision=fp32.
PEAKS: dict[str, dict[str, float]] = {
    "B200": {"bf16": 2250, "fp16": 2250, "tf32": 1125, "fp32": 75},
    "H200 NVL": {"bf16": 835, "fp16": 835, "tf32": 417, "fp32": 60},
    "H200": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "GH200": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "H100 NVL": {"bf16": 835, "fp16": 835, "tf32": 417, "fp32": 60},
    "H100 PCIe": {"bf16": 756, "fp16": 756, "tf32": 378, "fp32": 51},
    "H100": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "H800": {"bf16": 989, "fp16": 989, "tf32": 494, "fp32": 67},
    "A100": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    "A800": {"bf16": 312, "fp16": 312, "tf32": 156, "fp32": 19.5},
    "L40S": {"bf16": 362, "fp16": 362, "tf32": 183, "fp32": 91.6},
    "A10": {"bf16": 125, "fp16": 125, "tf32": 62.5, "fp32": 31.2},
    "L4": {"bf16": 121, "fp16": 121, "tf32": 60, "fp32": 30.3},
    "V100": {"fp16": 125, "fp32": 15.7},
    "T4": {"fp16": 65, "fp32": 8.1},
}

Loss = Callable[[list[nn.Module], dict[str, Any]], Tensor]


@dataclass(frozen=True)
class SampleCost:
    """The work of one training sample: tokens, and for each objective the FLOP of one forward and backward pass; None:
    unknown. peak_flop_per_s: of all devices of the run together."""

    tokens: int | None = None
    flop: Mapping[str, float] | None = None
    peak_flop_per_s: float | None = None

    def speeds(self, samples_per_s: float, passes_per_s: Mapping[str, float]) -> dict[str, float]:
        """Return the speeds to log, perf/...; those that are unknown are left out. passes_per_s: {objective: samples
        per second through forward and backward}, which a method may run twice in a step, or not in each step."""
        found = {}
        if self.tokens:
            found["perf/tokens_per_s"] = self.tokens * samples_per_s
        if self.flop:
            flop_per_s = sum(flop * passes_per_s.get(name, 0.0) for name, flop in self.flop.items())
            found["perf/tflop_per_s"] = flop_per_s / 1e12
            if self.peak_flop_per_s:
                found["perf/mfu"] = flop_per_s / self.peak_flop_per_s
        return found


def peak_tflops(device_name: str, precision: str) -> float | None:
    """Return the peak TFLOP/s of one device; None if it is unknown."""
    words = device_name.replace("-", " ")
    for name, by_precision in PEAKS.items():
        if f" {name} " in f" {words} ":
            return by_precision.get(precision.removesuffix("-weights"))
    return None


def count_flop(modules: list[nn.Module], batch: dict[str, Any], loss: Loss) -> float:
    """Count the FLOP of forward and backward of a micro-batch with torch's counter on the device `meta`. Nothing is
    computed and the model is not changed. Recomputation (activation checkpointing) is not counted.

    loss: is called with (a copy of `modules`, a batch on meta) and returns the sum to minimize.
    """
    from torch.utils.flop_counter import FlopCounterMode

    own = on_meta(modules)
    given = {k: v.to("meta") if isinstance(v, Tensor) else v for k, v in batch.items()}
    with observed(FlopCounterMode(display=False)) as counter:
        loss(own, given).backward()
    return float(counter.get_total_flops())


@contextmanager
def observed(mode: Any, meta: bool = True) -> Iterator[Any]:
    """Yield `mode`, which gets all operations within this block. meta: create tensors on the device `meta`.

    Use it before training: dynamo never compiles code that it has seen under a mode, so its caches are reset.
    """
    try:
        with ExitStack() as stack:
            for context in (torch.device("meta"), autocast_on_meta()) if meta else ():
                stack.enter_context(context)
            stack.enter_context(mode)
            with torch.enable_grad():
                yield mode
    finally:
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()


@contextmanager
def autocast_on_meta() -> Iterator[None]:
    """Allow torch.autocast(x.device.type, enabled=False), which losses use, on meta within this block."""
    module: Any = torch
    real = module.autocast

    def autocast(device_type: str, *args: Any, **more: Any) -> Any:
        return nullcontext() if device_type == "meta" else real(device_type, *args, **more)

    module.autocast = autocast
    try:
        yield
    finally:
        module.autocast = real


def on_meta(modules: list[nn.Module]) -> list[nn.Module]:
    """Return a copy that needs no memory: parameters and buffers are on the device `meta`."""
    memo: dict[int, Any] = {}
    for module in modules:
        for p in module.parameters():
            memo[id(p)] = nn.Parameter(torch.empty_like(p, device="meta"), requires_grad=p.requires_grad)
        for buffer in module.buffers():
            memo[id(buffer)] = torch.empty_like(buffer, device="meta")
    return copy.deepcopy(modules, memo)
