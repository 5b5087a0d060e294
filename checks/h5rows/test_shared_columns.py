"""The ranks of a machine share the columns that their splits need: one of them reads each."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from common import QUICK, ROOT

import h5rows
from samebits.testing import metrics, result, start_run, status
from samebits.testing.processes import called, limit, wait_for, warm

DDP = (*QUICK, "trainer=ddp", "trainer.max_steps=3", "trainer.log_every=1", "data.fields={x: x, y: y}")
# as many ranks as torchrun starts; a column is read by `read`
SCRIPT = """
import inspect, os, sys, time, pathlib
sys.path.insert(0, {src!r})
import h5rows, train
dataset = inspect.getmodule(h5rows.Dataset)
own, folder = dataset.column_of, pathlib.Path({folder!r})
def read(*given):
    (folder / ("reads" + os.environ["RANK"])).write_text(str(os.getpid()))
    while {hangs}:
        time.sleep(0.05)
    return own(*given)
dataset.column_of = read
sys.exit(train.main())
"""


@pytest.fixture
def overrides(tmp_path: Path) -> tuple[str, ...]:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        rng = np.random.default_rng(0)
        file["x"], file["y"] = rng.standard_normal((400, 4), dtype=np.float32), np.arange(400) % 3
        file["patient"] = [f"patient {k}" for k in rng.integers(0, 50, 400)]
    keys = ("data.split_ratio=80/10/10", "data.split_by=patient", f"hydra.run.dir={tmp_path}/run")
    return (*DDP, f"data.path={tmp_path}/a.h5", *keys)


def torchrun(folder: Path, overrides: tuple[str, ...], hangs: bool = False) -> list[str]:
    (folder / "counted.py").write_text(SCRIPT.format(src=str(ROOT / "src"), folder=str(folder), hangs=hangs))
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    return [*command, str(folder / "counted.py"), *overrides]


def losses(run: Path) -> list[Any]:
    return [{key: value for key, value in line.items() if "loss" in key} for line in metrics(run)]


@pytest.mark.slow
def test_one_rank_reads_a_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, overrides: tuple[str, ...]) -> None:
    """With ranks that this project starts, and with torchrun; the bits are those of ranks that each read it."""
    dataset: Any = inspect.getmodule(h5rows.Dataset)
    own, reads = dataset.column_of, tmp_path / "reads"

    def read(*given: Any) -> Any:
        with reads.open("a") as file:
            file.write(f"{os.getpid()}\n")
        return own(*given)

    monkeypatch.setattr(dataset, "column_of", read)
    shared = start_run(tmp_path / "shared", *overrides[:-1], "hardware.num_procs=2")
    assert len(reads.read_text().split()) == 1
    monkeypatch.delattr(os, "memfd_create")
    apart = start_run(tmp_path / "apart", *overrides[:-1], "hardware.num_procs=2")
    assert len(reads.read_text().split()) == 3
    called(torchrun(tmp_path, overrides))
    assert len([*tmp_path.glob("reads?")]) == 1
    assert losses(tmp_path / "run") == losses(shared) == losses(apart) != []
    assert result(shared)["test/loss"] == result(apart)["test/loss"]


@pytest.mark.slow
def test_an_error_in_a_column_ends_all_ranks(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    done = called(torchrun(tmp_path, (*overrides, "data.split_by=x")), code=None)
    assert done.returncode != 0
    lines = [line.split(": ", 1) for line in done.stderr.splitlines() if line.startswith(("error:", "failed:"))]
    assert {line for _, line in lines} == {
        "data.splits.train.by=x: has rows of the shape (4,); must have one value per row"
    }, done.stderr


@pytest.mark.slow
def test_a_rank_killed_while_it_reads_blocks_nobody(tmp_path: Path, overrides: tuple[str, ...]) -> None:
    """The kernel releases its lock, and the other rank ends with the cause."""
    process = warm.Popen(torchrun(tmp_path, overrides, hangs=True), stderr=subprocess.PIPE, text=True)
    wait_for(lambda: any(path.stat().st_size for path in tmp_path.glob("reads?")), process)
    (mark,) = tmp_path.glob("reads?")
    os.kill(int(mark.read_text()), signal.SIGKILL)
    _, shown = process.communicate(timeout=limit(60))
    assert process.returncode == 1
    assert f"rank {mark.name[-1]}" in shown + str(status(tmp_path / "run").get("error"))
