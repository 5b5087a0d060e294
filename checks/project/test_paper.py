"""docs/paper.md: its files and commands, in a copy of the project, on fewer models, rates, seeds and steps."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import numpy as np
import pytest
from common import needs
from fork import copy_of_the_project, run_python, run_undrawn
from pages import DOCS, FENCE, commands, write_files

pytestmark = needs("docs/paper.md", "src/report.py", "src/h5.py")
FEWER = {"model": "model=logistic,conv", "optim.lr": "optim.lr=3e-3,1e-2", "seed": "seed=0"}
QUICK = ("trainer.max_steps=4", "trainer.eval_every=2", "hardware.num_threads=1")


@pytest.mark.slow
def test_the_page_s_commands_give_the_table(tmp_path: Path) -> None:
    """2 models x 2 rates x 1 seed; the data is made here, as mnist1d is not among the packages of the tests."""
    clone = copy_of_the_project(tmp_path / "clone")
    write_files(DOCS["paper.md"], clone)
    random = np.random.default_rng(0)
    arrays = {f"x_{split}": random.normal(size=(n, 40)).astype("float32") for split, n in (("train", 80), ("test", 40))}
    labels = {f"y_{split}": np.arange(n) % 10 for split, n in (("train", 80), ("test", 40))}
    np.savez(clone / "mnist1d.npz", **arrays, **labels)
    typed = [shlex.split(line)[1:] for line in commands(DOCS["paper.md"])]
    assert [words[0] for words in typed[:2]] == ["pip", "python"]  # what makes mnist1d.npz
    for name, *words in typed[2:]:
        if name == "train":
            words = [FEWER.get(word.partition("=")[0], word) for word in words] + [*QUICK, "logger=none"]
        if name == "h5":
            run_python(clone, "src/h5.py", *words)
        else:
            run_undrawn(clone, name, *words)
    table = (clone / "outputs/mnist1d/sweeps/table/paper/table.md").read_text()
    assert re.search(r"^\| logistic \| .* \| 1 \|\n\| conv \| .* \| 1 \|$", table, re.MULTILINE)
    assert re.search(r"^- conv: lr=0\.\d+ \(val/accuracy ", table, re.MULTILINE)
    assert (clone / "outputs/mnist1d/sweeps/table/paper/table.tex").exists()


def test_the_page_s_files_are_sound(tmp_path: Path) -> None:
    """Its Python files pass the project's checks; its models give logits of the right shape."""
    torch = pytest.importorskip("torch")
    code = {file: body for file, kind, body in FENCE.findall(DOCS["paper.md"]) if kind == "python"}
    (tmp_path / "signals.py").write_text(code["src/lab/models/signals.py"])
    sys.path.insert(0, str(tmp_path))
    try:
        import signals

        x = torch.zeros(3, 40)
        assert signals.Conv([40], 10, 25)(x).shape == signals.GRU([40], 10, 6)(x).shape == (3, 10)
        sizes = [sum(p.numel() for p in m.parameters()) for m in (signals.Conv([40], 10, 25), signals.GRU([40], 10, 6))]
        assert sizes == [5210, 5134]
    finally:
        sys.path.remove(str(tmp_path))
        sys.modules.pop("signals", None)
