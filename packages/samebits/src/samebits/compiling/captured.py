"""Run a training step as one CUDA graph. One call launches all kernels, which helps if the host takes longer to launch
them separately than the GPU to run them (torch.cuda.CUDAGraph; "Accelerating PyTorch with CUDA Graphs", 2021).

Decisions that Python makes during capture are fixed for all later steps. Therefore `Captured` compares values on the
host: it refuses a step that changes them, and captures the step again if they were changed between steps (by a
callback).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from samebits.errors import ConfigError, first_line
from samebits.steps import FUSED, rng_bytes

KEY = "hardware.cuda_graph=true"
WARM_UP = 3  # steps without the graph first: they allocate, choose kernels and create the optimizer's state

Batch = dict[str, Tensor]
Step = Callable[[Sequence[Batch]], dict[str, Tensor]]  # micro-batches -> 0-d tensors

_HOST = torch.device("cpu")
_OF_MODULES = frozenset(vars(nn.Module())) | {"training"}


class Graph:
    """step(inputs) as a CUDA graph. Each call runs it again with the current content of `inputs`."""

    def __init__(self, step: Step, inputs: Sequence[Batch]) -> None:
        self.graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph, capture_error_mode="thread_local"):  # other threads copy and save meanwhile
            values = step(inputs)
            self.names, self.values = list(values), torch.stack([value.float() for value in values.values()])

    def __call__(self) -> dict[str, Tensor]:
        """Replay the graph. Return {name: 0-d tensor}."""
        self.graph.replay()
        return dict(zip(self.names, self.values.clone().unbind()))  # the next replay overwrites its results


class Captured:
    """Run steps as a graph, after WARM_UP steps without one.

    All steps read their batches from the same memory, so that the code compiled for the first steps is captured.
    Batches of other shapes run without the graph.

    modules: modules that a step may read. optimizers: their learning rates must be tensors on the device. say: prints a
    line, once, about batches of other shapes.
    """

    def __init__(
        self, modules: Mapping[str, nn.Module], optimizers: Iterable[Optimizer], say: Callable[[str], None]
    ) -> None:
        self.modules, self.optimizers, self.say = modules, list(optimizers), say
        self.inputs: list[Batch] = []
        self.graph: Graph | None = None
        self.begun = 0
        self.seen: Any = None  # `since` of the last comparison of host values
        self.values: dict[str, Any] = {}  # host values at the time of capture

    def __call__(self, step: Step, batches: Sequence[Batch], since: Any) -> dict[str, Tensor]:
        """Run a step. since: a value that changes if anything other than steps may have run since the last call."""
        if name := next((n for batch in batches for n, v in batch.items() if not isinstance(v, Tensor)), ""):
            raise ConfigError(f"{KEY}: the batch's {name!r} is not a tensor - set it to false")
        self.inputs = self.inputs or [{name: value.clone() for name, value in batch.items()} for batch in batches]
        if _shapes(batches) != _shapes(self.inputs):
            self.say(
                f"{KEY}: a batch has other shapes than the first one; steps with such batches run without the graph"
            )
            self.say = lambda line: None
            return step(batches)
        for own, given in zip(self.inputs, batches):
            for name, value in own.items():
                value.copy_(given[name])
        if self.begun < WARM_UP:
            self.begun += 1
            return self._watched(step)
        if self.graph is None or since != self.seen:
            found, self.seen = self._host_values(), since
            if self.graph is None or found != self.values:
                self.graph, self.values = self._capture(step), found
        return self.graph()

    def _watched(self, step: Step) -> dict[str, Tensor]:
        """Run a step without the graph. Raise ConfigError if it has effects that a graph would not repeat."""
        before, drawn = self._host_values(), rng_bytes(_HOST)
        values = step(self.inputs)
        after = self._host_values()
        if self.begun > 1 and (name := next((n for n in {**before, **after} if before.get(n) != after.get(n)), "")):
            raise ConfigError(
                f"{KEY}: a step changes {name} on the host, which a graph would not repeat - set it to false"
            )
        if not torch.equal(rng_bytes(_HOST), drawn):
            raise ConfigError(
                f"{KEY}: a step draws random numbers on the host, which a graph would not repeat - set it to false"
            )
        return values

    def _capture(self, step: Step) -> Graph:
        groups = [group for one in self.optimizers for group in one.param_groups if "capturable" in group]
        before = [group["capturable"] for group in groups]
        try:
            for group in groups:  # Adam requires it; the state of a fused optimizer is on the device anyway
                group["capturable"] = True
            return Graph(step, self.inputs)
        except RuntimeError as error:
            raise ConfigError(
                f"{KEY}: a graph cannot contain this step; it may read a value from the GPU (.item(), nonzero, "
                f"a mask as an index): {first_line(error)} - set it to false"
            ) from error
        finally:
            for group, value in zip(groups, before):
                group["capturable"] = value

    def _host_values(self) -> dict[str, Any]:
        """Return {name: value} of the numbers, texts and lengths in modules and optimizer groups, and the addresses of
        tensors."""
        found: dict[str, Any] = {}
        for prefix, module in self.modules.items():
            for name, inner in module.named_modules(prefix=prefix):
                for key, value in vars(inner).items():
                    if key not in _OF_MODULES:
                        found[f"{name}.{key}"] = _of(value)
            tensors = (*module.named_parameters(prefix=prefix), *module.named_buffers(prefix=prefix))
            found |= {f"the address of {name}": value.data_ptr() for name, value in tensors}
        for number, group in enumerate(group for one in self.optimizers for group in one.param_groups):
            found |= {f"the optimizer's group {number}: {k}": _of(v) for k, v in group.items() if k != "params"}
        return found


def check_optimizer_of_graph(optimizers: Iterable[Optimizer]) -> None:
    """Raise ConfigError for an optimizer whose learning rate cannot be a tensor on the device."""
    for one in (part for whole in optimizers for part in getattr(whole, "parts", [whole])):
        fused = isinstance(one, FUSED) and all(group.get("fused") for group in one.param_groups)
        if not (fused or getattr(one, "takes_rate_tensor", False)):
            raise ConfigError(
                f"{KEY}: {type(one).__name__} has no fused kernel here and may read the learning rate from the GPU - "
                "use optim=adamw, sgd or muon"
            )


def _of(value: Any, depth: int = 2) -> Any:
    """Return a comparable part of a value in a module: itself, an address, or the content of an object or a
    collection."""
    if isinstance(value, (bool, int, float, str)):
        return value
    if isinstance(value, Tensor):
        return value.data_ptr()
    held: Any = getattr(value, "__dict__", None) if not isinstance(value, (type, FunctionType, nn.Module)) else None
    if isinstance(value, (list, tuple, deque)):
        held = dict(enumerate(value))
    elif isinstance(value, dict):
        held = value
    if held is None or not depth:
        return id(value)
    return id(value), {key: _of(one, depth - 1) for key, one in held.items()}


def _shapes(batches: Sequence[Batch]) -> list[dict[str, Any]]:
    return [{name: (value.shape, value.dtype) for name, value in batch.items()} for batch in batches]
