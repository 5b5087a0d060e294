"""docs/parquet.md: its commands run, on files as it names them."""

from __future__ import annotations

import shlex
from pathlib import Path

import numpy as np
import pytest
from pages import DOCS, OURS, commands

from samebits.testing import result, start_run

pytestmark = [pytest.mark.skipif(not OURS, reason="of the template's docs"), pytest.mark.slow]
PAGE = "parquet.md"


@pytest.mark.parametrize("number", range(len(commands(DOCS.get(PAGE, "")))))
def test_a_command_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int) -> None:
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    words = shlex.split(commands(DOCS[PAGE])[number])
    if "data=parquet" not in words:
        monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")
    rng = np.random.default_rng(0)
    (tmp_path / "animals").mkdir()
    (tmp_path / "vectors").mkdir()
    for k, split in enumerate(("train", "validation", "test", "more")):
        label = rng.integers(0, 2, 50)
        columns = {name: label + rng.normal(size=50) for name in ("age", "height", "weight")}
        named = {"species": np.array(["cat", "dog"])[label], "patient": np.arange(50) // 3 + 100 * k}
        pq.write_table(pa.table(columns | named), tmp_path / f"animals/part-{k}.parquet", row_group_size=16)
        vectors = pa.FixedSizeListArray.from_arrays(rng.normal(size=100).astype("f4"), 2)
        if split != "more":
            pq.write_table(pa.table({"embedding": vectors, "label": label}), tmp_path / f"vectors/{split}.parquet")
    assert words[:2] == ["./run", "train"]
    given = [word[10:].replace("s3://bucket/", "") for word in words if word.startswith("data.path=")]
    paths = [f"data.path={tmp_path / path}" for path in given]
    small = (
        "logger=none",
        "hardware=cpu",
        "hardware.num_threads=1",
        "model.hidden=[8]",
        "trainer.global_batch_size=16",
    )
    run = start_run(tmp_path / "run", *words[2:], *paths, *small)
    assert np.isfinite(result(run)["val/loss"])
