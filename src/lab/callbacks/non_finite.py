"""Name the first module whose output is not finite."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from engine.errors import RunFailed
from lab.callbacks.base import Callback


class NonFiniteWatch(Callback):
    """Checks the output of every leaf module; waits for the device at each, so it is for debugging only."""

    def on_start(self, state: Any) -> None:
        for name, module in state.model.named_modules():
            if name and not list(module.children()):
                module.register_forward_hook(self._hook(name))

    @staticmethod
    def _hook(name: str) -> Any:
        def check(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or torch.isfinite(output).all():
                return
            fed = all(torch.isfinite(i).all() for i in inputs if isinstance(i, Tensor))
            weights = [n for n, p in module.named_parameters() if not torch.isfinite(p).all()]
            cause = (
                f"its {', '.join(weights)} is not"
                if weights
                else "its input and weights are"
                if fed
                else "its input is not"
            )
            raise RunFailed(f"the output of module {name!r} ({type(module).__name__}) is not finite; {cause} finite")

        return check
