"""Files that other programs wrote, from the packages of their own libraries: each trains with the command that
`inspect` prints, or is refused for a true reason, and its values are those of its library.

Skipped where pip cannot fetch the packages, the judges' part where the library is not installed (`./run pip install
anndata mat73 nexusformat tables`). What was fetched stays in outputs/real_files.
"""

from __future__ import annotations

import functools
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from common import ROOT, TRAIN
from netcdf import netcdf4

import h5rows
from h5rows import integration
from lab.project import command_for
from samebits.testing.processes import limit, warm

KEPT = ROOT / "outputs" / "real_files"
ANNDATA, NEXUS, TABLES = "anndata==0.12.19", "nexusformat==2.1.0", "tables==3.11.1"
MATLAB, NETCDF = "pymatreader==1.3.2", "cfdm==1.13.3.0"
DATA = "pymatreader-1.3.2/tests/test_data"

# (package, file, kind, fields of the suggestion, or words of the reason why there is none)
FILES: list[tuple[str, str, str, tuple[str, str] | str]] = [
    (NETCDF, "cfdm-1.13.3.0/cfdm/test/example_field_0.nc", "netcdf", ("q", "lat")),
    (ANNDATA, "anndata-0.12.19/tests/data/archives/v0.5.0/adata.h5ad", "anndata", ("X", "obs/bulk_labels")),
    (ANNDATA, "anndata-0.12.19/tests/data/archives/v0.7.8/adata.h5ad", "anndata", ("X", "obs/cat_ordered")),
    (ANNDATA, "anndata-0.12.19/tests/data/archives/v0.11.4/adata.h5ad", "anndata", "no rows of numbers"),
    (
        NEXUS, "nexusformat-2.1.0/src/nexusformat/examples/chopper.nxs", "nexus",
        ("entry/data", "entry/instrument/detector/distance"),
    ),
    (MATLAB, f"{DATA}/v73.mat", "matlab", ("a_matrix", "a_cell_array")),
    (MATLAB, f"{DATA}/string_v73.mat", "matlab", "is a MATLAB string"),
    (TABLES, "tables/tests/indexes_2_1.h5", "pytables", ("table1/var2", "table2/var2")),
    (TABLES, "tables/tests/Tables_lzo1.h5", "pytables", "needs the filter LZO (number 305)"),
]  # fmt: skip
IDS = [f"{kind}-{Path(name).parent.name}-{Path(name).name}" for _, name, kind, _ in FILES]
EACH = pytest.mark.parametrize(("package", "name", "kind", "expected"), FILES, ids=IDS)


@functools.cache
def fetched(package: str) -> Path:
    """The folder of a distribution, as pip fetches it: the source, of tables the wheel, which needs no build."""
    folder, wanted = KEPT / package, "--only-binary" if package == TABLES else "--no-binary"
    if not folder.exists():
        part = folder.with_name(f"{package}.{id(folder)}.part")
        part.mkdir(parents=True)
        command = [sys.executable, *f"-m pip download -q --no-deps {wanted} :all: -d".split(), str(part), package]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=limit(120))
        except subprocess.TimeoutExpired:
            pytest.skip(f"pip did not fetch {package} in time")
        if done.returncode:
            pytest.skip(f"pip cannot fetch {package}: {(done.stderr.strip().splitlines() or ['?'])[-1]}")
        for archive in [*part.glob("*.tar.gz"), *part.glob("*.whl")]:
            shutil.unpack_archive(archive, part, "zip" if archive.suffix == ".whl" else "gztar")
            archive.unlink()
        try:
            part.rename(folder)
        except OSError:  # another process was quicker
            shutil.rmtree(part)
    return folder


@pytest.mark.slow
@EACH
def test_it_trains_at_the_first_try_or_says_why_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], package: str, name: str, kind: str, expected: Any
) -> None:
    path = str(fetched(package) / name)
    found = integration.suggestion(path)
    if isinstance(expected, str):
        assert found is None
        h5rows.inspect(path)
        assert expected in capsys.readouterr().out
        return
    assert found is not None
    assert (found[0]["fields.x"], found[0]["fields.y"]) == expected
    options = ["logger=none", "trainer.max_steps=3", f"hydra.run.dir={tmp_path}/run"]
    command = [*TRAIN, *shlex.split(command_for(path, *found))[2:], *options]
    done = warm.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=limit(60))
    assert done.returncode == 0, done.stderr


def netcdf_values(path: str) -> Iterator[tuple[str, Any]]:
    with netcdf4().Dataset(path) as file:
        for name, variable in file.variables.items():
            if variable.ndim:
                values = variable[:]
                yield name, values.filled(np.nan) if np.ma.is_masked(values) else np.ma.getdata(values)


def anndata_values(path: str) -> Iterator[tuple[str, Any]]:
    read = pytest.importorskip("anndata").read_h5ad(path)
    if read.X is not None:
        yield "X", read.X.toarray() if hasattr(read.X, "toarray") else read.X
    for name, column in read.obs.items():
        yield f"obs/{name}", np.asarray(column.cat.codes if column.dtype.name == "category" else column)


def nexus_values(path: str) -> Iterator[tuple[str, Any]]:
    read = pytest.importorskip("nexusformat.nexus").nxload(path)
    names: list[str] = []
    with h5py.File(path) as file:
        file.visititems(lambda name, item: names.append(name) if getattr(item, "shape", ()) else None)
    with read.nxfile:
        yield from ((name, np.asarray(read[name].nxvalue)) for name in names)


def matlab_values(path: str) -> Iterator[tuple[str, Any]]:
    def below(values: dict[str, Any], prefix: str) -> Iterator[tuple[str, Any]]:
        for name, value in values.items():
            if isinstance(value, dict):
                yield from below(value, f"{prefix}{name}/")
            elif isinstance(value, np.ndarray):
                yield prefix + name, value

    yield from below(pytest.importorskip("mat73").loadmat(path), "")


def table_values(path: str) -> Iterator[tuple[str, Any]]:
    with pytest.importorskip("tables").open_file(path) as file:
        for table in file.walk_nodes("/", "Table"):
            for name in table.colnames:
                yield f"{table._v_pathname[1:]}/{name}", table.col(name)


VALUES: dict[str, Callable[[str], Iterator[tuple[str, Any]]]] = {
    "netcdf": netcdf_values, "anndata": anndata_values, "nexus": nexus_values, "matlab": matlab_values,
    "pytables": table_values,
}  # fmt: skip


@pytest.mark.slow
@EACH
def test_values_are_those_of_its_library(package: str, name: str, kind: str, expected: Any) -> None:
    if isinstance(expected, str):
        return
    path, compared = str(fetched(package) / name), 0
    for field, theirs in VALUES[kind](path):
        if theirs.dtype.kind in "biuf":
            ours = h5rows.Dataset(path, {"x": field}, decode=True, cache_mb=64).column("x")
            last = kind == "matlab" and theirs.ndim > 1 and ours.shape[:1] != theirs.shape[:1]  # along that
            there = (np.moveaxis(theirs, -1, 0) if last else theirs).reshape(ours.shape)
            assert np.array_equal(ours, there, equal_nan=ours.dtype.kind == "f"), field
            compared += 1
    assert compared
