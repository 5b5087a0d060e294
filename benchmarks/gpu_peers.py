"""Bare loops for benchmarks/gpu.py, as written by hand. ./run python benchmarks/gpu_peers.py cifar '{"steps": 100}'

Each prints one line of JSON: seconds a step of each block of `log_every` steps (the first is left out: it allocates and
compiles), samples of a step, the peak of GPU memory in bytes; with "launches": true also kernels a step (on a CPU,
operations), as the stages count them in a run of ours.
"""

from __future__ import annotations

import json
import math
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import h5py
import torch
from torch import Tensor, nn
from torch.nn import functional as F

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
import _python  # noqa: F401 - it finds the libraries


def timed(step: Callable[[int], Tensor], given: dict[str, Any], samples: int) -> dict[str, Any]:
    device, every = torch.device(given["device"]), given["log_every"]
    blocks = []
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    for block in range(given["steps"] // every):
        began = time.perf_counter()
        for i in range(every):
            loss = step(block * every + i)
        loss.item()  # waits for the device
        blocks.append((time.perf_counter() - began) / every)
    peak = torch.cuda.max_memory_allocated() if device.type == "cuda" else 0
    found = {"step_s": blocks[1:], "samples": samples, "allocated": peak, "loss": loss.item()}
    return {**found, "launches": launches_of(step, device)} if given.get("launches") else found


def launches_of(step: Callable[[int], Tensor], device: torch.device, steps: int = 10) -> float:
    """Average of some steps after all others, so that none allocates."""
    with torch.profiler.profile() as profile:
        for number in range(1, steps + 1):
            step(number)
        if device.type == "cuda":
            torch.cuda.synchronize()
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "trace.json")
        profile.export_chrome_trace(str(file))
        events = json.loads(file.read_text())["traceEvents"]
    kind = "kernel" if device.type == "cuda" else "cpu_op"
    return sum(event.get("cat") == kind for event in events) / steps


def updated(net: nn.Module, optimizer: torch.optim.Optimizer, loss: Tensor) -> Tensor:
    """Clip, step, forget the gradients."""
    nn.utils.clip_grad_norm_(net.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad()
    return loss.detach()


def precision_of(given: dict[str, Any]) -> Any:
    torch.set_float32_matmul_precision("highest" if given["precision"] == "fp32" else "high")
    torch.backends.cudnn.allow_tf32 = given["precision"] != "fp32"
    torch.backends.cudnn.benchmark = True
    if given["precision"] == "fp32":
        return nullcontext
    return lambda: torch.autocast(given["device"], torch.bfloat16)


def cifar(given: dict[str, Any]) -> dict[str, Any]:
    """A ResNet on images that lie on the device, crops and flips once an epoch, SGD, clipping."""
    from lab.models.resnet import ResNet

    device, size = given["device"], given["batch"]
    with h5py.File(given["path"]) as file:
        x = torch.from_numpy(file["train/image"][:]).to(device)
        y = torch.from_numpy(file["train/label"][:]).long().to(device)
    torch.manual_seed(0)
    net: nn.Module = ResNet([3, 32, 32], 10, given["width"], [2, 2, 2], 0.0).to(device)
    if given["channels_last"]:
        net = net.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    forward = torch.compile(net, mode=given["compile"]) if given["compile"] else net
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=5e-4, fused=True)
    autocast = precision_of(given)
    mean = torch.tensor([0.491, 0.482, 0.447], device=device).view(1, 3, 1, 1)
    std = torch.tensor([0.247, 0.243, 0.262], device=device).view(1, 3, 1, 1)
    half = torch.float32 if given["precision"] == "fp32" else torch.bfloat16
    padded = F.pad(((x.float() / 255 - mean) / std).to(half), (4, 4, 4, 4))
    count, offsets = len(x), torch.arange(32, device=device)
    layout = torch.channels_last if given["channels_last"] else torch.contiguous_format

    def changed(top: Tensor, left: Tensor, mirrored: Tensor) -> Tensor:
        images = padded[
            torch.arange(count, device=device).view(-1, 1, 1, 1), torch.arange(3, device=device).view(1, 3, 1, 1),
            (top + offsets).view(count, 1, 32, 1), (left + offsets).view(count, 1, 1, 32),
        ]  # fmt: skip
        return torch.where(mirrored, images.flip(3), images).contiguous(memory_format=layout)

    change = torch.compile(changed) if given["compile"] else changed

    def epoch() -> tuple[Tensor, Tensor]:
        """The whole set, cropped and flipped, and an order: as airbench has it, a step only indexes."""
        top, left = torch.randint(9, (2, count, 1), device=device)
        return change(top, left, torch.rand(count, 1, 1, 1, device=device) < 0.5), torch.randperm(count, device=device)

    images_of_epoch, order = epoch()

    def step(number: int) -> Tensor:
        nonlocal images_of_epoch, order
        begin = number * size % (count - size + 1)
        if begin < size and number:
            images_of_epoch, order = epoch()
        rows = order[begin : begin + size]
        images = images_of_epoch[rows]
        with autocast():
            loss = F.cross_entropy(forward(images), y[rows])
        loss.backward()
        return updated(net, optimizer, loss)

    return timed(step, given, size)


