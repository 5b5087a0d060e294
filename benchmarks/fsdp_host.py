"""Host time of a step's work on the weights with trainer=fsdp: clipping, fused AdamW and EMA.

    ./run python benchmarks/fsdp_host.py [--rounds 20] [--layers 12]

One process that takes itself for rank 0 of 8 (torch's fake process group: nothing is sent). `shards` is what lab.loop
does, `dtensors` the same calls on DTensors, `plain` on ordinary tensors of the shards' sizes. Interleaved; medians.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.testing._internal.distributed.fake_pg import FakeStore

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
from lab.models.gpt import GPT
from samebits.parallel import FsdpConfig, shard
from samebits.shards import global_norm, local_parts, on_shards
from samebits.torch_private import lean_step
from samebits.world import World

RANKS = 8


def sharded(layers: int) -> nn.Module:
    model = GPT([16], 64, width=64, heads=4, layers=layers, dropout=0.0)
    shard(model, FsdpConfig(), "fp32", World(0, RANKS, 0, torch.device("cpu")), compiled=False)
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return model


def clip_dtensors(gradients: list[Any]) -> None:
    norm = torch.linalg.vector_norm(torch.stack(torch._foreach_norm(gradients)))
    norm = norm.full_tensor() if hasattr(norm, "full_tensor") else norm
    torch._foreach_mul_(gradients, torch.clamp(1.0 / (norm + 1e-6), max=1.0))


def clip_shards(gradients: list[Any]) -> None:
    torch._foreach_mul_(local_parts(gradients), torch.clamp(1.0 / (global_norm(gradients) + 1e-6), max=1.0))


def parts(weights: list[Any], ours: bool) -> dict[str, Callable[[], Any]]:
    optimizer = torch.optim.AdamW(weights, lr=1e-3, fused=True)
    means = [p.detach().clone() for p in weights]
    gradients = [p.grad for p in weights]

    def step() -> None:
        with on_shards(optimizer):
            lean_step(optimizer)

    def average() -> None:
        both = (local_parts(means), local_parts(weights)) if ours else (means, weights)
        torch._foreach_lerp_(*both, 0.1)

    clip = clip_shards if ours else clip_dtensors
    return {
        "clip": lambda: clip(gradients),
        "optimizer": step if ours else lambda: lean_step(optimizer),
        "ema": average,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--layers", type=int, default=12)
    args = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=RANKS)
    models = [list(sharded(args.layers).parameters()) for _ in range(2)]
    plain = [nn.Parameter(p.to_local().clone()) for p in models[0]]  # type: ignore[attr-defined]
    for p in plain:
        p.grad = torch.randn_like(p)
    with torch.no_grad():
        ways = {"shards": parts(models[0], True), "dtensors": parts(models[1], False), "plain": parts(plain, False)}
        times: dict[tuple[str, str], list[float]] = {}
        for _ in range(args.rounds + 1):  # the first round fills caches
            for way, calls in ways.items():
                for name, call in calls.items():
                    began = time.perf_counter()
                    call()
                    times.setdefault((way, name), []).append(time.perf_counter() - began)
    print(f"torch {torch.__version__}, {len(plain)} parameters, rank 0 of {RANKS}; ms a step, medians of {args.rounds}")
    for way in ways:
        medians = {name: 1e3 * statistics.median(times[way, name][1:]) for name in ("clip", "optimizer", "ema")}
        row = "  ".join(f"{name} {value:6.2f}" for name, value in medians.items())
        print(f"{way:9} {row}  together {sum(medians.values()):6.2f}")
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
