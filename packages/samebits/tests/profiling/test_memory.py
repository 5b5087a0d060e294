"""What is said and recorded of memory."""

from __future__ import annotations

import inspect
from dataclasses import replace
from typing import Any

import pytest
import torch

from samebits.device import Hardware
from samebits.device.threads import Threads
from samebits.profiling import memory, trace


def test_replicas_are_advised_of_a_micro_batch_on_one_gpu() -> None:
    four = replace(machine(), micro_batch_sizes=[128], devices=4)  # trainer=dp: 32 samples on each
    assert memory.advice(four, False).startswith("a micro-batch has 32 samples - hardware.micro_batch_size=16 computes")
    assert "auto finds" not in memory.advice(four, False)


def machine() -> Hardware:
    return Hardware("cpu", 1, "fp32", Threads(1, 1, "given"), [8], 8)


def test_the_memory_is_recorded_with_stacks_of_python_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of C++ take minutes to write where memory is full."""
    known = inspect.signature(torch.cuda.memory._record_memory_history_impl)  # type: ignore[attr-defined]
    asked: list[Any] = []
    monkeypatch.setattr(
        torch.cuda.memory, "_record_memory_history", lambda *args, **more: asked.append(known.bind(*args, **more))
    )
    trace.record_memory(True, 7)
    trace.record_memory(True, None)
    assert asked[0].arguments == {"stacks": "python", "max_entries": 7}
    assert asked[1].arguments == {"enabled": None}
