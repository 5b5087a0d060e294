"""Summarize modules in a table: output shapes, parameters, FLOP. On the device `meta`, so models may be of any size, or
with real data."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from samebits.files import aligned
from samebits.profiling.sample_cost import observed, on_meta


@dataclass(frozen=True)
class Row:
    """A row of the table.

    name: path of the module, with dots. shape: of its first output; None: the module was not called. parameters,
    trained: numbers of all and of trained parameters. flop: of the forward pass of the batch, including child modules,
    as torch counts them.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None
    parameters: int
    trained: int
    flop: int


def summarize(
    whole: nn.Module, batch: dict[str, Any], call: Callable[[nn.Module, dict[str, Any]], Any], meta: bool = True
) -> list[Row]:
    """Return a row for each module of `whole`, in order.

    call: called with (a copy of `whole`, a batch), both on meta. meta: False for a model that reads values of tensors;
    then `call` gets the model itself and a copy of the batch.
    """
    from torch.utils.flop_counter import FlopCounterMode

    own = on_meta([whole])[0] if meta else whole
    shapes: dict[nn.Module, tuple[int, ...]] = {}

    def note(module: nn.Module, inputs: Any, output: Any) -> None:
        first = next((value for value in tree_leaves(output) if isinstance(value, Tensor)), None)
        if first is not None:
            shapes.setdefault(module, tuple(first.shape))

    hooks = [module.register_forward_hook(note) for module in own.modules()]
    given = {k: (v.to("meta") if meta else v.clone()) if isinstance(v, Tensor) else v for k, v in batch.items()}
    try:
        with observed(FlopCounterMode(display=False), meta) as counter:
            call(own, given)
    finally:
        for hook in hooks:
            hook.remove()
    counts = {name: sum(by_kind.values()) for name, by_kind in counter.get_flop_counts().items()}
    counted: dict[nn.Module, int] = {}
    for name, module in own.named_modules(remove_duplicate=False):  # a shared module is counted under one of its names
        counted[module] = counted.get(module, 0) + counts.get(".".join([type(whole).__name__, name]).rstrip("."), 0)

    def flop(module: nn.Module) -> int:
        """Return the FLOP of a module; for a container that is not called itself, e.g. nn.ModuleList, the sum of its
        children."""
        return counted[module] if module in shapes else sum(map(flop, module.children()))

    rows = []
    for name, module in own.named_modules():
        sizes = [(p.numel(), p.requires_grad) for p in module.parameters()]
        parameters, trained = sum(size for size, _ in sizes), sum(size for size, learns in sizes if learns)
        rows.append(Row(name, type(module).__name__, shapes.get(module), parameters, trained, flop(module)))
    return rows


def summary_table(rows: list[Row], samples: int, depth: int) -> str:
    """Return the table as text. samples: number of samples in the batch; FLOP are per sample. depth: number of levels
    of modules shown."""
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
    """Format a number with a unit prefix: 2.5e9 -> 2.50 G."""
    for factor, unit in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if value >= factor:
            return f"{value / factor:.2f} {unit}"
    return f"{value:.0f}"
