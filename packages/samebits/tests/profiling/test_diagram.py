"""A graph in layers, as an SVG."""

from __future__ import annotations

from xml.etree import ElementTree

from samebits.profiling.diagram import Node, draw, layers_of

SVG = "{http://www.w3.org/2000/svg}"


def test_layers_and_boxes() -> None:
    """Every edge leads down, a node is just above its first successor, and no two boxes overlap."""
    edges = [(0, 3), (1, 4), (3, 4), (4, 5), (0, 5), (2, 5), (4, 6), (5, 7), (6, 7)]
    layers = layers_of(8, edges)
    assert all(layers[start] < layers[end] for start, end in edges)
    assert layers == [0, 1, 2, 1, 2, 3, 3, 4]
    svg = draw([Node((f"node {i}" * (i + 1), "<&>")) for i in range(8)], edges, "a<b")
    root = ElementTree.fromstring(svg)
    assert len(list(root.iter(f"{SVG}path"))) == len(edges) + 1  # and the arrow head
    boxes = [{key: float(box.find(f"{SVG}rect").get(key)) for key in ("x", "y", "width", "height")}  # type: ignore
             for box in root.iter(f"{SVG}g")]  # fmt: skip
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= float(root.get("width", 0)) for box in boxes)
    for i, one in enumerate(boxes):
        for other in boxes[:i]:
            aside = one["x"] >= other["x"] + other["width"] or other["x"] >= one["x"] + one["width"]
            assert aside or one["y"] >= other["y"] + other["height"] or other["y"] >= one["y"] + one["height"]


def test_a_graph_without_edges_or_nodes() -> None:
    assert layers_of(2, []) == [0, 0]
    for nodes in ([], [Node(("alone",))]):
        assert len(list(ElementTree.fromstring(draw(nodes, [])).iter(f"{SVG}g"))) == len(nodes)
