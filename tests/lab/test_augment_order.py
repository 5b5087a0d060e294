"""Transforms of colors and mixup in an order that gives wrong values."""

from __future__ import annotations

from typing import Any

import pytest

from samebits.errors import ConfigError
from samebits.testing import compose

AUTO = ("data.transforms.normalize.mean=auto", "data.transforms.normalize.std=auto")


@pytest.mark.parametrize(
    ("chain", "more", "line"),
    [
        ("mixup,missing", (), "mixup: is before data.transforms.missing: a NaN"),
        ("missing,mixup", (), None),
        ("to_float,normalize,color", (), "normalize: is before data.transforms.color: its values are clipped"),
        ("to_float,normalize,trivial_augment", AUTO, "normalize: is before data.transforms.trivial_augment"),
        ("normalize,color", ("data.transforms.normalize.mean=[0]", "data.transforms.normalize.std=[255]"), None),
        ("normalize,color", ("data.transforms.normalize.mean=[120]",), "normalize: is before data.transforms.color"),
        ("normalize,color", ("data.transforms.normalize.mean=[null]",), "normalize.mean: expected a list"),
        ("to_float,color,normalize", (), None),
        ("color,channels_first", (), "color: is before data.transforms.channels_first: the channels"),
    ],
)
def test_an_order_with_wrong_values_is_refused(chain: str, more: Any, line: str | None) -> None:
    words = (f"data/transforms=[{chain}]", "data.transforms.missing.columns=[]" if "missing" in chain else "", *more)
    if line is None:
        compose(*filter(None, words))
        return
    with pytest.raises(ConfigError, match=line):
        compose(*filter(None, words))
