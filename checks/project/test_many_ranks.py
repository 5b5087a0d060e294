"""What ranks say to each other in a step, a log, an evaluation and a save does not grow with their number."""

from __future__ import annotations

import sys
from pathlib import Path

from common import ROOT

from samebits.testing import start_run

sys.path.append(str(ROOT / "benchmarks"))
from scale_ranks import Message, listened

from samebits.parallel.balance import COLUMNS

FEW, MANY = 8, 1024
TABLE = 4 * COLUMNS  # bytes of a rank in the table of who waits for whom, which is summed at each log


def of_each(messages: list[Message], ranks: int, table: int = 0) -> list[tuple[str, float]]:
    """With the bytes of one rank where rank 0 is told those of each; without the table."""
    return [(name, size / ranks if name == "gather" else size - ranks * table) for name, size in messages]


def test_1024_ranks_say_what_8_do(tmp_path: Path) -> None:
    """As many collectives of as many bytes. Each rank's own: what rank 0 gathers for a save (random states, sums) and a
    comparison, and a row of the table at each log."""
    few, many = (listened(tmp_path / str(ranks), ranks, start_run) for ranks in (FEW, MANY))
    assert few.keys() == many.keys()
    for name, table in (("step", 0), ("log", TABLE), ("evaluation", 0), ("save", 0)):
        for one, other in zip(few[name], many[name], strict=True):
            assert of_each(one.messages, FEW, table) == of_each(other.messages, MANY, table), name
    # nobody but rank 0 hears of each of the others: gloo's all-gather passes N - 1 messages on, one after another
    said = {name for kind, parts in many.items() if kind != "other" for part in parts for name, _ in part.messages}
    assert said == {"all-reduce", "broadcast", "gather"}
    assert [len(part.messages) for part in many["step"][1:]] == [1, 1, 1]  # the gradients, in one bucket
    assert [len(part.messages) for part in many["log"]] == [1, 1]
