"""Find the first module whose output is not finite, or the first parameter whose gradient is not finite."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from lab.callbacks.base import Callback
from samebits.errors import RunFailed
from samebits.shards import local_parts


class NonFiniteWatch(Callback):
    """Check the output of every leaf module and the gradient of every parameter. Raise RunFailed if one is not finite.

    Each check waits for the device, so use it only for debugging.
    """

    def on_start(self, state: Any) -> None:
        """Register the hooks that check outputs and gradients."""
        for name, module in state.model.named_modules():
            if name and not list(module.children()):
                module.register_forward_hook(self._hook(name))
        if state.scaler is None:  # with fp16, infinite gradients are normal: they lower the loss scale until it fits
            for name, p in state.model.named_parameters():
                if p.requires_grad:
                    p.register_post_accumulate_grad_hook(partial(self._of_gradient, name))

    @staticmethod
    def _of_gradient(name: str, p: Tensor) -> None:
        for part in local_parts([p.grad] if p.grad is not None else []):
            if not torch.isfinite(part).all():
                raise RunFailed(
                    f"the gradient of {name!r} is not finite, though the outputs of all modules are; the operation is "
                    "in a module's forward or in the loss (a root or a logarithm of 0, a division): debug=anomaly "
                    "names it"
                )

    @staticmethod
    def _hook(name: str) -> Any:
        def check(module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
            if not isinstance(output, Tensor) or torch.isfinite(output).all():
                return
            fed = all(torch.isfinite(i).all() for i in inputs if isinstance(i, Tensor))
            weights = [n for n, p in module.named_parameters() if not torch.isfinite(p).all()]
            cause = "its input and weights are" if fed else "its input is not"
            cause = f"its {', '.join(weights)} is not" if weights else cause
            raise RunFailed(f"the output of module {name!r} ({type(module).__name__}) is not finite; {cause} finite")

        return check
