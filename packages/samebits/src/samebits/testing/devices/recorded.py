"""Test hardware.cuda_graph without a GPU: record a step and replay it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx


class RecordedGraph:
    """A replacement for a CUDA graph: it records the operations of one step and replays them on the same memory. As
    with a graph, decisions of Python code in the recorded step hold for all later steps."""

    made = 0

    def __init__(self, step: Callable[..., Any], inputs: Sequence[Any]) -> None:
        type(self).made += 1
        self.inputs, self.names = inputs, list[str]()
        self.first: dict[str, torch.Tensor] | None = None

        def whole(batches: Any) -> torch.Tensor:
            self.first = step(batches)
            self.names = list(self.first)
            return torch.stack([value.float() for value in self.first.values()])

        self.graph = make_fx(whole)(inputs)

    @torch.no_grad()
    def __call__(self) -> dict[str, torch.Tensor]:
        """Replay the step, and return its values."""
        first, self.first = self.first, None  # recording runs the step, unlike capturing a graph
        return first or dict(zip(self.names, self.graph(self.inputs).clone().unbind()))

    @classmethod
    def replace_graphs(cls, patch: pytest.MonkeyPatch) -> None:
        """Make `samebits.compiling.Captured` record steps instead; `made` counts the graphs from now on."""
        patch.setattr("samebits.compiling.captured.Graph", cls)
        patch.setattr(cls, "made", 0)
