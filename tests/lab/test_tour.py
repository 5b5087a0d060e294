"""notebooks/tour.ipynb runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from common import ROOT

from samebits.testing.processes import limit

NOTEBOOK = ROOT / "notebooks/tour.ipynb"


@pytest.mark.slow
def test_the_shipped_notebook_runs(tmp_path: Path) -> None:
    nbclient, nbformat = pytest.importorskip("nbclient"), pytest.importorskip("nbformat")
    notebook = nbformat.read(NOTEBOOK, as_version=4)
    client = nbclient.NotebookClient(notebook, timeout=int(limit(120)), resources={"metadata": {"path": str(tmp_path)}})
    client.execute()
    assert not [cell for cell in json.loads(NOTEBOOK.read_text())["cells"] if cell.get("outputs")]  # none committed
    texts = [output.get("text", "") for cell in notebook.cells for output in cell.get("outputs", [])]
    assert any("finished 100 steps" in text for text in texts)
    assert any("image/png" in output.get("data", {}) for cell in notebook.cells for output in cell.get("outputs", []))
