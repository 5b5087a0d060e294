"""A table of modules: output shapes, parameters, FLOP. On the device `meta`, so for a model of any size, or by a real
batch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from samebits.files import aligned
from samebits.profiling.work import counting, on_meta


@dataclass(frozen=True)
class Row:
    """name: path of the module, dots between. shape: of its first output with the batch; None: it was not called. flop:
    of the forward pass of the batch, those of the modules in it included, as torch counts them."""

    name: str
    kind: str
    shape: tuple[int, ...] | None
    parameters: int
    trained: int
    flop: int


def summarize(
    whole: nn.Module, batch: dict[str, Any], call: Callable[[nn.Module, dict[str, Any]], Any], meta: bool = True
) -> list[Row]:
    """Returns a row for each module of `whole`, in their order. call: what is done with a copy of it and a batch, both
    on meta. meta: False for a model that asks for values: with itself and a copy of the batch."""
    own = on_meta([whole])[0] if meta else whole
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        first = next((value for value in tree_leaves(output) if isinstance(value, Tensor)), None)
        if first is not None:
            shapes.setdefault(module, tuple(first.shape))

    hooks = [module.register_forward_hook(note) for module in own.modules()]
    given = {k: (v.to("meta") if meta else v.clone()) if isinstance(v, Tensor) else v for k, v in batch.items()}
    try:
        with counting(meta) as counter:
            call(own, given)
    finally:
        for hook in hooks:
            hook.remove()
    counts = {name: sum(by_kind.values()) for name, by_kind in counter.get_flop_counts().items()}
    counted: dict[nn.Module, int] = {}
    for name, module in own.named_modules(remove_duplicate=False):  # a tied one counts under one of its names
        counted[module] = counted.get(module, 0) + counts.get(".".join([type(whole).__name__, name]).rstrip("."), 0)

    def flop(module: nn.Module) -> int:
        """A list of modules is not called itself: the sum of those in it."""
        return counted[module] if module in shapes else sum(map(flop, module.children()))

    rows = []
    for name, module in own.named_modules():
        sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
        parameters, trained = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
        rows.append(Row(name, type(module).__name__, shapes.get(module), parameters, trained, flop(module)))
    return rows


def summary_table(rows: list[Row], samples: int, depth: int) -> str:
    """depth: levels of modules that are shown. samples: of the batch; FLOP are those of a sample."""
    cells = [("module", "", "output", "parameters", "FLOP a sample")]
    for row in rows:
        level = row.name.count(".")
        if level < depth:
            name = "  " * level + row.name.rpartition(".")[2]
            shape = "" if row.shape is None else str(list(row.shape))
            frozen = " (frozen)" if row.parameters and not row.trained else ""
            cells.append((name, row.kind, shape, f"{row.parameters:,}{frozen}", scaled(row.flop / samples)))
    return aligned(cells, 3)


def scaled(value: float) -> str:
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:.0f}"
