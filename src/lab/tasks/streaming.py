"""Truncated backpropagation through time: a model's state goes on from row to row of a long sequence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from lab.tasks.base import Batch, Metric
from lab.tasks.supervised import Supervised
from samebits.errors import ConfigError
from samebits.schema import Count
from samebits.world import World, gather_rows

States = Mapping[str, Tensor]


class LaneStates(nn.Module):
    """The state of each lane, detached, in buffers: so it is saved, and dealt anew where the ranks' number changes.

    initial: {name: state of one lane where it begins, (*)}. Each rank fills the rows of its own lanes; `gather` gives
    all of them to all. Evaluations have states of their own, which begin anew with each.
    """

    def __init__(self, initial: States, lanes: int, eval_lanes: int) -> None:
        super().__init__()
        self.lanes, self.eval_lanes = lanes, eval_lanes
        self.evaluated: dict[str, Tensor] = {}
        for name, value in initial.items():
            # [lane, position % 2] is what position begins with: a step writes beside what it reads, so that a second
            # pass over its batches (SAM, LBFGS) begins with the same
            self.register_buffer(name, value.detach().expand(lanes, 2, *value.shape).clone())

    def train(self, mode: bool = True) -> LaneStates:
        held = dict(self.named_buffers())
        self.evaluated = {} if mode else {k: v.new_zeros(self.eval_lanes + 1, *v.shape[1:]) for k, v in held.items()}
        return super().train(mode)

    def read(self, batch: Batch, initial: States) -> dict[str, Tensor]:
        """{name: (B, *)} that the rows of the batch begin with."""
        lane, position, held = batch["lane"], batch["position"], self._held()
        states = {}
        for name, value in initial.items():
            begins = (position == 0).view(-1, *[1] * value.dim())
            carried = held[name][lane, position % 2]
            states[name] = torch.where(begins, value.to(carried.device), carried.to(value.dtype))
        return states

    @torch.no_grad()
    def write(self, batch: Batch, states: States) -> None:
        """states: {name: (B, *)} behind the rows of the batch. One that is not finite becomes 0, or its lane would be
        lost to all later steps."""
        held = self._held()
        if states.keys() != held.keys():
            raise ConfigError(f"model: its state has {sorted(states)}, its initial_state {sorted(held)}")
        for name, value in states.items():
            if value.shape[1:] != held[name].shape[2:]:
                shapes = f"{tuple(value.shape)}, that of its initial_state {tuple(held[name].shape[2:])}"
                raise ConfigError(f"model: its state {name!r} has the shape {shapes}: it must be (B, *initial)")
            finite = value.isfinite().view(len(value), -1).all(1).view(-1, *[1] * (value.dim() - 1))
            kept = torch.where(finite, value, 0).to(held[name].dtype)
            held[name][batch["lane"], 1 - batch["position"] % 2] = kept

    def gather(self, world: World) -> None:
        """All ranks get the states of all lanes."""
        share = self.lanes // world.size
        for held in self.buffers():
            held.copy_(gather_rows(held[world.rank * share : (world.rank + 1) * share])[0])

    def _held(self) -> dict[str, Tensor]:
        return dict(self.named_buffers()) if self.training else self.evaluated


class Streaming(Supervised):
    """model(x, state) -> (output, state behind it), {name: (B, *)}; model.initial_state() -> {name: (*)}, of one lane.

    Each row begins with its lane's state behind the row before, through which no gradient flows. lanes: the global
    batch size. eval_lanes: parallel lanes of an evaluation, each of which begins anew: 1 reads the split as one
    sequence, and more are faster.
    """

    stateful = True
    buffers_kept_on_skip = ("states",)  # the next rows go on from those of the skipped step

    def __init__(
        self, criterion: Callable[[Any, Batch], Any], metrics: Mapping[str, Metric], lanes: Count, eval_lanes: Count
    ) -> None:
        super().__init__(criterion, metrics)
        self.lanes, self.eval_lanes = lanes, eval_lanes

    def setup(self, model: nn.Module) -> None:
        if not hasattr(model, "initial_state"):
            raise ConfigError(
                f"model: {type(model).__name__} has no initial_state(), with which a lane begins - use model=token_gru"
            )
        self.states = LaneStates(model.initial_state(), self.lanes, self.eval_lanes)  # type: ignore[operator]

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        output, states = model(batch["x"], self.states.read(batch, model.initial_state()))  # type: ignore[operator]
        self.states.write(batch, states)
        return output

    def sync_buffers(self) -> None:
        self.states.gather(self.run.world)
