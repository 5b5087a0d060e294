"""Draw a directed acyclic graph as an SVG, in layers from top to bottom (Sugiyama's method). Needs no other program."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from statistics import fmean

LETTER, LINE, GAP, BETWEEN = 6.2, 13, 14, 34  # pixels: a letter, a line of text, between nodes, between layers
SWEEPS = 6  # passes over the layers, to order nodes and to place them near their neighbors


@dataclass(frozen=True)
class Node:
    """text: lines. color: of its box. tip: text of the tooltip."""

    text: tuple[str, ...]
    color: str = "#eeeeee"
    tip: str = ""


Edges = Sequence[tuple[int, int]]


def layers_of(count: int, edges: Edges) -> list[int]:
    """Return the layer of each node: after all its predecessors, and as near to its first successor as possible. Edges
    lead from smaller to larger numbers."""
    layer = [0] * count
    for start, end in sorted(edges, key=lambda edge: edge[1]):
        layer[end] = max(layer[end], layer[start] + 1)
    after: dict[int, list[int]] = {}
    for start, end in edges:
        after.setdefault(start, []).append(end)
    for node in sorted(after, reverse=True):
        layer[node] = min(layer[end] for end in after[node]) - 1
    return layer


@dataclass(frozen=True)
class Layout:
    """Places in pixels. x: centers of nodes, and of the points at which edges cross a layer. y, tall: top and height of
    each layer. paths: the items of each edge, from its start to its end."""

    layer: list[int]
    width: list[float]
    height: list[float]
    paths: list[list[int]]
    x: dict[int, float]
    y: list[float]
    tall: list[float]


def laid_out(nodes: Sequence[Node], edges: Edges) -> Layout:
    """Return the places of the nodes, and the ways of the edges."""
    layer = layers_of(len(nodes), edges)
    width = [max([len(line) for line in node.text] + [2]) * LETTER + 12 for node in nodes]
    height = [len(node.text) * LINE + 8.0 for node in nodes]
    paths = []
    for start, end in edges:
        path = [start]
        for between in range(layer[start] + 1, layer[end]):
            layer.append(between)
            width.append(4.0)
            height.append(0.0)
            path.append(len(layer) - 1)
        paths.append([*path, end])
    rows: list[list[int]] = [[] for _ in range(max(layer, default=-1) + 1)]
    for item, level in enumerate(layer):
        rows[level].append(item)
    above: dict[int, list[int]] = {item: [] for item in range(len(layer))}
    below: dict[int, list[int]] = {item: [] for item in range(len(layer))}
    for path in paths:
        for start, end in pairwise(path):
            below[start].append(end)
            above[end].append(start)
    x = placed(rows, width, above, below)
    left = min((x[item] - width[item] / 2 for item in x), default=0) - 10
    tall = [max(height[item] for item in row) for row in rows]
    y = [sum(tall[:level]) + BETWEEN * level + 40 for level in range(len(rows))]
    return Layout(layer, width, height, paths, {item: center - left for item, center in x.items()}, y, tall)


def draw(nodes: Sequence[Node], edges: Edges, title: str = "") -> str:
    """Return the SVG. edges: (from, to), indices of nodes, from smaller to larger indices."""
    at = laid_out(nodes, sorted(set(edges)))
    right = max((at.x[item] + at.width[item] / 2 for item in at.x), default=100) + 10
    right = max(right, len(title) * LETTER * 1.2 + 20)  # its font is larger
    bottom = (at.y[-1] + at.tall[-1] if at.y else 40) + 10
    shapes = [line_of(at, path) for path in at.paths]
    for item, node in enumerate(nodes):
        x, y, width, height = at.x[item], at.y[at.layer[item]], at.width[item], at.height[item]
        lines = "".join(
            f'<text x="{x:.1f}" y="{y + 14 + LINE * i:.1f}">{escape(text)}</text>' for i, text in enumerate(node.text)
        )
        shapes.append(
            f"<g><title>{escape(node.tip or ' '.join(node.text))}</title>"
            f'<rect x="{x - width / 2:.1f}" y="{y:.1f}" width="{width:.1f}" height="{height:.1f}" rx="3" '
            f'fill="{node.color}" stroke="#777777"/>{lines}</g>'
        )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{right:.0f}" height="{bottom:.0f}" '
        f'viewBox="0 0 {right:.0f} {bottom:.0f}" font-family="monospace" font-size="10" text-anchor="middle">\n'
        '<defs><marker id="arrow" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
        '<path d="M 0 0 L 6 3 L 0 6 z" fill="#888888"/></marker></defs>\n'
        f'<rect width="100%" height="100%" fill="#ffffff"/><text x="10" y="18" text-anchor="start" font-size="12">'
        f"{escape(title)}</text>\n" + "\n".join(shapes) + "\n</svg>\n"
    )


def line_of(at: Layout, path: list[int]) -> str:
    """Return the arrow of an edge: a curve between layers, straight within a layer that it crosses."""
    x, y = at.x[path[0]], at.y[at.layer[path[0]]] + at.height[path[0]]
    line = f"M {x:.1f} {y:.1f}"
    for item in path[1:]:
        to_x, to_y = at.x[item], at.y[at.layer[item]]
        middle = (y + to_y) / 2
        line += f" C {x:.1f} {middle:.1f} {to_x:.1f} {middle:.1f} {to_x:.1f} {to_y:.1f}"
        x, y = to_x, to_y
        if item != path[-1]:
            y += at.tall[at.layer[item]]
            line += f" L {x:.1f} {y:.1f}"
    return f'<path d="{line}" fill="none" stroke="#888888" marker-end="url(#arrow)"/>'


def placed(
    rows: list[list[int]], width: Sequence[float], above: dict[int, list[int]], below: dict[int, list[int]]
) -> dict[int, float]:
    """Return the horizontal center of each item. Orders each row by the mean place of the neighbors, then moves items
    toward that mean as far as their row allows."""
    x: dict[int, float] = {}
    for row in rows:
        side_by_side(row, [0.0] * len(row), width, x)
    for sweep in range(SWEEPS):
        ways = ((rows, above), (rows[::-1], below)) if sweep % 2 == 0 else ((rows[::-1], below), (rows, above))
        for order, neighbors in ways:
            for row in order:
                wanted = {item: fmean([x[one] for one in neighbors[item]] or [x[item]]) for item in row}
                row.sort(key=lambda item: wanted[item])
                side_by_side(row, [wanted[item] for item in row], width, x)
    return x


def side_by_side(row: Sequence[int], wanted: Sequence[float], width: Sequence[float], x: dict[int, float]) -> None:
    """Place the items of a row in this order without overlap, with the smallest sum of squared distances to the wanted
    centers: neighbors that would overlap form a block, which has one shift."""
    offsets = [0.0]  # of each item from the first one, if all touch
    for one, other in pairwise(row):
        offsets.append(offsets[-1] + (width[one] + width[other]) / 2 + GAP)
    blocks: list[tuple[float, int]] = []  # (sum of the shifts that its items want, number of items)
    for want, offset in zip(wanted, offsets):
        total, count = want - offset, 1
        while blocks and blocks[-1][0] / blocks[-1][1] >= total / count:
            before, number = blocks.pop()
            total, count = total + before, count + number
        blocks.append((total, count))
    shifts = [total / count for total, count in blocks for _ in range(count)]
    for item, offset, shift in zip(row, offsets, shifts):
        x[item] = offset + shift
