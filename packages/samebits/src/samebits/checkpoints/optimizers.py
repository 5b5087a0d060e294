"""Combine several optimizers into one."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from torch.optim import Optimizer


class Optimizers(dict[str, Optimizer]):
    """A dict {objective: optimizer} with one state dict.

    clip_norms: {objective: limit of its gradient norm, None: no limit}, of objectives with a limit of their own. With
    one optimizer it is the state dict of this optimizer; with several, all parameters are numbered consecutively.
    """

    clip_norms: Mapping[str, float | None] = MappingProxyType({})

    @property
    def param_groups(self) -> list[dict[str, Any]]:
        """Return the parameter groups of all optimizers."""
        return [group for optimizer in self.values() for group in optimizer.param_groups]

    def state_dict(self) -> dict[str, Any]:
        """Return the state dict of all optimizers."""
        if len(self) == 1:
            return next(iter(self.values())).state_dict()
        whole: dict[str, Any] = {"state": {}, "param_groups": []}
        first = 0
        for optimizer in self.values():
            one = optimizer.state_dict()
            whole["state"] |= {number + first: state for number, state in one["state"].items()}
            for group in one["param_groups"]:
                whole["param_groups"].append(group | {"params": [number + first for number in group["params"]]})
            first += sum(len(group["params"]) for group in one["param_groups"])
        return whole

    def load_state_dict(self, whole: dict[str, Any]) -> None:
        """Load a state dict from `state_dict`."""
        if len(self) == 1:
            next(iter(self.values())).load_state_dict(whole)
            return
        groups, first = list(whole["param_groups"]), 0
        for optimizer in self.values():
            own = [groups.pop(0) for _ in optimizer.param_groups]
            last = first + sum(len(group["params"]) for group in own)
            state = {number - first: held for number, held in whole["state"].items() if first <= number < last}
            moved = [group | {"params": [number - first for number in group["params"]]} for group in own]
            optimizer.load_state_dict({"state": state, "param_groups": moved})
            first = last
