"""What is drawn and told of a model: the calls of its modules, autograd's operations, a table of shapes and FLOP."""

from __future__ import annotations

from typing import Any
from xml.etree import ElementTree

import pytest
import torch
from torch import Tensor, nn

from samebits.profiling import autograd_svg, forward_graph, module_svg, summarize, summary_table

SVG = "{http://www.w3.org/2000/svg}"


def texts(svg: str) -> list[list[str]]:
    """The lines of each node."""
    return [
        [line.text or "" for line in box.findall(f"{SVG}text")] for box in ElementTree.fromstring(svg).iter(f"{SVG}g")
    ]


class Odd(nn.Module):
    """A residual, an operation in place, a view, a layer used twice, one without gradients, and outputs in a dict."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(6, 6), nn.Linear(6, 6)
        self.flat, self.inplace = nn.Flatten(), nn.ReLU(inplace=True)
        self.block = nn.Sequential(nn.Linear(6, 6), nn.Tanh())
        self.teacher, self.unused = nn.Linear(6, 6), nn.Linear(7, 7)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        first = self.one(x)
        again = self.one(self.inplace(self.two(first)) + first)
        with torch.no_grad():
            target = self.teacher(self.flat(first[:, None]))
        return {"loss": (self.block(again) - target).square().sum(1)}


def graph_of(depth: int) -> tuple[Any, set[tuple[str, str]], dict[str, Tensor], dict[int, str]]:
    batch = {"x": torch.ones(5, 6), "y": torch.ones(5)}
    whole = nn.ModuleDict({"model": Odd()})
    graph, losses, names = forward_graph(whole, batch, lambda own, given: own["model"](given["x"]), depth)  # type: ignore[index]
    label = {k: node.text[1 if node.text[0][0].isupper() else 0] for k, node in graph.nodes.items()}
    return graph, {(label[start], label[end]) for start, end in graph.edges}, losses, names


def test_edges_follow_the_tensors() -> None:
    graph, edges, _, _ = graph_of(depth=3)
    assert edges == {
        ("batch['x']", "model.one"),
        ("model.one", "model.two"),
        ("model.two", "model.inplace"),
        ("model.inplace", "add"),
        ("model.one", "add"),  # the residual
        ("add", "model.one"),  # the second call
        ("model.one", "model.flat"),
        ("model.flat", "model.teacher"),
        ("model.one", "model.block.0"),
        ("model.block.0", "model.block.1"),
        ("model.block.1", "sub"),
        ("model.teacher", "sub"),
        ("sub", "loss"),
    }
    shown = texts(module_svg(graph, "title"))
    assert ["Linear", "model.two", "[5, 6]", "42 parameters"] in shown
    assert not any("model.unused" in lines or "batch['y']" in lines for lines in shown)
    assert sum("model.one" in lines for lines in shown) == 2


def test_deeper_modules_are_part_of_their_parent() -> None:
    _, edges, _, _ = graph_of(depth=2)
    assert ("model.one", "model.block") in edges
    assert ("model.block", "sub") in edges
    assert not any("block.0" in end for _, end in edges)


def test_operations_of_a_module_that_calls_none_are_part_of_it() -> None:
    """nn.MultiheadAttention does not call its child."""
    whole = nn.ModuleDict({"model": nn.MultiheadAttention(8, 2, batch_first=True)})
    batch = {name: torch.ones(3, 5, 8) for name in "qkv"}
    call = lambda own, given: {"loss": own["model"](given["q"], given["k"], given["v"])[0].sum((1, 2))}  # noqa: E731
    graph, _, _ = forward_graph(whole, batch, call, 3)
    assert [lines[0] for lines in texts(module_svg(graph, ""))] == [
        "batch['q']", "batch['k']", "batch['v']", "MultiheadAttention", "loss",
    ]  # fmt: skip


class Twice(nn.Module):
    """Its first output is its input, unchanged."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x.cos()


