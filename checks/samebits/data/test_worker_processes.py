"""Worker processes of a run: when they start, and how long they stay."""

from __future__ import annotations

import multiprocessing
from pathlib import Path
from typing import Any

import pytest
from common import QUICK

from lab.callbacks.base import Callback
from samebits.data.loading import open_workers
from samebits.testing import start_run


@pytest.mark.slow
def test_worker_processes_are_there_while_they_are_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An evaluation's start with the first one and stay; of `auto`, one trial decides for all three splits."""
    seen: list[tuple[str, int]] = []
    measured: list[int] = []
    best = open_workers._best

    class Counts(Callback):
        def on_start(self, state: Any) -> None:
            seen.append(("start", len(multiprocessing.active_children())))

        def on_eval(self, state: Any, scores: dict[str, float]) -> None:
            seen.append(("eval", len(multiprocessing.active_children())))

        def on_end(self, state: Any) -> None:
            seen.append(("end", len(multiprocessing.active_children())))

    def counted(*rest: Any) -> Any:
        measured.append(1)
        best(*rest)
        return 2, {}

    before = len(multiprocessing.active_children())
    monkeypatch.setattr("lab.run.make_callbacks", lambda config: [Counts()])
    monkeypatch.setattr(open_workers, "_best", counted)
    monkeypatch.setattr(open_workers, "_HAND_OVER_S", 0.0)
    start_run(
        tmp_path / "run", *QUICK, "data=synthetic", "data.loader=workers", "trainer.max_steps=4",
        "trainer.eval_every=2", "trainer.max_eval_batches=2",
    )  # fmt: skip
    assert seen == [("start", before + 2), ("eval", before + 4), ("eval", before + 4), ("end", before)]
    assert measured == [1]
