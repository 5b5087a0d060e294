"""What a copy says it left out, and its exit status."""

from __future__ import annotations

from collections import Counter

import pytest

from h5rows.account import LEFT_OUT, MOST_NAMES, Account


def account(held: int, taken: int, asked: int = 0, named: int = 0) -> Account:
    made = Account(Counter(keys=held), Counter(keys=taken), Counter(keys=asked))
    for k in range(named):
        made.leave("keys", f"key{k}", "no sample")
    return made


@pytest.mark.parametrize(
    ("held", "taken", "asked", "named", "lost"),
    [
        (20, 20, 0, 0, 0),
        (20, 18, 2, 0, 0),  # an option leaves them out
        (20, 17, 2, 1, 1),
        (20, 17, 0, 3, 3),
        (20, 17, 0, 0, 3),  # a loss that nobody noticed is one
        (20, 17, 0, 1, 3),
        (0, 0, 0, 2, 2),  # named, not counted
        (20, 20, 0, 1, 1),
    ],
)
def test_each_loss_is_counted_and_in_the_status(held: int, taken: int, asked: int, named: int, lost: int) -> None:
    made = account(held, taken, asked, named)
    assert made.exit_status == (LEFT_OUT if lost else 0)
    assert (made.closing == "all read back and compared") == (lost == 0)
    assert len(made.lines()) == (lost > 0)
    if lost:
        assert f"{lost} of {max(lost, held)} keys (exit status 3)" in made.closing
        assert made.lines()[0].startswith(f"left out: {lost} keys: ")
        assert all(f"key{k} (no sample)" in made.lines()[0] for k in range(named))
        assert ("for no known reason" in made.lines()[0]) == (lost > named)


def test_many_names_are_cut_and_counted() -> None:
    line = account(100, 0, 0, 100).lines()[0]
    assert line.count("no sample") == MOST_NAMES
    assert line.endswith(f"and {100 - MOST_NAMES} more")
