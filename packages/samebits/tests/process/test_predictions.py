"""Parts of predictions become one file in the order of the rows."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from samebits import predictions


@pytest.mark.parametrize("lanes", [1, 5])
def test_rows_are_in_order_whatever_the_order_and_the_size_of_the_parts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lanes: int
) -> None:
    """A task with lanes predicts row k of each lane together, and a block has some of the rows."""
    monkeypatch.setattr(predictions, "BLOCK", 100)
    values, texts = np.random.default_rng(0).random((50, 2)), [f"text {k}" for k in range(50)]
    parts = [tmp_path / f"{rank}.h5" for rank in range(2)]
    for rank, path in enumerate(parts):
        part = predictions.Part(path)
        for rows in np.split(np.arange(50).reshape(lanes, -1).T.ravel()[rank::2], 5):
            part.append(rows, {"output": values[rows], "text": [texts[row] for row in rows]})
        part.close()
    predictions.assemble(parts, tmp_path / "all.npz", {})
    found = np.load(tmp_path / "all.npz")
    assert found["row"].tolist() == list(range(50))
    np.testing.assert_array_equal(found["output"], values)
    assert found["text"].tolist() == texts
