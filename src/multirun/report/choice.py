"""By which score is chosen: a test score only where that was asked for, and said."""

from __future__ import annotations

from collections.abc import Sequence

from engine.errors import ConfigError
from multirun.options import Objective

FLAG = "--choose-on-test"


def is_test(key: str) -> bool:
    """Of a split that is scored once, at the end: test, test_hard, ..."""
    return key.startswith("test")


def caution(objectives: Sequence[Objective]) -> str | None:
    """What each output says where the best was chosen by test scores; None: it was not."""
    found = ", ".join(o.key for o in objectives if is_test(o.key))
    return f"CHOSEN ON TEST: the best was chosen by {found}, so its score is too good" if found else None


def check_choice(objectives: Sequence[Objective], allowed: bool) -> None:
    """ConfigError where a test score would choose and `allowed` (--choose-on-test) was not given."""
    if not allowed and (found := [o for o in objectives if is_test(o.key)]):
        raise ConfigError(
            f"{found[0].key} is a test score, and the best would be chosen by it: choose by a validation score "
            f"(--score val/...:{found[0].mode}; --per KEY --show {found[0].key} shows it), or add {FLAG}"
        )
