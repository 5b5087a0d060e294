"""Run a function on several ranks, without a run."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from samebits.errors import RunFailed
from samebits.status import read_failure, record_failure
from samebits.world import RankLauncher, process_group


def on_ranks(work: Callable[..., None], folder: Path, ranks: int = 2) -> None:
    """Run work(world, folder) in `ranks` processes that have a process group. Fail the test with the traceback of a
    rank that raises."""

    def rank(directory: Path) -> None:
        try:
            with process_group("cpu", 60.0) as place:
                work(place, directory)
        except Exception as error:
            record_failure(directory, int(os.environ["RANK"]), error)
            raise

    folder.mkdir(exist_ok=True)
    try:
        RankLauncher().run(rank, folder, ranks)
    except RunFailed:
        pytest.fail((read_failure(folder) or {})["traceback"])
