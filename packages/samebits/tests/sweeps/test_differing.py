"""The overrides in which jobs differ."""

from __future__ import annotations

from samebits.sweeps.ledger import differing


def test_the_overrides_that_differ() -> None:
    overrides = ("+a.b=1", "++c=2", "d=3", "ab=4")
    assert differing(overrides, ["a.b", "c", "e"]) == "+a.b=1 ++c=2"
    assert differing(overrides, []) == ""


def test_equal_numbers_look_equal() -> None:
    typed = ("lr=1e-2", "++wd=1.0", "big=1e30", "betas=[0.9, 1e-2]", "name='1e-2'", "on=true", "seed=1_000", "~gone")
    shown = "lr=0.01 ++wd=1 big=1e+30 betas=[0.9, 1e-2] name='1e-2' on=true seed=1000 ~gone"
    assert differing(typed, ["lr", "wd", "big", "betas", "name", "on", "seed", "~gone"]) == shown
