"""hardware.cuda_graph without a GPU: what a step does is recorded, and done again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx


class RecordedGraph:
    """In the place of a CUDA graph: the operations of a step, recorded while it runs once, and run again on the same
    memory. As in a graph, what Python decided meanwhile is decided for all steps after it."""

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
        first, self.first = self.first, None  # recording has run the step, which capturing does not
        return first or dict(zip(self.names, self.graph(self.inputs).clone().unbind()))

    @classmethod
    def replace_graphs(cls, patch: pytest.MonkeyPatch) -> None:
        """Make `samebits.compiling.Captured` record steps instead; `made` counts the graphs from here on."""
        patch.setattr("samebits.compiling.captured.Graph", cls)
        patch.setattr(cls, "made", 0)
