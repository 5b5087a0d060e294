"""Random number generators: seed them all, save them all."""

from __future__ import annotations

import os
import random
from typing import Any

import numpy as np
import torch


def seed_everything(seed: int, stream: int = 0) -> None:
    """Seed Python, numpy and torch on all devices. stream: differs per rank, so that ranks draw different numbers."""
    # SeedSequence keeps (seed 0, stream 1) and (seed 1, stream 0) apart, which seed + stream would not
    words = np.random.SeedSequence([seed, stream]).generate_state(4)
    random.seed(int(words[0]))
    np.random.seed(words[1])
    torch.manual_seed((int(words[2]) << 32) + int(words[3]))


def make_deterministic() -> None:
    """Bitwise reproducible results; an operation without a deterministic implementation raises."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # read when cuBLAS starts
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.benchmark = False


def rng_state(device: torch.device) -> dict[str, Any]:
    """The generators' states as plain containers and tensors, loadable with weights_only=True."""
    kind, keys, position, has_gauss, gauss = np.random.get_state()
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (kind, torch.from_numpy(np.asarray(keys).astype(np.int64)), position, has_gauss, gauss),
        "torch": torch.get_rng_state(),
    }
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    if device.type == "mps":
        state["mps"] = torch.mps.get_rng_state()
    return state


def set_rng_state(state: dict[str, Any], device: torch.device) -> None:
    version, keys, gauss_next = state["python"]
    random.setstate((version, tuple(keys), gauss_next))
    kind, words, position, has_gauss, gauss = state["numpy"]
    np.random.set_state((kind, words.numpy().astype(np.uint32), position, has_gauss, gauss))
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)
    if device.type == "mps" and "mps" in state:
        torch.mps.set_rng_state(state["mps"])
