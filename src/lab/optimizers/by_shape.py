"""Use one optimizer for matrices and another one for the other parameters, e.g. Muon and AdamW in
conf/optim/muon.yaml."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from lab.optimizers.base import Groups, Wrapper, build, groups_of
from samebits.errors import ConfigError
from samebits.schema import NotNegative, regex
from samebits.steps import takes_found_inf


class ByShape(Wrapper):
    """Combine two optimizers: `matrices` updates parameters of two dimensions, `rest` all others.

    matrices, rest: classes with their arguments (partials). lr, weight_decay: used unless a partial sets its own.
    rest_names: regular expressions (re.search); matrices with a matching name are updated by `rest`: embeddings, the
    last layer. Raise ConfigError if no matrix is left.
    """

    uses_rng = False
    found_inf: Tensor | None = None

    def __init__(
        self,
        params: Iterable[Any],
        matrices: Callable[..., Optimizer],
        rest: Callable[..., Optimizer],
        rest_names: Sequence[str],
        lr: NotNegative,
        weight_decay: NotNegative,
    ) -> None:
        patterns = [regex(text, "optim.rest_names") for text in rest_names]
        own: dict[bool, Groups] = {True: [], False: []}
        for group in groups_of(params):
            members = group.pop("params")
            names = group.pop("param_names", [""] * len(members))
            for kind, groups in own.items():
                taken = [p for name, p in zip(names, members) if kind == is_matrix(name, p, patterns)]
                groups += [{**group, "params": taken}] if taken else []
        if not own[True]:
            raise ConfigError(
                "optim.matrices: no trained parameter is a matrix, or optim.rest_names matches all - use optim=adamw"
            )
        kinds = ((matrices, own[True]), (rest, own[False]))
        super().__init__(build(make, groups, lr=lr, weight_decay=weight_decay) for make, groups in kinds if groups)

    @property
    def takes_found_inf(self) -> bool:
        """True if both parts declare it."""
        return all(map(takes_found_inf, self.parts))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        """Update the weights with both parts."""
        for part in self.parts:
            part.found_inf = self.found_inf  # type: ignore[attr-defined]
        return self.move(closure)


def is_matrix(name: str, p: nn.Parameter, rest: Iterable[re.Pattern[str]]) -> bool:
    """Return True if the parameter has two dimensions and its name matches no pattern of `rest`."""
    return p.dim() == 2 and not any(pattern.search(name) for pattern in rest)
