"""A run on a set of several files."""

from __future__ import annotations

from pathlib import Path

import pytest
from common import QUICK
from test_shards import cache, source  # noqa: F401 - cache is a fixture

from h5rows import pack
from samebits.testing import result, start_run


def test_a_run_trains_on_it_and_the_command_is_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pack(source(tmp_path, "a", 0, 60), str(tmp_path / "set"), shards=3)
    index = str(tmp_path / "set/index.json")
    assert f"{index}: 3 shards" in capsys.readouterr().out
    splits = [
        f"data.splits.{name}={{group: /, rows: [{a}, {b}]}}" for name, a, b in (("train", 0, 0.8), ("val", 0.8, 1))
    ]
    fields = ("data.fields={x: x, y: y}", "data.splits.test=null", "~data.transforms.to_float", "data.num_outputs=5")
    given = (*QUICK, f"data.path={index}", *splits, *fields, "trainer.global_batch_size=8", "trainer.max_steps=4")
    run = start_run(tmp_path / "run", *given, "model.hidden=[8]")
    assert result(run)["step"] == 4
