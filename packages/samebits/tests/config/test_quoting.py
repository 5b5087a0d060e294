"""What stands in quotes for Hydra is what was written."""

from __future__ import annotations

from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import QuotedString
from hypothesis import given, strategies as st

from samebits.config import written

NAMES = st.text("abcxyz_", min_size=1, max_size=5).map("k".__add__)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.text("a\\'")
VALUES = st.recursive(LEAVES, lambda inner: st.lists(inner) | st.dictionaries(NAMES, inner), max_leaves=6)


def plain(value: Any) -> Any:
    """What Hydra's parser gives, with its quoted strings as text."""
    if isinstance(value, dict):
        return {str(name): plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    return value.text if isinstance(value, QuotedString) else value


@pytest.mark.slow
@given(VALUES)
def test_any_value_comes_back(value: Any) -> None:
    """In the command that a report prints for the best configuration."""
    parsed = OverridesParser.create().parse_override(f"key={written(value)}")
    assert not parsed.is_sweep_override()
    assert plain(parsed._value) == value
