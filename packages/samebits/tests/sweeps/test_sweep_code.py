"""The code of a sweep's jobs where it changes between two commands, and the modules that their processes find."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from samebits.code import code_here, code_of, source, surroundings
from samebits.files import read_text, write_json
from samebits.runs.directory import ENVIRONMENT
from samebits.sweeps import ray_cluster
from samebits.sweeps.job_process import OUTPUT
from samebits.sweeps.ledger import record_code


def library(folder: Path, version: str) -> Path:
    (folder / "rows_of").mkdir(parents=True, exist_ok=True)
    (folder / "rows_of/__init__.py").write_text(f'__version__ = "{version}"\n')
    return folder


def test_a_sweep_that_goes_on_with_another_library_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its jobs that have not run get the present one. A job whose directory was deleted has none."""
    monkeypatch.setattr(source, "LIBRARIES", ("rows_of",))
    monkeypatch.syspath_prepend(str(library(tmp_path / "site", "0.2.0")))
    (tmp_path / "src").mkdir()
    jobs = []
    for number, state in enumerate(("finished", "queued", "failed")):
        folder = tmp_path / f"job-{number}"
        job = SimpleNamespace(number=number, directory=folder, state=lambda state=state: state, exists=folder.exists)
        job.directory.mkdir()
        write_json(job.directory / ENVIRONMENT, surroundings(tmp_path).environment)
        jobs.append(job)
    lost = tmp_path / "lost"
    jobs.append(SimpleNamespace(number=3, directory=lost, state=lambda: "queued", exists=lost.exists))
    ledger: Any = SimpleNamespace(name="s", project=SimpleNamespace(root=tmp_path), jobs=jobs)
    began = code_here(tmp_path)
    assert record_code(ledger) == ""
    library(tmp_path / "site", "0.2.1")
    assert record_code(ledger) == (
        f"sweep s goes on with other code (rows_of 0.2.0 -> 0.2.1): jobs 0, 2 with {began} ran before, now it is "
        f"{code_here(tmp_path)}. What has finished is kept; sweep=ANOTHER_NAME runs all with one code"
    )
    assert [code_of(job.directory) == code_here(tmp_path) for job in jobs[:3]] == [False, True, False]
    assert not lost.exists()


def test_jobs_on_other_nodes_find_the_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library(tmp_path / "packages/rows-of/src", "0.2.0")
    (tmp_path / "src").mkdir()
    (tmp_path / "src/train.py").write_text("import rows_of\nprint(rows_of.__version__, flush=True)\n")
    monkeypatch.setenv("PYTHONPATH", "")  # which is put back
    monkeypatch.delenv("PYTHONPATH")
    assert ray_cluster.run_directory(tmp_path, str(tmp_path), {}) == 0
    assert read_text(tmp_path / OUTPUT) == "0.2.0\n"
