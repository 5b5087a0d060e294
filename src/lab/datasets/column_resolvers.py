"""Interpolations of the groups `data` whose samples are rows of tables: ${column_shape:x}, ${column_outputs:y}."""

from __future__ import annotations

from typing import Any

from lab.datasets.columns import missing_rule
from lab.project import about_data, with_indicators
from samebits.schema import plain


def column_shape(field: str, _parent_: Any) -> list[int]:
    """Return the shape of one sample of a field of columns: ${column_shape:x} in a group `data`."""
    shape, _ = _columns(_parent_)[0].spec.get(field, ((), None))
    return with_indicators(list(shape) or [1], field, _parent_)


def column_outputs(field: str, _parent_: Any) -> int:
    """Return the number of outputs that a model of the field needs: ${column_outputs:y} in a group `data`."""
    columns, source = _columns(_parent_)
    return columns.outputs(field, source.extremes)


def _columns(node: Any) -> tuple[Any, Any]:
    """Return the fields of columns of a data set, and the source of their rows. node: the group `data`."""
    with about_data(node):
        if node._target_.endswith(".Parquet"):
            from lab.datasets.parquet import open_files

            source: Any = open_files(plain(node.path))
        else:
            from lab.datasets.huggingface import open_source

            source = open_source(node.path, node.name, node.revision, node._target_.endswith("Stream"))
        return source.columns(plain(node.fields), missing_rule(node.missing)), source
