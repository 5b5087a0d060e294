"""What stands in quotes for Hydra is what was written."""

from __future__ import annotations

from itertools import product

from hydra.core.override_parser.overrides_parser import OverridesParser

from engine.config import quote_value


def test_any_text_comes_back() -> None:
    texts = ["".join(letters) for length in range(1, 6) for letters in product("a\\'", repeat=length)]
    parser = OverridesParser.create()
    for text in [*texts, "/x,y=z{1}", "a b", "${c}", '"', "[1"]:
        assert str(parser.parse_override(f"key={quote_value(text)}").value()) == text
