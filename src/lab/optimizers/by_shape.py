"""One optimizer for matrices, another for the rest: Muon and AdamW in conf/optim/muon.yaml."""

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
    """Two optimizers as one: `matrices` moves the parameters of two dimensions, `rest` all others, and those in whose
    names a regular expression of rest_names is found: embeddings, the last layer.

    Each is a class with its arguments (a partial); lr and weight_decay hold for one that does not set its own.
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
                "optim.matrices: no trained parameter is a matrix, or optim.rest_names takes them all - use optim=adamw"
            )
        kinds = ((matrices, own[True]), (rest, own[False]))
        super().__init__(build(make, groups, lr=lr, weight_decay=weight_decay) for make, groups in kinds if groups)

    @property
    def takes_found_inf(self) -> bool:
        return all(map(takes_found_inf, self.parts))

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:  # type: ignore[override]
        for part in self.parts:
            part.found_inf = self.found_inf  # type: ignore[attr-defined]
        return self.move(closure)


def is_matrix(name: str, p: nn.Parameter, rest: Iterable[re.Pattern[str]]) -> bool:
    return p.dim() == 2 and not any(pattern.search(name) for pattern in rest)