@pytest.mark.parametrize(
    "shortcut", [nn.Identity(), nn.Sequential(), nn.Dropout(0.5).eval(), nn.Sequential(nn.Identity()), Twice()]
)
@pytest.mark.parametrize("depth", [2, 3])
def test_a_module_that_returns_its_input_changes_no_other_edge(shortcut: nn.Module, depth: int) -> None:
    """As in a residual block, whose body reads the input after the shortcut has returned it."""

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.body = nn.Linear(4, 4), nn.Linear(4, 4)
            self.shortcut, self.inplace = shortcut, nn.ReLU(inplace=True)

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            kept = self.shortcut(x := self.first(x))
            other, kept = (kept[1], kept[0]) if isinstance(kept, tuple) else (0.0, kept)
            return {"loss": self.inplace(self.body(x) + kept + other).sum(1)}

    whole = nn.ModuleDict({"model": Block()})
    graph, _, _ = forward_graph(whole, {"x": torch.ones(2, 4)}, lambda own, given: own["model"](given["x"]), depth)  # type: ignore[index]
    text = {number: " ".join(node.text[:2]) for number, node in graph.nodes.items()}
    edges = {(text[start], text[end]) for start, end in graph.edges}
    two = type(shortcut) is Twice
    last = "ReLU model.inplace"
    assert edges - {("Twice model.shortcut", "add [2, 4]"), ("add [2, 4]", "add [2, 4]")} == {
        ("batch['x'] [2, 4]", "Linear model.first"),
        ("Linear model.first", "Linear model.body"),
        ("Linear model.first", "add [2, 4]"),
        *({("Linear model.first", "Twice model.shortcut")} if two else ()),
        ("Linear model.body", "add [2, 4]"),
        ("add [2, 4]", last),
        (last, "loss []" if ("loss []", last) in edges else "loss [2]"),
    }
    assert (("Twice model.shortcut", "add [2, 4]") in edges) == two


def test_a_deep_residual_network_has_as_many_edges_as_nodes() -> None:
    """And not the square of them: the sum of each block is a node."""

    class Residual(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(50))

        def forward(self, x: Tensor) -> dict[str, Tensor]:
            for layer in self.layers:
                x = x + layer(x)
            return {"loss": x.sum(1)}

    graph, _, _ = forward_graph(Residual(), {"x": torch.ones(2, 4)}, lambda own, given: own(given["x"]), 3)
    assert len(graph.nodes) == 1 + 2 * 50 + 1
    assert len(graph.edges) == 3 * 50 + 1


def test_autograd_has_the_parameters_with_gradients() -> None:
    _, _, losses, names = graph_of(depth=3)
    svg = autograd_svg(losses["loss"], names, "title")
    assert svg is not None
    parameters = {lines[0] for lines in texts(svg) if len(lines) == 2}
    assert parameters == {f"model.{layer}.{kind}" for layer in ("one", "two", "block.0") for kind in ("weight", "bias")}
    assert {("Addmm",), ("Tanh",), ("Pow",), ("loss",)} <= {tuple(lines) for lines in texts(svg)}
    assert autograd_svg(torch.zeros(()), {}, "") is None


class Listed(nn.Module):
    """A list that is not called, a layer used twice, one that is frozen, an output of several."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(6, 6), nn.Linear(6, 4)])
        self.frozen = nn.Linear(4, 4).requires_grad_(False)
        self.unused = nn.Linear(7, 7)
        self.tied = self.layers[0]

    def forward(self, x: Tensor) -> dict[str, Any]:
        x = self.layers[1](self.layers[0](self.layers[0](x)))
        return {"hidden": (self.frozen(x), x)}


def test_shapes_parameters_and_flop() -> None:
    batch = {"x": torch.ones(5, 6)}
    rows = {row.name: row for row in summarize(Listed(), batch, lambda model, given: model(given["x"]))}
    assert list(rows) == ["", "layers", "layers.0", "layers.1", "frozen", "unused"]
    assert [row.shape for row in rows.values()] == [(5, 4), None, (5, 6), (5, 4), (5, 4), None]
    assert [row.parameters for row in rows.values()] == [146, 70, 42, 28, 20, 56]
    assert [row.trained for row in rows.values()] == [126, 70, 42, 28, 0, 56]
    linear = [2 * 5 * 6 * 6 * 2, 2 * 5 * 6 * 4, 2 * 5 * 4 * 4]  # multiply and add; the first is called twice
    assert [row.flop for row in rows.values()] == [sum(linear), linear[0] + linear[1], *linear, 0]
    table = summary_table([*rows.values()][1:], 5, depth=1)
    assert table.splitlines() == [
        "module              output   parameters  FLOP a sample",
        "layers  ModuleList                   70            192",
        "frozen  Linear      [5, 4]  20 (frozen)             32",
        "unused  Linear                       56              0",
    ]
