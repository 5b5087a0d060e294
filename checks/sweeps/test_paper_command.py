"""The paper's table: equal to a few lines by hand, chosen by validation alone, and one line for each mistake."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
from common import ROOT

from samebits.testing.processes import called

# -- as typed ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    folder = tmp_path / "sweep"
    jobs = []
    for i, (model, lr) in enumerate([("a", 0.1), ("a", 0.2), ("b", 0.1), ("b", 0.2)]):
        (folder / str(i)).mkdir(parents=True)
        values = [f"model={model}", f"optim.lr={lr}", "seed=0"]
        texts = {
            "status.json": json.dumps({"status": "finished"}), "config.yaml": f"seed: 0\noptim: {{lr: {lr}}}\n",
            "result.json": json.dumps({"val/loss": lr if model == "a" else -lr, "test/loss": float(i)}),
        }  # fmt: skip
        for name, text in texts.items():
            (folder / str(i) / name).write_text(text)
        jobs.append({"key": str(i), "number": i, "overrides": values})
    facts = {"name": "s", "jobs": jobs, "swept": ["model", "optim.lr", "seed"], "objectives": []}
    (folder / "sweep.json").write_text(json.dumps(facts))
    return folder


def report(*arguments: str | Path, code: int = 0) -> subprocess.CompletedProcess[str]:
    return called([sys.executable, str(ROOT / "src/report.py"), *map(str, arguments)], code, cwd=ROOT)


@pytest.mark.slow
def test_the_command_prints_the_table_and_names_its_files(sweep: Path) -> None:
    done = report(sweep, "--rows", "model", "--metrics", "test/loss")
    assert "| a | **0** | 1 |\n| b | 3‡ | 1 |" in done.stdout
    assert "a: lr=0.1 (val/loss 0.1, n = 1)" in done.stdout
    for name in ("table.md", "table.csv", "table.tex"):
        assert (sweep / "paper" / name).exists()
        assert f"paper/{name}" in done.stdout
    assert not find_spec("plotly") or '"title":"The paper\'s table"' in (sweep / "report.html").read_text()


@pytest.mark.slow
def test_a_test_score_chooses_only_where_that_is_asked_for_and_said(sweep: Path) -> None:
    for half in (("--rows", "model"), ("--metrics", "test/loss"), ("--columns", "data")):
        said = "error: a paper's table needs its rows and its scores: --rows model --metrics test/accuracy\n"
        assert report(sweep, *half, code=2).stderr == said
    for wanted in ((), ("--rows", "model", "--metrics", "test/loss")):
        done = report(sweep, "--score", "test/loss:max", *wanted, code=2)
        assert done.stderr.startswith("error: test/loss is a test score, and the best would be chosen by it")
        assert "--choose-on-test" in done.stderr
        assert done.stderr.count("\n") == 1
        assert not (sweep / "report.md").exists()
    done = report(sweep, "--score", "test/loss:max", "--choose-on-test", "--rows", "model", "--metrics", "test/loss")
    assert "| a | 1‡ | 1 |\n| b | **3** | 1 |" in done.stdout
    files = ["report.md", "table.tex", "groups.csv", "paper/table.md", "paper/table.csv", "paper/table.tex"]
    files += ["report.html"] if (sweep / "report.html").exists() else []
    assert all("CHOSEN ON TEST" in (sweep / name).read_text() for name in files)
