"""What a copy says it left out, and its exit status."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import h5py
import numpy as np
import pytest

import h5rows
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
        assert ("for an unknown reason" in made.lines()[0]) == (lost > named)


def test_many_names_are_cut_and_counted() -> None:
    line = account(100, 0, 0, 100).lines()[0]
    assert line.count("no sample") == MOST_NAMES
    assert line.endswith(f"and {100 - MOST_NAMES} more")


def test_names_in_a_file_steer_no_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    evil = "x\x1b[31m\u202ey"
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file[f"{evil}/x"], file[f"{evil}/y"] = np.zeros((20, 3)), np.arange(20) % 3
        file.attrs[evil] = evil
        file.create_dataset("apart", (20,), "f4", external=[(str(tmp_path / evil), 0, 80)])
    h5rows.inspect(tmp_path / "a.h5")
    h5rows.write(({"a\x1b[5m": k} for k in range(3)), tmp_path / "b.h5")
    h5rows.repack(tmp_path / "b.h5", tmp_path / "c.h5")
    shown = capsys.readouterr()
    assert "in other files: " in shown.out
    assert not any(sign in shown.out + shown.err for sign in ("\x1b[31m", "\x1b[5m", "\u202e"))
