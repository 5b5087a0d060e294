"""The commands that errors, inspect and pack print train."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from common import ROOT, TRAIN
from pages import FENCE
from test_meaning import FILES, ROWS, cell_ranger, climate, made

from h5rows import integration
from lab.notebook import compose
from lab.project import command_for
from samebits.testing.processes import limit, warm


def trains_on(path: Path) -> list[str]:
    found = integration.suggestion(str(path))
    assert found is not None
    return shlex.split(command_for(str(path), *found))


@pytest.mark.slow
@pytest.mark.parametrize("kind", FILES)
def test_what_the_first_error_prints_trains(tmp_path: Path, kind: str) -> None:
    """Without any field named. The error is made alike for all kinds."""
    path = made(kind, tmp_path)
    command = trains_on(path)
    options = ["logger=none", "trainer.max_steps=3", "trainer.max_epochs=null", "trainer.global_batch_size=4"]
    run = {"cwd": tmp_path, "capture_output": True, "text": True, "timeout": limit(60)}
    if kind == "netcdf":
        first = warm.run([*TRAIN, f"data.path={path}", *options], **run)
        assert first.returncode == 2
        assert first.stderr.count("\n") == 1
        assert shlex.join(command) in first.stderr
    done = warm.run([*TRAIN, *command[2:], *options], **run)
    assert done.returncode == 0, done.stderr
    assert "finished 3 steps" in done.stdout + done.stderr


UNRELATED = ("data.path=", "data.fields.", "data.split_ratio=")


def test_missing_values_are_marked_in_a_table_and_replaced_in_images(tmp_path: Path) -> None:
    """In a table, 0 would look like a value of the column."""
    path, values = tmp_path / "a.h5", np.random.default_rng(0).normal(size=(40, 3, 4))
    values[0, 0, 0] = np.nan
    marked = [
        "data/transforms=[to_float,normalize,missing]",
        *(f"data.transforms.normalize.{one}=auto" for one in ("mean", "std")),
    ]
    for x, said in ((values[:, 0], marked), (values, ["data.missing={x: 0}"])):
        with h5py.File(path, "w") as file:
            file["x"], file["label"] = x, np.arange(40) % 2
        assert [word for word in trains_on(path)[2:] if not word.startswith(UNRELATED)] == said


def inspected(path: Path) -> str:
    command = [sys.executable, str(Path(TRAIN[1]).with_name("h5.py")), "inspect", path.name]
    return warm.run(command, cwd=path.parent, capture_output=True, text=True, timeout=limit(60)).stdout


def test_what_inspect_prints_of_bool_labels_trains(tmp_path: Path) -> None:
    draw, path = np.random.default_rng(0), tmp_path / "bool.h5"
    with h5py.File(path, "w") as file:
        file["x"], file["label"] = draw.random((60, 3)), draw.random(60) > 0.5
    found = re.search(r"train on it:\n  \./run train (.*)", inspected(path))
    assert found is not None
    options = ["logger=none", "trainer.max_steps=3", "trainer.max_epochs=null", "trainer.global_batch_size=4"]
    done = warm.run([*TRAIN, *shlex.split(found[1]), *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_command_is_printed_that_cannot_train(tmp_path: Path) -> None:
    """Each row of y lacks a value; a sparse matrix of 10x Genomics, whose cells have no labels."""
    draw = np.random.default_rng(0)
    with h5py.File(tmp_path / "gaps.h5", "w") as file:
        y = draw.random((60, 20))
        y[np.arange(60), np.arange(60) % 20] = np.nan
        file["x"], file["y"] = draw.random((60, 3)), y
    with h5py.File(tmp_path / "cells.h5", "w") as file:
        there = draw.random((10, 30)) < 0.3
        file["matrix/data"], file["matrix/indices"] = np.arange(there.sum()) + 1, np.nonzero(there)[1]
        file["matrix/indptr"], file["matrix/shape"] = np.r_[0, there.sum(1).cumsum()], np.array([30, 10])
    gaps, cells = inspected(tmp_path / "gaps.h5"), inspected(tmp_path / "cells.h5")
    assert "y: could be x, but not y: only 0 of its rows have no missing values" in gaps
    assert "x could be matrix: 10 samples of (30,)" in cells
    assert "./run train" not in gaps + cells


@pytest.mark.slow
def test_labels_of_barcodes_are_written_as_the_page_shows(tmp_path: Path) -> None:
    """Another order of the table; then the command that inspect prints trains."""
    page = (ROOT / "docs/existing_hdf5.md").read_text()
    (script,) = [body for _, kind, body in FENCE.findall(page) if kind == "python" and "clusters.csv" in body]
    path = tmp_path / "filtered_feature_bc_matrix.h5"
    cell_ranger(path, labels=False)
    assert "no command: the file has no labels" in inspected(path)
    rows = [f"ACGT{k:04}-1,{k % 4 + 1}" for k in reversed(range(ROWS))]
    (tmp_path / "clusters.csv").write_text("\n".join(["Barcode,Cluster", *rows]))
    warm.run([sys.executable, "-c", script], cwd=tmp_path, check=True)
    with h5py.File(path) as file:
        assert file["label"].asstr()[:].tolist() == [f"{k % 4 + 1}" for k in range(ROWS)]
    found = re.search(r"y could be label@classes: .* 4 classes\ntrain on it:\n  \./run train (.*)", inspected(path))
    assert found is not None
    options = ["logger=none", "trainer.max_steps=3", "trainer.max_epochs=null", "trainer.global_batch_size=4"]
    done = warm.run([*TRAIN, *shlex.split(found[1]), *options], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_what_is_not_finite_is_named(tmp_path: Path) -> None:
    """A run on values that are missing names the field, the row and the file; what was split is what is saved."""
    path = made("netcdf", tmp_path)
    command = [*TRAIN, f"data.path={path}", "data.fields.x=rain", "data.fields.y=level", "data.split_ratio=80/20"]
    options = ["task=regression", "logger=none", "trainer.max_steps=3", "trainer.max_epochs=null"]
    done = warm.run(
        [*command, *options, f"hydra.run.dir={tmp_path / 'run'}"],
        cwd=tmp_path, capture_output=True, text=True, timeout=limit(60),
    )  # fmt: skip
    assert done.returncode == 1
    assert re.search(rf"x of row \d+ of {path} contains nan; data.missing sets", done.stderr.splitlines()[-1])
    assert "of its values are missing" in done.stdout + done.stderr
    saved = (tmp_path / "run" / "config.yaml").read_text()
    assert "by: random" in saved
    assert "split_ratio: null" in saved


def test_a_fill_value_of_strings(tmp_path: Path) -> None:
    """HDF5 2.0 crashes where two handles have such a dataset and one of them is closed."""
    path = tmp_path / "a.h5"
    with h5py.File(path, "w") as file:
        words = [f"w{k % 3}" for k in range(ROWS)]
        file.create_dataset("label", data=words, dtype=h5py.string_dtype(), fillvalue="none")
        file["x"] = np.ones((ROWS, 2), np.float32)
    command = [sys.executable, "-m", "h5rows", "inspect", str(path)]
    told = warm.run(command, capture_output=True, text=True, timeout=limit(60))
    assert told.returncode == 0, told.stderr
    assert "y could be label@classes" in told.stdout


@pytest.mark.parametrize("name", ["a=b.nc", "a, b.nc", "it's.nc", "[1].nc", "a {x}: y.nc", "ä (1).nc", "null", 'a"b'])
def test_the_command_names_any_path(tmp_path: Path, name: str) -> None:
    climate(path := tmp_path / name)
    assert compose(trains_on(path)[2:]).data.path == str(path)


def test_what_pack_prints_of_sequences_names_their_experiment(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    for k in range(30):
        np.save(tmp_path / "in" / f"{k:02}.npy", np.arange(k + 1))
    command = [sys.executable, str(Path(TRAIN[1]).with_name("h5.py")), "pack", "in", "out.h5"]
    options = ("--variable", "--split", "val=0.1")
    done = warm.run([*command, *options], cwd=tmp_path, capture_output=True, text=True, timeout=limit(60))
    shown = done.stdout.splitlines()[-1]
    assert "experiment=sequences" in shown, done
    assert "data.fields.tokens=x" in shown
