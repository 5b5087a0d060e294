"""Truncated backpropagation through time (Williams & Peng 1990): the state is carried from row to row of a long
sequence."""

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


def check_state(state: Any, contract: str) -> None:
    """Raise ConfigError with the contract of the model if a state is not {name: tensor}."""
    kinds = {k: type(v).__name__ for k, v in state.items()} if isinstance(state, Mapping) else type(state).__name__
    if isinstance(kinds, str) or not all(isinstance(value, Tensor) for value in state.values()):
        raise ConfigError(f"model: {contract}, but its state is {kinds}")


class LaneStates(nn.Module):
    """Hold the detached state of each lane in buffers. They are saved in checkpoints, and redistributed if a resumed
    run has another number of ranks.

    initial: {name: initial state of one lane, (*)}. Each rank writes the rows of its own lanes; `gather` copies all
    rows to all ranks. Evaluations use separate states, which are reset for each evaluation.
    """

    def __init__(self, initial: States, lanes: int, eval_lanes: int) -> None:
        super().__init__()
        self.lanes, self.eval_lanes = lanes, eval_lanes
        self.evaluated: dict[str, Tensor] = {}
        check_state(initial, "initial_state() must return {name: tensor (*)}")
        for name, value in initial.items():
            # index [lane, position % 2]: the state at the start of `position`. Two states are kept so that a step does
            # not overwrite the one it has read: a second pass over its batches (SAM, LBFGS) must start from it again
            self.register_buffer(name, value.detach().expand(lanes, 2, *value.shape).clone())

    def train(self, mode: bool = True) -> LaneStates:
        """Set the mode; eval mode resets the states of evaluations."""
        table = dict(self.named_buffers())
        self.evaluated = {} if mode else {k: v.new_zeros(self.eval_lanes + 1, *v.shape[1:]) for k, v in table.items()}
        return super().train(mode)

    def read(self, batch: Batch, initial: States) -> dict[str, Tensor]:
        """Return the states at the start of the batch's rows, {name: (B, *)}."""
        lane, position, table = batch["lane"], batch["position"], self._present()
        states = {}
        for name, value in initial.items():
            begins = (position == 0).view(-1, *[1] * value.dim())
            carried = table[name][lane, position % 2]
            states[name] = torch.where(begins, value.to(carried.device), carried.to(value.dtype))
        return states

    @torch.no_grad()
    def write(self, batch: Batch, states: States) -> None:
        """Store the states after the batch's rows, {name: (B, *)}. A state that is not finite is replaced by 0, because
        otherwise all later steps of its lane would be NaN."""
        table = self._present()
        check_state(states, "must return (output, {name: tensor (B, *)})")
        if states.keys() != table.keys():
            raise ConfigError(f"model: its state has the keys {sorted(states)}, initial_state() has {sorted(table)}")
        for name, value in states.items():
            if value.shape[1:] != table[name].shape[2:]:
                shapes = f"{tuple(value.shape)}, that of initial_state() {tuple(table[name].shape[2:])}"
                raise ConfigError(f"model: its state {name!r} has the shape {shapes}: it must be (B, *initial)")
            finite = value.isfinite().view(len(value), -1).all(1).view(-1, *[1] * (value.dim() - 1))
            kept = torch.where(finite, value, 0).to(table[name].dtype)
            table[name][batch["lane"], 1 - batch["position"] % 2] = kept

    def gather(self, world: World) -> None:
        """Copy the states of all lanes to all ranks. All ranks must call it."""
        share = self.lanes // world.size
        for table in self.buffers():
            table.copy_(gather_rows(table[world.rank * share : (world.rank + 1) * share])[0])

    def _present(self) -> dict[str, Tensor]:
        return dict(self.named_buffers()) if self.training else self.evaluated


class Streaming(Supervised):
    """model(x, state) -> (output, new state), where a state is {name: (B, *)}. model.initial_state() -> {name: (*)},
    the initial state of one lane.

    Each row starts from the state at the end of the previous row of its lane; no gradient flows between rows. lanes:
    must be the global batch size. eval_lanes: number of parallel lanes in evaluations, each of which starts from the
    initial state: 1 reads the split as one sequence, more lanes are faster.
    """

    stateful = True
    not_restored_on_skip = ("states",)  # the next step continues after the rows of the skipped step

    def __init__(
        self, criterion: Callable[[Any, Batch], Any], metrics: Mapping[str, Metric], lanes: Count, eval_lanes: Count
    ) -> None:
        super().__init__(criterion, metrics)
        self.lanes, self.eval_lanes = lanes, eval_lanes

    def setup(self, model: nn.Module) -> None:
        """Create the states. Raise ConfigError if the model has no initial_state()."""
        if not hasattr(model, "initial_state"):
            raise ConfigError(f"model: {type(model).__name__} has no method initial_state() - use model=token_gru")
        self.states = LaneStates(model.initial_state(), self.lanes, self.eval_lanes)  # type: ignore[operator]

    def predict(self, model: nn.Module, batch: Batch) -> Any:
        """Return the model's output, and store the new states."""
        output, states = model(batch["x"], self.states.read(batch, model.initial_state()))  # type: ignore[operator]
        self.states.write(batch, states)
        return output

    def sync_buffers(self) -> None:
        """Copy the states of all lanes to all ranks."""
        self.states.gather(self.run.world)
