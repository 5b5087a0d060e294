"""A run over a server that stalls."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from common import QUICK, ROOT
from http_files import Server, serving
from test_h5_ranges import cache  # noqa: F401 - a fixture

from h5rows.reading import sources
from samebits.testing import assert_equal, last_checkpoint, result, start_run


@pytest.fixture
def server() -> Iterator[Server]:
    with serving() as server:
        yield server


@pytest.mark.slow
def test_a_run_over_stalls_is_the_local_file_s(tmp_path: Path, server: Server, monkeypatch: Any) -> None:
    """Of a third of a second, some longer than the timeout, in the middle of answers."""
    monkeypatch.setattr(sources, "TIMEOUT_S", 0.25)
    server.files["/digits.h5"] = (ROOT / "data" / "digits.h5").read_bytes()
    quick, ended = (*QUICK, "trainer.max_steps=30", "trainer.eval_every=10", "trainer.save_every=30"), threading.Event()

    def stall() -> None:
        while not ended.wait(0.02):
            server.gate.clear()
            ended.wait(0.35)
            server.gate.set()

    stalls = threading.Thread(target=stall)
    stalls.start()
    try:
        far = start_run(tmp_path / "far", *quick, f"data.path={server.url('/digits.h5')}", "data.cache_gb=1")
    finally:
        ended.set()
        stalls.join()
    near = start_run(tmp_path / "near", *quick)
    scores = [{k: v for k, v in result(run).items() if k not in ("seconds", "best_checkpoint")} for run in (far, near)]
    assert scores[0] == scores[1]
    assert_equal(last_checkpoint(far)["model"], last_checkpoint(near)["model"])
    assert "digits.h5" in (far / "remote.json").read_text()
    assert not list((tmp_path / "cache").rglob("*.h5"))  # no copy of it
