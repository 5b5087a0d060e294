"""The overrides in which jobs differ."""

from __future__ import annotations

import pytest

from samebits.runs import directory
from samebits.sweeps.ledger import differing


@pytest.fixture(autouse=True)
def _no_git(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "surroundings", lambda root: directory.Surroundings({"host": "here"}, ""))


def test_the_overrides_that_differ() -> None:
    overrides = ("+a.b=1", "++c=2", "d=3", "ab=4")
    assert differing(overrides, ["a.b", "c", "e"]) == "+a.b=1 ++c=2"
    assert differing(overrides, []) == ""