def mlp(given: dict[str, Any]) -> dict[str, Any]:
    """The default network, on rows that lie on the device."""
    device, size = given["device"], 64
    torch.manual_seed(0)
    x, y = torch.rand(1297, 64, device=device), torch.randint(10, (1297,), device=device)
    layers = [nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 256), nn.ReLU(), nn.Linear(256, 10)]
    net = nn.Sequential(*layers).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3, fused=True)
    autocast = precision_of(given)
    order = torch.randperm(len(x), device=device)

    def step(number: int) -> Tensor:
        nonlocal order
        begin = number * size % (len(x) - size + 1)
        if begin < size:
            order = torch.randperm(len(x), device=device)
        rows = order[begin : begin + size]
        with autocast():
            loss = F.cross_entropy(net(x[rows]), y[rows])
        loss.backward()
        return updated(net, optimizer, loss)

    return timed(step, given, size)


class NanoBlock(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width, bias=False), nn.LayerNorm(width, bias=False)
        self.c_attn = nn.Linear(width, 3 * width, bias=False)
        self.c_proj = nn.Linear(width, width, bias=False)
        self.c_fc = nn.Linear(width, 4 * width, bias=False)
        self.c_out = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        size, length, width = x.shape
        q, k, v = self.c_attn(self.ln_1(x)).split(width, dim=2)
        q, k, v = (t.view(size, length, self.heads, width // self.heads).transpose(1, 2) for t in (q, k, v))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.c_proj(mixed.transpose(1, 2).contiguous().view(size, length, width))
        return x + self.c_out(F.gelu(self.c_fc(self.ln_2(x))))


class Nano(nn.Module):
    """GPT-2 as nanoGPT trains it: pre-norm, tied embeddings, no biases, logits and loss in the model."""

    def __init__(self, length: int, vocabulary: int, width: int, heads: int, layers: int, wide_loss: bool) -> None:
        super().__init__()
        self.wide_loss = wide_loss  # logits in float32: nanoGPT's are bf16 in its loss, and each log-probability is
        self.wte, self.wpe = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.h = nn.ModuleList(NanoBlock(width, heads) for _ in range(layers))
        self.ln_f = nn.LayerNorm(width, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                last = name.endswith(("c_proj.weight", "c_out.weight"))
                nn.init.normal_(p, std=0.02 / math.sqrt(2 * layers) if last else 0.02)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.wte(tokens) + self.wpe(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.h:
            x = block(x)
        logits = F.linear(self.ln_f(x), self.wte.weight)
        logits = logits.float() if self.wide_loss else logits
        return F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))


def gpt(given: dict[str, Any]) -> dict[str, Any]:
    """nanoGPT's loop: windows anywhere in the stream, gradients accumulated, clipping, AdamW in two groups."""
    device, length, size, micro = given["device"], given["window"], given["batch"], given["micro_batch"]
    with h5py.File(given["path"]) as file:
        tokens = torch.from_numpy(file["train/tokens"][:].astype("int64"))
    torch.manual_seed(0)
    size_of = [given[name] for name in ("vocabulary", "width", "heads", "layers", "wide_loss")]
    net = Nano(length, *size_of).to(device)
    forward = torch.compile(net, mode=given["compile"]) if given["compile"] else net
    matrices, others = ([p for p in net.parameters() if (p.dim() > 1) == kind] for kind in (True, False))
    groups = [{"params": matrices, "weight_decay": 0.01}, {"params": others, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=1e-3, fused=True)
    autocast = precision_of(given)

    def batch() -> tuple[Tensor, Tensor]:
        begins = torch.randint(len(tokens) - length - 1, (micro,)).tolist()
        rows = torch.stack([tokens[i : i + length + 1] for i in begins])
        if device != "cpu":
            rows = rows.pin_memory().to(device, non_blocking=True)
        return rows[:, :-1], rows[:, 1:].contiguous()

    x, y = batch()

    def step(number: int) -> Tensor:
        nonlocal x, y
        for _ in range(size // micro):
            with autocast():
                loss = forward(x, y) / (size // micro)
            x, y = batch()  # the next one, while the device computes
            loss.backward()
        return updated(net, optimizer, loss)

    return timed(step, given, size)


def save(given: dict[str, Any]) -> dict[str, Any]:
    """Seconds that torch.save takes for weights and AdamW's state of `parameters` values."""
    device = given["device"]
    held = [torch.zeros(given["parameters"] // 12, device=device) for _ in range(36)]
    took = []
    with tempfile.TemporaryDirectory(dir=given["folder"]) as folder:
        for number in range(given["times"]):
            if device == "cuda":
                torch.cuda.synchronize()
            began = time.perf_counter()
            torch.save(held, Path(folder, str(number)))
            took.append(time.perf_counter() - began)
    return {"save_s": took}


if __name__ == "__main__":
    print(json.dumps({"cifar": cifar, "mlp": mlp, "gpt": gpt, "save": save}[sys.argv[1]](json.loads(sys.argv[2]))))
