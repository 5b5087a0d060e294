"""The language model's head and its loss: six ways from hidden states (B * T, D) to gradients, in time and memory.

    ./run python benchmarks/head.py --tokens 4096 --width 256 --vocabulary 50257 --precision bf16

transposed: cross_entropy of (B, V, T). flat: of (B * T, V), as lab.losses.next_token. bias: flat, the vocabulary
rounded up to 64 and masked by a bias, as lab.models.gpt. slice: the same, sliced. chunked: in pieces,
as with model.chunked_logits. torch: F.linear_cross_entropy, which torch has since 2.13.
Each round is a process, ways in turn; medians. Memory: growth of the peak RSS, on a GPU of max_memory_allocated.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

WAYS = ("transposed", "flat", "bias", "slice", "chunked", "torch")


def losses(way: str, vocabulary: int) -> Callable[..., Any]:
    import torch
    from torch import nn
    from torch.nn import functional as F

    from lab.losses.next_token import Unprojected, token_losses

    def call(hidden: Any, weight: Any, target: Any) -> Any:
        if way == "transposed":
            logits = F.linear(hidden, weight).float().transpose(1, 2)
            return F.cross_entropy(logits, target, reduction="none")
        bias = None
        if way == "bias":
            bias = torch.zeros(len(weight), device=weight.device)
            bias[vocabulary:] = -math.inf
        if way == "chunked":
            return token_losses(Unprojected(hidden, weight, bias), target.flatten())
        if way == "torch":
            kind = hidden.device.type
            half = kind == "cuda" and torch.is_autocast_enabled(kind)  # ten times slower on a CPU
            dtype = torch.get_autocast_dtype(kind) if half else torch.float32
            with torch.autocast(kind, enabled=False):
                return F.linear_cross_entropy(
                    hidden.flatten(0, 1).to(dtype), weight.to(dtype), target.flatten(), reduction="none",
                    options=nn.LinearCrossEntropyOptions(),
                )  # fmt: skip
        logits = F.linear(hidden, weight, bias)
        return token_losses(logits[..., :vocabulary] if way == "slice" else logits, target.flatten())

    return call


def one(options: argparse.Namespace, way: str) -> dict[str, float]:
    """Seconds of a forward and backward pass, and MB that it needs beside weights and hidden states."""
    import torch

    device = options.device
    rows = -(-options.vocabulary // 64) * 64 if way in ("bias", "slice") else options.vocabulary
    hidden = torch.randn(8, options.tokens // 8, options.width, device=device, requires_grad=True)
    weight = (torch.randn(rows, options.width, device=device) * 0.02).requires_grad_()
    target = torch.randint(0, options.vocabulary, hidden.shape[:2], device=device)
    call = losses(way, options.vocabulary)

    def step() -> None:
        hidden.grad = weight.grad = None
        with torch.autocast(device, torch.bfloat16, enabled=options.precision == "bf16"):
            loss = call(hidden, weight, target)
        loss.float().mean().backward()
        if device == "cuda":
            torch.cuda.synchronize()

    if device == "cpu":
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
        step()
        memory = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - before
    else:
        before = torch.cuda.memory_allocated() / 2**20
        step()
        memory = torch.cuda.max_memory_allocated() / 2**20 - before
    times = []
    for _ in range(options.steps):
        began = time.perf_counter()
        step()
        times.append(time.perf_counter() - began)
    return {"s": statistics.median(times), "mb": memory}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=int, default=4096)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--vocabulary", type=int, default=50257)
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    if options.way:
        print(json.dumps(one(options, options.way)))
        return
    found: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    for _ in range(options.rounds):
        for way, rounds in found.items():
            command = [sys.executable, __file__, *sys.argv[1:], "--way", way]
            rounds.append(json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    base = statistics.median(each["s"] for each in found["flat"])
    for way, rounds in found.items():
        seconds, memory = (statistics.median(each[key] for each in rounds) for key in ("s", "mb"))
        print(f"{way:<11} {seconds * 1e3:9.1f} ms  {seconds / base:5.2f} x flat  {memory:8.0f} MB")


if __name__ == "__main__":
    main()
