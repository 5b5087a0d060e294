"""Find the graph of a forward pass: which module's output goes into which module, and autograd's operations.

Each call of a module is a node if the module calls no other module, or if it is at the deepest level. A module that
returns its inputs unchanged, such as nn.Identity, is not a node. A tensor's source is the node whose output it was
computed from. Sources are stored by storage, so views and operations in place need no special rules.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from samebits.errors import ConfigError
from samebits.profiling.diagram import Node, draw
from samebits.profiling.sample_cost import observed, on_meta

INPUT, MODULE, PARAMETER, OPERATION, LOSS = "#d5e8d4", "#f5f5f5", "#dae8fc", "#eeeeee", "#f8cecc"
MOST_NODES = 2000  # a larger picture helps nobody, and viewers fail


@dataclass
class Call:
    """An open call of a module. versions: {id of an input: its version, which an operation in place increases}. first:
    number of the next node when it began."""

    sources: frozenset[int]
    storages: set[int]
    versions: dict[int, int]
    first: int
    is_node: bool  # modules below it are not drawn
    has_called: bool = False


class ModuleGraph(TorchDispatchMode):
    """Record the nodes and edges of the calls within this block. whole: the module whose calls are recorded. depth:
    number of levels below it. An operation between modules is a node if its arguments have different sources; an
    example is the sum in a residual block."""

    def __init__(self, whole: nn.Module, depth: int) -> None:
        super().__init__()
        self.nodes: dict[int, Node] = {}
        self.edges: set[tuple[int, int]] = set()
        self._next = 0
        # {id of a storage: (a tensor that keeps it alive, nodes)}
        self._sources: dict[int, tuple[Tensor, frozenset[int]]] = {}
        self._views: dict[int, tuple[Tensor, frozenset[int]]] = {}  # of outputs that share storage with inputs
        self._calls: list[Call] = []
        self._whole, self._depth, self._hooks = whole, depth, list[Any]()

    def __enter__(self) -> ModuleGraph:
        for name, module in self._whole.named_modules():
            if name and name.count(".") < self._depth:
                is_node = name.count(".") + 1 == self._depth or not list(module.children())
                self._hooks.append(module.register_forward_pre_hook(self._before(is_node), with_kwargs=True))
                self._hooks.append(module.register_forward_hook(self._after(name), with_kwargs=True))
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run the operation. Its results get the sources of the arguments."""
        sources = self.sources_of([args, kwargs])
        taken = {id_of(value) for value in tensors([args, kwargs])}
        found = func(*args, **(kwargs or {}))
        named = {argument.name: value for argument, value in zip(func._schema.arguments, args)} | (kwargs or {})
        written = [
            named.get(argument.name)
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        results = tensors(written) + [value for value in tensors(found) if id_of(value) not in taken]
        if results and len(sources) > 1 and not (self._calls and self._calls[-1].is_node):
            name = func._schema.name.rpartition(":")[2].strip("_")
            sources = self.add(Node((name, str(list(results[0].shape))), OPERATION), sources)
        for value in results:
            self._note(value, sources)
        return found

    def add(self, node: Node, sources: Iterable[int], outputs: Any = ()) -> frozenset[int]:
        """Add a node with edges from `sources`; it is the source of the tensors in `outputs` from now on. Return it as
        a set."""
        if len(self.nodes) >= MOST_NODES:
            raise ConfigError(f"callback=graph: more than {MOST_NODES} calls of modules - set a smaller depth")
        number, self._next = self._next, self._next + 1
        self.nodes[number] = node
        self.edges |= {(source, number) for source in sources}
        for value in tensors(outputs):
            self._note(value, frozenset([number]))
        return frozenset([number])

    def sources_of(self, values: Any) -> frozenset[int]:
        """Return the sources of the tensors in `values`."""
        found = frozenset[int]()
        for value in tensors(values):
            own = self._views.get(id(value))
            found |= own[1] if own is not None else self._sources.get(id_of(value), (None, frozenset()))[1]
        return found

    def _note(self, value: Tensor, sources: frozenset[int]) -> None:
        self._sources[id_of(value)] = (value, sources)

    def _before(self, is_node: bool) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any) -> None:
            if self._calls:
                self._calls[-1].has_called = True
            given = [args, kwargs]
            taken = {id_of(value) for value in tensors(given)}
            versions = {id(value): value._version for value in tensors(given)}
            self._calls.append(Call(self.sources_of(given), taken, versions, self._next, is_node))

        return note

    def _after(self, name: str) -> Callable[..., None]:
        def note(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
            call = self._calls.pop()
            if call.has_called:
                return
            for number in range(call.first, self._next):  # operations inside of it
                self.nodes.pop(number, None)
            made = [value for value in tensors(output) if call.versions.get(id(value)) != value._version]
            if tensors(output) and not made:  # nothing is computed: its input keeps its source, for all who use it
                return
            shapes = [str(list(value.shape)) for value in tensors(output)]
            sizes = sum(p.numel() for p in module.parameters())
            text = (type(module).__name__, name, ", ".join(shapes[:3]) + ", ..." * (len(shapes) > 3))
            tip = f"{name}: {repr(module) if not list(module.children()) else type(module).__name__}"
            source = self.add(Node((*text, f"{sizes:,} parameters") if sizes else text, MODULE, tip), call.sources)
            for value in made:
                if id_of(value) in call.storages:  # a view of an input, which others may use as it was
                    self._views[id(value)] = (value, source)
                else:
                    self._note(value, source)

        return note


def tensors(values: Any) -> list[Tensor]:
    """Return the tensors in nested containers."""
    return [value for value in tree_leaves(values) if isinstance(value, Tensor)]


def id_of(value: Tensor) -> int:
    """Return a number that tensors with the same storage share."""
    return int(value.untyped_storage()._cdata) if value.layout == torch.strided else id(value)


def forward_graph(
    whole: nn.Module, batch: dict[str, Any], call: Callable[[nn.Module, dict[str, Any]], dict[str, Tensor]],
    depth: int, meta: bool = True,
) -> tuple[ModuleGraph, dict[str, Tensor], dict[int, str]]:  # fmt: skip
    """Return (the graph of the modules, {name: loss, 0-d}, {id of a parameter: its name}).

    call: called with (a copy of `whole`, a batch), both on the device `meta`; returns the losses, of any shape. meta:
    False for a model that reads values of tensors; then `call` gets `whole` itself and a copy of the batch.
    """
    own = on_meta([whole])[0] if meta else whole
    given = {k: (v.to("meta") if meta else v.clone()) if isinstance(v, Tensor) else v for k, v in batch.items()}
    with observed(ModuleGraph(own, depth), meta) as graph:
        for name, value in given.items():
            if isinstance(value, Tensor):
                graph.add(Node((f"batch[{name!r}]", str(list(value.shape)), dtype(value)), INPUT), (), value)
        losses = call(own, given)
        for name, loss in losses.items():
            graph.add(Node((name, str(list(loss.shape))), LOSS), graph.sources_of(loss))
        summed = {name: loss.sum() for name, loss in losses.items()}
    return graph, summed, {id(parameter): name for name, parameter in own.named_parameters()}


def module_svg(graph: ModuleGraph, title: str) -> str:
    """Return the picture of the modules, without fields of the batch that nothing uses."""
    edges = [(start, end) for start, end in graph.edges if start in graph.nodes and end in graph.nodes]
    used = {start for start, _ in edges}
    kept = [number for number, node in graph.nodes.items() if node.color != INPUT or number in used]
    place = {number: index for index, number in enumerate(kept)}
    return draw([graph.nodes[one] for one in kept], [(place[start], place[end]) for start, end in edges], title)


def autograd_svg(loss: Tensor, names: dict[int, str], title: str) -> str | None:
    """Return the picture of the operations whose backward pass computes the gradients of `loss`, 0-d; None if it has
    none. names: {id of a parameter: its name}."""
    if loss.grad_fn is None:
        return None
    order: list[Any] = []
    seen: set[Any] = set()
    stack: list[tuple[Any, bool]] = [(loss.grad_fn, False)]
    while stack:  # depth first: operations after those whose results they use
        function, done = stack.pop()
        if done:
            order.append(function)
        elif function not in seen:
            seen.add(function)
            stack.append((function, True))
            stack += [(before, False) for before, _ in function.next_functions if before is not None]
    if len(order) > MOST_NODES:
        raise ConfigError(
            f"callback=graph: autograd's graph has {len(order):,} operations, more than {MOST_NODES} - set "
            "autograd=false"
        )
    nodes, edges, place = list[Node](), list[tuple[int, int]](), dict[Any, int]()
    for function in order:
        place[function] = len(nodes)
        variable = getattr(function, "variable", None)
        if variable is None:
            nodes.append(Node((re.sub(r"Backward\d+$", "", function.name()),), OPERATION, function.name()))
        else:
            name = names.get(id(variable), "tensor")
            nodes.append(Node((name, str(list(variable.shape))), PARAMETER))
    for function in order:
        edges += [(place[one], place[function]) for one, _ in function.next_functions if one is not None]
    nodes.append(Node(("loss",), LOSS))
    edges.append((place[loss.grad_fn], len(nodes) - 1))
    return draw(nodes, edges, title)


def dtype(value: Tensor) -> str:
    """Return the dtype as text."""
    return str(value.dtype).removeprefix("torch.")
