"""Runs on files that lie behind an address."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT
from http_files import Server, serving
from test_h5_remote import ALL, cache, forget, made, opened  # noqa: F401 - cache is a fixture

from lab import load_run
from lab.loaders import fetch_remote
from lab.program import start
from samebits.children import note_progress, progress_at
from samebits.testing import assert_equal, compose, last_checkpoint, result, start_run
from samebits.world import HangWatchdog

DIGITS = (ROOT / "data" / "digits.h5").read_bytes()


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.slow
def test_a_run_from_composing_to_its_scores(tmp_path: Path, server: Server, capsys: Any, caplog: Any) -> None:
    """And on, with another file at that address, which it says."""
    server.files["/digits.h5"] = DIGITS
    quick = (*QUICK, "trainer.max_steps=6", "trainer.eval_every=3", "trainer.save_every=6")
    far, near = server.url("/digits.h5"), ROOT / "data" / "digits.h5"
    runs = [
        start_run(tmp_path / name, *quick, f"data.path={path}") for name, path in {"far": far, "near": near}.items()
    ]
    assert server.sent == len(DIGITS) + 1  # composed, checked, trained and scored
    scores = [{k: v for k, v in result(run).items() if k not in ("seconds", "best_checkpoint")} for run in runs]
    assert scores[0] == scores[1]
    assert_equal(last_checkpoint(runs[0])["model"], last_checkpoint(runs[1])["model"])
    assert "digits.h5" in (runs[0] / "remote.json").read_text()
    # a model needs no data: nothing is asked for
    forget()
    server.forget()
    load_run(runs[0])
    assert server.requests == 0
    server.tags["/digits.h5"] = '"2"'
    cfg = compose(*quick, f"data.path={far}")
    cfg.trainer.max_steps = 7
    start(cfg, runs[0], [], False)
    said = capsys.readouterr().err + caplog.text  # whichever has the log by then
    assert "/digits.h5 has changed since the start of this run" in said
    assert "has changed since" in said


def test_what_is_fetched_is_not_taken_for_hung(tmp_path: Path, server: Server) -> None:
    watchdog = HangWatchdog(tmp_path, 0, 1, 600.0)
    server.files["/f.h5"] = made(tmp_path / "f.h5")
    began = time.monotonic()
    fetch_remote({"_target_": "lab.datasets.h5.Dataset", "path": server.url()}, note_progress)
    assert watchdog.latest().at >= began
    assert progress_at() >= began
