"""What programs mean by their files: the values are those that netCDF4, MATLAB and AnnData show."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from netcdf import netcdf4

import h5rows
from h5rows import ConfigError, integration
from h5rows.conventions.choice import choose
from h5rows.conventions.detect import kind_of
from h5rows.integration import shares_of
from h5rows.packing.inspect import meaning_of

pytestmark = pytest.mark.usefixtures("in_a_program")
ROWS = 40


def matlab(file: h5py.File, name: str, values: Any, kind: str = "double") -> None:
    """As MATLAB writes an array: its axes the other way round."""
    dset = file.create_dataset(name, data=np.asarray(values).T)
    dset.attrs["MATLAB_class"] = np.bytes_(kind)


def sparse(file: h5py.File, name: str, dense: np.ndarray, kind: str) -> None:
    """As AnnData writes a matrix by rows (csr) or by columns (csc)."""
    by = dense if kind == "csr" else dense.T
    group = file.create_group(name)
    group.attrs.update({"encoding-type": f"{kind}_matrix", "encoding-version": "0.1.0", "shape": dense.shape})
    group["data"], group["indices"] = by[by != 0], np.nonzero(by)[1].astype(np.int32)
    group["indptr"] = np.concatenate([[0], np.cumsum((by != 0).sum(1))]).astype(np.int32)


def categorical(file: h5py.File, name: str, codes: np.ndarray, names: list[str]) -> None:
    group = file.create_group(name)
    group.attrs["encoding-type"] = "categorical"
    group["codes"], group["categories"] = codes.astype(np.int8), names


def climate(path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["_NCProperties"] = "version=2"
        packed = rng.integers(0, 1000, (ROWS, 6)).astype(np.int16)
        packed[rng.random(packed.shape) < 0.3] = -1
        rain = file.create_dataset("rain", data=packed)
        rain.attrs.update({"_FillValue": np.int16(-1), "scale_factor": np.float32(0.01), "add_offset": np.float32(5)})
        file["level"] = rng.normal(size=ROWS).astype(np.float32)


def arrays(path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w", userblock_size=512) as file:
        matlab(file, "X", rng.normal(size=(ROWS, 5)))
        matlab(file, "images", rng.integers(0, 255, (6, 4, 3, ROWS), np.uint8), "uint8")
        matlab(file, "labels", rng.integers(1, 4, (ROWS, 1)).astype(float))


def cells(path: Path) -> None:
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs["encoding-type"] = "anndata"
        sparse(file, "X", rng.poisson(0.3, (ROWS, 9)).astype(np.float32), "csr")
        categorical(file, "obs/kind", rng.integers(0, 3, ROWS), ["B", "NK", "T"])
        file["obs/_index"], file["var/_index"] = [f"c{k}" for k in range(ROWS)], [f"g{k}" for k in range(9)]


def scattering(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.attrs["default"] = "entry"
        entry = file.create_group("entry/run")
        entry.attrs.update({"NX_class": "NXdata", "signal": "counts"})
        file["entry"].attrs.update({"NX_class": "NXentry", "default": "run"})
        entry["counts"] = np.random.default_rng(0).integers(0, 50, (ROWS, 7), np.int32)
        entry["angle"] = np.linspace(0, 1, ROWS)


def references(file: h5py.File, name: str, values: list[Any], kind: str = "double") -> None:
    """As MATLAB writes a cell array N x 1."""
    for k, value in enumerate(values):
        matlab(file, f"#refs#/{name}{k}", value, kind)
    held = np.array([[file[f"#refs#/{name}{k}"].ref for k in range(len(values))]], h5py.ref_dtype)
    file.create_dataset(name, data=held, dtype=h5py.ref_dtype).attrs["MATLAB_class"] = np.bytes_("cell")


def cell_ranger(path: Path, labels: bool = True) -> np.ndarray:
    """filtered_feature_bc_matrix.h5: features x barcodes by columns -> (barcodes, features)."""
    dense = np.random.default_rng(0).poisson(0.3, (ROWS, 9)).astype(np.int32)
    with h5py.File(path, "w") as file:
        file.attrs.update({"filetype": "matrix", "version": np.int64(2), "library_ids": np.array([b"s1"])})
        group = file.create_group("matrix")
        group["barcodes"] = np.array([f"ACGT{k:04}-1" for k in range(ROWS)], "S18")
        for name, values in (
            ("data", dense[dense != 0]), ("indices", np.nonzero(dense)[1].astype(np.int64)),
            ("indptr", np.concatenate([[0], np.cumsum((dense != 0).sum(1))]).astype(np.int64)),
        ):  # fmt: skip
            group.create_dataset(name, data=values, chunks=(16,), compression="gzip")
        group["shape"] = np.array(dense.T.shape, np.int32)
        for name, values in (("id", "ENSG"), ("name", "gene"), ("feature_type", "Gene Expression"), ("genome", "hg")):
            group[f"features/{name}"] = np.array([f"{values}{k}" for k in range(9)], "S20")
        group["features/_all_tag_keys"] = np.array([b"genome"])
        if labels:
            file["label"] = [f"cluster {k % 3}" for k in range(ROWS)]
    return dense


def neurons(path: Path) -> None:
    """As pynwb writes a session: two time series, a table of units with spike times of different number."""
    rng = np.random.default_rng(0)
    with h5py.File(path, "w") as file:
        file.attrs.update({"nwb_version": "2.7.0", "neurodata_type": "NWBFile", "namespace": "core"})
        file["session_description"], file["file_create_date"] = "a test", ["2026-01-01T00:00:00+00:00"]
        file["general/extracellular_ephys/electrodes/id"] = np.arange(4)
        for name, width in (("acquisition/ephys", 4), ("processing/behavior/Position/SpatialSeries", 2)):
            group = file.create_group(name)
            group["data"], group["timestamps"] = rng.normal(size=(ROWS, width)), np.arange(ROWS) / 10
            group["data"].attrs.update({"conversion": 1e-6, "resolution": -1.0, "unit": "volts"})
            group["timestamps"].attrs.update({"interval": np.int32(1), "unit": "seconds"})
        units = file.create_group("units")
        units.attrs.update({"neurodata_type": "Units", "colnames": ["spike_times"]})
        units["spike_times"], units["spike_times_index"] = np.arange(20) / 7, np.array([0, 3, 3, 12, 20], np.uint8)
        units["spike_times_index"].attrs.update({"neurodata_type": "VectorIndex", "target": units["spike_times"].ref})
        units["id"] = np.arange(5)


def table(path: Path) -> None:
    rows = np.zeros(ROWS, [("energy", "f4"), ("name", "S5"), ("hits", "f4", (3,)), ("label", "i4")])
    rows["energy"], rows["label"] = np.random.default_rng(0).normal(size=ROWS), np.arange(ROWS) % 2
    with h5py.File(path, "w") as file:
        file.attrs["PYTABLES_FORMAT_VERSION"] = "2.1"
        file.create_dataset("particles", data=rows, chunks=(8,))


def genes(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("matrix", data=np.arange(9.0 * ROWS).reshape(9, ROWS), chunks=(9, 16), compression="gzip")
        file["layers/spliced"] = -file["matrix"][:]
        file["row_attrs/Gene"], file["col_attrs/ClusterName"] = [f"g{k}" for k in range(9)], ["a", "b"] * (ROWS // 2)


FILES: dict[str, tuple[str, Callable[[Path], None]]] = {
    "netcdf": (".nc", climate), "matlab": (".mat", arrays), "anndata": (".h5ad", cells), "nexus": (".nxs", scattering),
    "pytables": (".h5", table), "10x": (".h5", cell_ranger), "nwb": (".nwb", neurons),
    "loom": (".loom", genes),
}  # fmt: skip


def made(kind: str, folder: Path) -> Path:
    ending, make = FILES[kind]
    make(path := folder / f"file{ending}")
    return path


@pytest.mark.parametrize("kind", FILES)
def test_each_program_s_file_is_known(tmp_path: Path, kind: str) -> None:
    with h5py.File(made(kind, tmp_path)) as file:
        assert kind_of(file) == kind
        choice = choose(file)
        assert choice.x.shape[0] == choice.y.shape[0] == ROWS


def test_a_row_of_loom_is_a_cell(tmp_path: Path) -> None:
    """The file has genes x cells."""
    path = str(made("loom", tmp_path))
    with h5py.File(path) as file:
        choice, matrix = choose(file), file["matrix"][:]
    assert (choice.x.name, choice.y.name) == ("matrix", "col_attrs/ClusterName@classes")
    data = h5rows.open(path, {"x": "matrix", "z": "layers/spliced"}, decode=True)
    rows = np.random.default_rng(0).permutation(ROWS)
    batch = data.gather(rows)
    assert np.array_equal(batch["x"], matrix.T[rows])
    assert np.array_equal(batch["z"], -matrix.T[rows])


# -- CF


def packed(path: Path, stored: np.ndarray, **attrs: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_dataset("v", data=stored).attrs.update(attrs)


@pytest.mark.parametrize(
    ("stored", "attrs", "values"),
    [
        (np.int16([1, -1]), {"_FillValue": np.int16(-1), "scale_factor": np.float32(0.5)}, np.float32([0.5, math.nan])),
        (np.int16([1, 2]), {"scale_factor": 0.25, "add_offset": 10.0}, np.float64([10.25, 10.5])),
        (np.float32([1, 1e20]), {"missing_value": np.float32(1e20)}, np.float32([1, math.nan])),
        (np.int32([1, 5, 9]), {"valid_range": np.int32([2, 8])}, np.float64([math.nan, 5, math.nan])),
        (np.int8([-1, 3]), {"_Unsigned": "true", "scale_factor": 1.5}, np.float64([382.5, 4.5])),
        (np.int16([3, 4]), {"_FillValue": np.int16(-9)}, np.int16([3, 4])),
        (np.float64([1, math.nan]), {"_FillValue": math.nan}, np.float64([1, math.nan])),
        (np.int16([7, 8]), {"_FillValue": 1e20}, np.int16([7, 8])),  # the type cannot hold it
    ],
)  # fmt: skip
def test_packed_values(tmp_path: Path, stored: np.ndarray, attrs: dict[str, Any], values: np.ndarray) -> None:
    packed(tmp_path / "a.h5", stored, **attrs)
    read = h5rows.Dataset(str(tmp_path / "a.h5"), {"v": "v"}, decode=True).column("v")
    assert read.dtype == values.dtype
    assert read.tobytes() == values.tobytes()
    raw = h5rows.Dataset(str(tmp_path / "a.h5"), {"v": "v"}).column("v")
    assert raw.tobytes() == stored.tobytes()


def test_what_is_missing(tmp_path: Path) -> None:
    """nan, a number, a field of its own, or left out with its row; wrong values are one line."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for name, values in (("x", [[1, 2], [-1, 4], [5, 6], [7, -1]]), ("y", [0, 1, -1, 1])):
            file.create_dataset(name, data=np.int16(values)).attrs["_FillValue"] = np.int16(-1)

    def read(missing: Any, **fields: str) -> dict[str, Any]:
        data = h5rows.Dataset(path, fields or {"x": "x", "y": "y"}, decode=True, missing=missing)
        return {name: value.tolist() for name, value in data.gather(np.arange(len(data))).items()}

    shown = str(read("nan"))
    assert shown == "{'x': [[1.0, 2.0], [nan, 4.0], [5.0, 6.0], [7.0, nan]], 'y': [0.0, 1.0, nan, 1.0]}"
    assert read({"x": 9, "y": "drop"}) == {"x": [[1, 2], [9, 4], [7, 9]], "y": [0, 1, 1]}
    assert read("drop") == {"x": [[1, 2]], "y": [0]}
    assert read(0, m="x@mask") == {"m": [[False, False], [True, False], [False, False], [False, True]]}
    for missing, said in ((0.5, "contains int16"), ("none", "data.missing=none"), ({"z": 0}, "not in data.fields")):
        with pytest.raises(ConfigError, match=said):
            read(missing)


@pytest.mark.parametrize("missing", ["drop", {"y": "drop"}])
def test_rows_that_are_all_left_out_are_named(tmp_path: Path, missing: Any) -> None:
    """A split that has none is another mistake."""
    path, splits = str(tmp_path / "a.h5"), {"train": {"group": "/", "rows": [0, 0.9]}, "val": {"group": "empty"}}
    with h5py.File(path, "w") as file:
        for group, values in (("/", [-1, -1, -1]), ("/empty", [])):
            for name in ("x", "y"):
                dset = file.require_group(group).create_dataset(name, data=np.int16(values))
                dset.attrs["_FillValue"] = np.int16(-1)

    def mistake(split: str) -> str:
        with pytest.raises(ConfigError) as error:
            h5rows.Dataset(path, {"x": "x", "y": "y"}, split, splits, decode=True, missing=missing)
        return str(error.value)

    lacking = "x or y" if missing == "drop" else "y"
    remedy = f"data.missing=drop removes 3 rows without a value of {lacking}; to keep them, set a number or nan"
    assert mistake("train") == f"data.splits.train has no rows in {path}; {remedy}"
    assert mistake("val").endswith("set it to null if there is no such split")


def test_a_variable_has_as_many_rows_as_its_unlimited_dimension(tmp_path: Path) -> None:
    """The rows that were never written are missing, as netCDF4 shows them."""
    path = tmp_path / "a.nc"
    with netcdf4().Dataset(path, "w") as nc:
        nc.createDimension("time", None)
        nc.createDimension("place", 3)
        nc.createVariable("x", "f4", ["time"])[:] = np.arange(ROWS)
        nc.createVariable("y", "i2", ["time", "place"])[:5] = np.arange(15).reshape(5, 3)
        nc.createVariable("time", "f8", ["time"])[:2] = [1, 2]
    with netcdf4().Dataset(path) as nc:
        theirs = {name: nc[name][:].astype(float).filled(math.nan) for name in ("x", "y", "time")}
    data = h5rows.open(path, {name: name for name in theirs}, decode=True)
    batch = data.gather(rows := np.random.default_rng(0).permutation(ROWS))
    assert all(np.array_equal(batch[name], theirs[name][rows], equal_nan=True) for name in theirs)
    assert len(h5rows.Dataset(str(path), {"y": "y"}, decode=True, missing="drop")) == 5


@pytest.mark.slow
def test_values_are_those_of_netcdf4(tmp_path: Path) -> None:
    """Of 600 variables: every type, each attribute there or not, in types of its own."""
    rng = np.random.default_rng(0)
    attributes = {
        "missing_value": [3, [3, 4], 99, -5, 1e20], "valid_range": [[1, 9], [3]], "valid_min": [-3, 2],
        "valid_max": [7, 3], "scale_factor": [1, 0.01, 2, -3.5], "add_offset": [0, 10, 273.15],
    }  # fmt: skip

    def one_of(values: Any) -> Any:
        return values[rng.integers(len(values))]

    path = tmp_path / "all.nc"
    with netcdf4().Dataset(path, "w") as nc:
        nc.createDimension("row", ROWS)
        for k in range(600):
            kind = one_of(["i1", "u1", "i2", "u2", "i4", "u4", "i8", "f4", "f8"])  # torch has no uint64
            fill = one_of([None, 5, 100, False])
            variable = nc.createVariable(f"v{k}", kind, ("row",), fill_value=7 if "1" in kind else fill)
            variable.set_auto_maskandscale(False)
            written = one_of([ROWS, 20])  # what is not is netCDF's default fill
            variable[:written] = (np.arange(ROWS) % 20).astype(kind)[:written]
            for name, choices in attributes.items():
                if rng.random() < 0.3:
                    own = [] if name in ("scale_factor", "add_offset") else [np.dtype(kind).type]
                    typed = one_of([*own, np.float32, np.float64])
                    with np.errstate(all="ignore"):
                        variable.setncattr(name, np.asarray(one_of(choices)).astype(typed))
    names = {f"v{k}": f"v{k}" for k in range(600)}
    ours = h5rows.Dataset(str(path), names, decode=True)
    with netcdf4().Dataset(path) as nc:
        for name in names:
            theirs = nc[name][:]
            mask, values = np.ma.getmaskarray(theirs), np.ma.getdata(theirs)
            read = ours.column(name)
            if mask.any() or read.dtype.kind == "f":
                assert read.dtype.kind == "f", name
                assert (np.isnan(read) == (mask | (values != values))).all(), name
            assert np.array_equal(read[~mask].astype(np.float64), values[~mask].astype(np.float64)), name


# -- MATLAB


@pytest.mark.parametrize("chunked", [False, True])
def test_axes_are_as_matlab_shows_them(tmp_path: Path, chunked: bool) -> None:
    """Samples along the first axis or the last, found by what the fields have in common."""
    rng, path = np.random.default_rng(0), str(tmp_path / "a.mat")
    features, images, volume = (rng.normal(size=size) for size in ((ROWS, 5), (6, 4, 3, ROWS), (ROWS, 2, 3)))
    labels = rng.integers(0, 3, ROWS).astype(float)
    with h5py.File(path, "w", userblock_size=512) as file:
        made = {"f": features, "i": images, "v": volume, "down": labels[:, None], "across": labels[None]}
        for name, values in made.items():
            dset = file.create_dataset(name, data=values.T, compression="gzip" if chunked else None)
            dset.attrs["MATLAB_class"] = np.bytes_("double")
    rows = rng.permutation(ROWS)[:7]
    for down in ("down", "across"):
        data = h5rows.Dataset(path, {"f": "f", "i": "i", "v": "v", "y": down}, decode=True, cache_mb=16)
        batch = data.gather(rows)
        assert batch["f"].equal(torch.from_numpy(features[rows]))
        assert batch["i"].equal(torch.from_numpy(np.moveaxis(images, -1, 0)[rows]))
        assert batch["v"].equal(torch.from_numpy(volume[rows]))
        assert batch["y"].equal(torch.from_numpy(labels[rows]))
    if chunked:
        with pytest.raises(ConfigError, match=r"data.cache_mb=1 keeps it in memory"):
            h5rows.Dataset(path, {"f": "f", "y": "down"}, decode=True, cache_mb=0)


def test_characters(tmp_path: Path) -> None:
    path = str(tmp_path / "a.mat")
    words = ["left", "up"]
    with h5py.File(path, "w") as file:
        matlab(file, "names", np.array([list(map(ord, word.ljust(4))) for word in words], np.uint16), "char")
        rows = [np.array([list(map(ord, word))], np.uint16) for word in words]
        references(file, "cells", rows, "char")
        references(file, "columns", [row.T for row in rows], "char")  # as hdf5storage writes oned_as="column"
        references(file, "blocks", [np.repeat(row, 2, axis=0) for row in rows], "char")
    data = h5rows.Dataset(path, {"a": "names", "b": "cells", "c": "columns"}, decode=True)
    assert data.gather(np.arange(2)) == {"a": ["left", "up  "], "b": words, "c": words}
    with pytest.raises(ConfigError, match=r"blocks.*: a cell contains 2 rows of characters; save"):
        h5rows.Dataset(path, {"a": "blocks"}, decode=True)
    with h5py.File(nc := str(tmp_path / "a.nc"), "w") as file:
        file["station"] = np.array([list(word.ljust(5, "\0")) for word in words], "S1")
    assert h5rows.Dataset(nc, {"s": "station"}, decode=True).gather(np.arange(2)) == {"s": words}


def test_matlab_s_sparse_matrix(tmp_path: Path) -> None:
    """Stored by columns: `ir` rows, `jc` where each column begins, the number of rows as an attribute."""
    rng, path = np.random.default_rng(0), str(tmp_path / "a.mat")
    dense = rng.poisson(0.3, (ROWS, 9)).astype(float)
    dense[:, 4] = 0
    with h5py.File(path, "w") as file:
        matlab(file, "y", rng.integers(1, 3, (ROWS, 1)).astype(float))
        group = file.create_group("X")
        group.attrs.update({"MATLAB_class": np.bytes_("double"), "MATLAB_sparse": np.uint64(ROWS)})
        group["data"], group["ir"] = dense.T[dense.T != 0], np.nonzero(dense.T)[1].astype(np.uint64)
        group["jc"] = np.concatenate([[0], np.cumsum((dense != 0).sum(0))]).astype(np.uint64)
        choice = choose(file)
    assert (choice.x.name, choice.x.shape) == ("X", dense.shape)
    assert (h5rows.Dataset(path, {"x": "X", "y": "y"}, decode=True, cache_mb=1).column("x") == dense).all()


def test_cells_of_arrays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of one size: rows. Vectors, and matrices that differ in one side: rows of different length."""
    rng, path = np.random.default_rng(0), str(tmp_path / "a.mat")
    images = [rng.normal(size=(3, 4)) for _ in range(ROWS)]
    spikes = [rng.normal(size=(1, k % 5)) for k in range(1, ROWS + 1)]
    tracks = [rng.normal(size=(2, 1 + k % 5)) for k in range(ROWS)]
    labels = rng.integers(1, 4, ROWS).astype(float)
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, cells in (("images", images), ("tracks", tracks), ("y", [[[label]] for label in labels])):
            references(file, name, cells)
        references(file, "spikes", spikes)
        for k in range(4, ROWS, 5):  # as MATLAB writes an empty array: its size
            del file[f"#refs#/spikes{k}"]
            mark(file, f"#refs#/spikes{k}", np.uint64([1, 0]), MATLAB_class=b"double", MATLAB_empty=np.uint8(1))
        del file["spikes"]
        held = np.array([[file[f"#refs#/spikes{k}"].ref for k in range(ROWS)]], h5py.ref_dtype)
        mark(file, "spikes", held, MATLAB_class=np.bytes_("cell"))
        choice = choose(file)
    assert (choice.x.name, choice.x.shape, choice.y.name) == ("images", (ROWS, 3, 4), "y@classes")
    h5rows.inspect(path)
    said = capsys.readouterr().out
    assert "#refs#" not in said, "the cells' contents are no data of their own"
    assert "rows of different length: spikes, tracks; a batch is padded" in said
    data = h5rows.Dataset(path, {"i": "images", "s": "spikes", "t": "tracks", "y": "y"}, decode=True, cache_mb=16)
    rows = rng.permutation(ROWS)
    batch = data.gather(rows)
    assert batch["i"].equal(torch.from_numpy(np.stack(images)[rows]))
    assert batch["y"].equal(torch.from_numpy(labels[rows]))
    for k, row in enumerate(rows):
        assert batch["s"][k, : batch["s_length"][k]].equal(torch.from_numpy(spikes[row].reshape(-1)))
        assert batch["t"][k, : batch["t_length"][k]].equal(torch.from_numpy(tracks[row].T.copy()))
    with pytest.raises(ConfigError, match=r"its cells take 0 MB of memory - set data.cache_mb=1"):
        h5rows.Dataset(path, {"i": "images"}, decode=True, cache_mb=0)


# -- AnnData, NeXus, 10x Genomics, NWB


def test_a_matrix_of_cell_ranger(tmp_path: Path) -> None:
    """A row is a barcode. Without labels there is no command, and one line says what to write."""
    dense = cell_ranger(tmp_path / "a.h5", labels=False)
    with h5py.File(tmp_path / "a.h5") as file:
        kind, x, *others = meaning_of(file, "a.h5")
    assert (kind, x) == ("kind: 10x Genomics", f"x could be matrix: {ROWS} samples of (9,) int32")
    assert others == [
        f"no command: the file has no labels; write one for each of the {ROWS} barcodes, in their order, to a dataset "
        "`label`, then inspect it again"
    ]
    rows = np.random.default_rng(0).permutation(ROWS)
    data = h5rows.Dataset(str(tmp_path / "a.h5"), {"x": "matrix"}, decode=True, cache_mb=1)
    assert data.gather(rows)["x"].equal(torch.from_numpy(dense[rows]))
    with h5py.File(tmp_path / "a.h5", "a") as file:
        file["label"] = [f"cluster {k % 3}" for k in range(ROWS)]
        choice = choose(file)
    assert (choice.x.name, choice.y.name, choice.y.classes) == ("matrix", "label@classes", 3)


def test_time_series_and_spikes_of_nwb(tmp_path: Path) -> None:
    neurons(tmp_path / "a.nwb")
    with h5py.File(tmp_path / "a.nwb", "a") as file:
        choice = choose(file)
        assert choice.x.name == "acquisition/ephys/data"
        assert choice.y.name == "processing/behavior/Position/SpatialSeries/data"
        assert choice.settings["split_by"] == "blocks"
        times = file["units/spike_times"][:]
        del file["acquisition"], file["processing"]
        lines = meaning_of(file, "a.nwb")
        assert lines[1] == "cannot be used for training as it is:"
        assert lines[2].startswith("rows of different length: units/spike_times; a batch is padded with zeros")
    data = h5rows.Dataset(str(tmp_path / "a.nwb"), {"s": "units/spike_times"}, decode=True)
    batch = data.gather(np.arange(5))
    assert batch["s_length"].tolist() == [0, 3, 0, 9, 8]
    assert [row[:n].tolist() for row, n in zip(batch["s"], batch["s_length"], strict=True)] == [
        times[a:b].tolist() for a, b in itertools.pairwise([0, 0, 3, 3, 12, 20])
    ]
    with h5py.File(tmp_path / "a.nwb", "a") as file:
        file["units/spike_times_index"][:] = [0, 3, 2, 12, 20]
    with pytest.raises(ConfigError, match="its index must not decrease"):
        h5rows.Dataset(str(tmp_path / "a.nwb"), {"s": "units/spike_times"}, decode=True)


@pytest.mark.parametrize("kind", ["csr", "csc"])
def test_rows_of_a_sparse_matrix(tmp_path: Path, kind: str) -> None:
    rng, path = np.random.default_rng(0), str(tmp_path / "a.h5ad")
    dense = rng.poisson(0.3, (ROWS, 9)).astype(np.float32)
    dense[3] = 0
    with h5py.File(path, "w") as file:
        sparse(file, "X", dense, kind)
    data = h5rows.Dataset(path, {"x": "X"}, decode=True, cache_mb=1)
    rows = rng.integers(ROWS, size=100)
    assert data.gather(rows)["x"].equal(torch.from_numpy(dense[rows]))
    assert data.nbytes == dense.nbytes


def test_a_matrix_of_h5sparse_is_one_field(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        sparse(file, "m", np.eye(ROWS, 9, dtype=np.float32), "csr")
        for name in list(file["m"].attrs):
            del file["m"].attrs[name]
        file["m"].attrs.update({"h5sparse_format": "csr", "h5sparse_shape": np.array([ROWS, 9])})
        file["y"] = np.arange(ROWS) % 3
        choice = choose(file)
        assert (choice.x.name, choice.x.shape, choice.y.name) == ("m", (ROWS, 9), "y")


def test_weights_of_keras_3_are_no_samples(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.weights.h5", "w") as file:
        file["layers/dense/vars/0"], file["layers/dense/vars/1"] = np.zeros((6, 50), "f4"), np.zeros(50, "f4")
        file.create_group("vars")
        assert kind_of(file) == "keras"
        assert choose(file) is None
    with h5py.File(tmp_path / "b.h5", "w") as file:  # two data sets with these names
        file["layers"], file["vars"] = np.zeros((ROWS, 3)), np.zeros(ROWS)
        assert kind_of(file) == "plain"


@pytest.mark.parametrize(
    ("harm", "said"),
    [
        (lambda group: group["indptr"].__setitem__(3, 9999), "indptr must increase"),
        (lambda group: group["indices"].__setitem__(0, 9), "must be in 0..8"),
    ],
)
@pytest.mark.parametrize("kind", ["csr", "csc"])  # csc: such a value became a row after the last one
def test_a_damaged_sparse_matrix_is_one_line(
    tmp_path: Path, harm: Callable[[h5py.Group], None], said: str, kind: str
) -> None:
    path = str(tmp_path / "a.h5ad")
    with h5py.File(path, "w") as file:
        sparse(file, "X", np.eye(9, dtype=np.float32), kind)
        harm(file["X"])
    with pytest.raises(ConfigError, match=said):
        h5rows.Dataset(path, {"x": "X"}, decode=True)


def test_an_index_outside_of_a_large_sparse_matrix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not all indices are read when it is opened. Its value was added to the next row."""
    path = str(tmp_path / "a.h5ad")
    monkeypatch.setattr("h5rows.conventions.opening._LOOKED_THROUGH", 9)
    with h5py.File(path, "w") as file:
        sparse(file, "X", np.ones((ROWS, 9), np.float32), "csr")
        file["X/indices"][-10] = 9
    data = h5rows.Dataset(path, {"x": "X"}, decode=True)
    assert data[-1]["x"].tolist() == [1] * 9
    with pytest.raises(ConfigError, match=r"a\.h5ad: X .*must be in 0\.\.8"):
        data[[-2, -1]]


def test_categories(tmp_path: Path) -> None:
    path = str(tmp_path / "a.h5ad")
    with h5py.File(path, "w") as file:
        categorical(file, "obs/all", np.array([0, 2, 1, 0]), ["B", "NK", "T"])
        categorical(file, "obs/some", np.array([0, -1, 1, 0]), ["B", "T"])
    data = h5rows.Dataset(path, {"y": "obs/all"}, decode=True)
    assert (data.class_names, data.column("y").tolist()) == ({"y": ["B", "NK", "T"]}, [0, 2, 1, 0])
    node = {"path": path, "fields": {"y": "obs/some"}, "splits": {"train": {"group": "/"}}, "decode": True}
    assert integration.num_outputs({**node, "missing": "drop"}, "y") == 2
    assert len(h5rows.Dataset(path, {"y": "obs/some"}, decode=True, missing="drop")) == 3


def test_values_with_a_mask(tmp_path: Path) -> None:
    """AnnData's integers and bools of which some are missing (nullable)."""
    path = str(tmp_path / "a.h5ad")
    with h5py.File(path, "w") as file:
        both = (("count", "integer", np.int32([7, -3, 5])), ("sick", "boolean", [True, False, True]))
        for name, kind, values in both:
            group = file.create_group(f"obs/{name}")
            group.attrs["encoding-type"] = f"nullable-{kind}"
            group["values"], group["mask"] = values, [False, False, True]
        file["X"] = np.ones((3, 2))
        file.create_group("var")

    def read(name: str, missing: Any) -> list[Any]:
        read: list[Any] = h5rows.Dataset(path, {"y": f"obs/{name}"}, decode=True, missing=missing).column("y").tolist()
        return read

    assert (read("count", "drop"), read("count", 0), read("sick", "drop")) == ([7, -3], [7, -3, 0], [1, 0])
    assert str(read("count", "nan")) == "[7.0, -3.0, nan]"


def test_categories_of_a_table(tmp_path: Path) -> None:
    """AnnData below 0.7: `obs` is a table, the categories lie apart."""
    rows = np.zeros(4, [("index", "S2"), ("kind", "i1"), ("size", "f4")])
    rows["kind"] = [1, -1, 0, 1]
    with h5py.File(path := str(tmp_path / "a.h5ad"), "w") as file:
        file["X"], file["obs"], file["var"], file["uns/kind_categories"] = np.ones((4, 2)), rows, np.ones(2), ["B", "T"]
    data = h5rows.Dataset(path, {"y": "obs/kind", "size": "obs/size"}, decode=True, missing={"y": "drop"})
    assert (data.class_names, data.column("y").tolist()) == ({"y": ["B", "T"]}, [1, 0, 1])


@pytest.mark.parametrize("df", ["df", "group/df"])
def test_a_categorical_column_of_pandas(tmp_path: Path, capsys: pytest.CaptureFixture[str], df: str) -> None:
    """Its codes are in the table, its categories in another one; -1 is NaN. PyTables' indexes are not printed."""
    rows = np.zeros(4, [("index", "i8"), ("kind", "i1"), ("size", "f4"), ("text", "S3")])
    rows["kind"], rows["text"] = [1, -1, 0, 1], [b"T", b"nan", b"B", b"T"]
    with h5py.File(path := str(tmp_path / "a.h5"), "w") as file:
        file.attrs["PYTABLES_FORMAT_VERSION"] = "2.1"
        file.create_group(df).attrs.update(pandas_type="frame_table", nan_rep="nan")  # as which it writes missing texts
        file[f"{df}/table"], file[f"{df}/_i_table/kind/sorted"] = rows, np.arange(4)
        file[f"{df}/table"].attrs["kind_meta"] = np.bytes_("category")
        file[f"{df}/meta/kind/meta/table"] = np.array([(0, b"B"), (1, b"T")], [("index", "i8"), ("values", "S1")])
    for name in (f"{df}/table/kind", f"{df}/table/kind@classes", f"{df}/table/text@classes"):
        data = h5rows.Dataset(path, {"y": name}, decode=True, missing="drop")
        assert data.column("y").tolist() == [1, 0, 1]
    assert h5rows.Dataset(path, {"y": f"{df}/table/kind"}, decode=True, missing=-1).class_names == {"y": ["B", "T"]}
    h5rows.inspect(path)
    assert "_i_table" not in capsys.readouterr().out


def test_a_group_of_nexus_is_its_signal(tmp_path: Path) -> None:
    values = h5rows.Dataset(str(made("nexus", tmp_path)), {"x": "entry/run"}, decode=True).column("x")
    with h5py.File(tmp_path / "file.nxs", "r+") as file:
        assert (values == file["entry/run/counts"][:]).all()
        file["entry/run/channel"], file["entry/run/phase"] = np.arange(ROWS), np.arange(ROWS) % 3
        assert choose(file).y.name == "entry/run/phase", "an axis is no label"


def test_columns_of_a_table(tmp_path: Path) -> None:
    rows = np.zeros(3, [("n", "f4"), ("fixed", "S5"), ("free", h5py.string_dtype()), ("each", "f4", (2,))])
    rows["n"], rows["fixed"], rows["free"] = [1, 2, 3], [b"a", b"", "\u00e9".encode()], ["x", "yy", ""]
    with h5py.File(path := str(tmp_path / "a.h5"), "w") as file:
        file["table"] = rows
    names = {name: f"table/{name}" for name in ("n", "fixed", "free", "each")}
    batch = h5rows.Dataset(path, names).gather(np.array([2, 0]))
    assert (batch["fixed"], batch["free"], batch["n"].tolist()) == (["\u00e9", "a"], ["", "x"], [3, 1])
    assert batch["each"].shape == (2, 2)


# -- splits of a file that has none


@pytest.mark.parametrize("by", ["random", "blocks", "patient"])
def test_each_row_is_in_one_split(tmp_path: Path, by: str) -> None:
    path, rng = str(tmp_path / "a.h5"), np.random.default_rng(0)
    patients = rng.integers(0, 30, 500)
    with h5py.File(path, "w") as file:
        file["row"], file["patient"] = np.arange(500), patients
    splits = shares_of("70/20/10", by, "data.split")
    parts = [h5rows.Dataset(path, {"row": "row"}, split, splits).column("row") for split in ("train", "val", "test")]
    assert sorted(itertools.chain(*parts)) == list(range(500))
    assert all(len(part) == pytest.approx(share, abs=40) for part, share in zip(parts, (350, 100, 50)))
    if by == "blocks":
        assert np.concatenate(parts).tolist() == list(range(500))
    if by == "patient":
        of = [set(patients[part].tolist()) for part in parts]
        assert sum(map(len, of)) == len(set.union(*of))


@pytest.mark.parametrize("text", ["80/10/20", "100/0", "0.8/0.2", "80", "a/b", "80,20"])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"data\.split="):
        shares_of(text, None, "data.split")


# -- values as classes


def test_distinct_values_are_classes(tmp_path: Path) -> None:
    """Of all splits the same; texts, numbers and one-hot rows; what is missing is left out."""
    path = str(tmp_path / "a.h5")
    with h5py.File(path, "w") as file:
        for split, words, numbers in (("train", ["b", "a", "d"], [2, 5, 2]), ("val", ["c", "a"], [5, math.nan])):
            file[f"{split}/word"], file[f"{split}/number"] = words, np.float64(numbers)
            file[f"{split}/column"] = np.float64(numbers)[:, None]
            file[f"{split}/hot"] = np.eye(4, dtype=np.float32)[["abcd".index(word) for word in words]]
            file[f"{split}/both"] = np.ones((len(words), 2))
    splits: dict[str, dict[str, Any]] = {split: {"group": split} for split in ("train", "val")}

    def read(split: str, name: str, missing: Any = "nan") -> tuple[list[int], list[str]]:
        data = h5rows.Dataset(path, {"y": name}, split, splits, decode=True, missing=missing)
        node = {"path": path, "fields": {"y": name}, "splits": splits, "decode": True, "missing": missing}
        assert integration.num_outputs(node, "y") == len(data.class_names["y"])
        return data.gather(np.arange(len(data)))["y"].tolist(), data.class_names["y"]

    assert read("train", "word@classes") == ([1, 0, 3], ["a", "b", "c", "d"])
    assert read("val", "word@classes") == ([2, 0], ["a", "b", "c", "d"])
    assert read("train", "number@classes") == ([0, 1, 0], ["2", "5"])
    assert read("val", "number@classes", "drop") == read("val", "column@classes", "drop") == ([1], ["2", "5"])
    assert read("train", "hot@classes") == ([1, 0, 3], ["0", "1", "2", "3"])
    with pytest.raises(ConfigError, match="one value per row, or zeros and a single 1"):
        read("train", "both@classes")
    with pytest.raises(ConfigError, match="expected @mask"):
        read("train", "word@class")
    with h5py.File(path, "a") as file:  # a column that divides a split is of that split only
        file["train/group"] = ["p", "q", "r"]
    splits["train"] = {"group": "train", "rows": [0, 1], "by": "group@classes"}
    assert len(h5rows.Dataset(path, {"y": "number"}, "train", splits, decode=True)) == 3


@pytest.mark.parametrize("labels", [np.eye(3)[np.arange(ROWS) % 3], np.arange(ROWS)[:, None] % 3])
def test_one_hot_rows_and_a_column_of_labels_are_suggested_as_classes(tmp_path: Path, labels: np.ndarray) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = np.random.default_rng(0).normal(size=(ROWS, 5)), labels
        choice = choose(file)
    assert (choice.x.name, choice.y.name, choice.y.classes, choice.task) == ("x", "y@classes", 3, "classification")


@pytest.mark.parametrize("x", [np.eye(9)[np.arange(ROWS) % 9], np.arange(ROWS)[:, None] % 9])
def test_x_is_suggested_as_it_is_stored(tmp_path: Path, x: np.ndarray) -> None:
    """As classes, a column would lose its scale, and one-hot rows would be a single number."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["y"] = x, np.arange(ROWS) % 3
        choice = choose(file)
    assert (choice.x.name, choice.x.shape, choice.y.name) == ("x", x.shape, "y")


# -- what is no sample


def mark(file: h5py.File, name: str, values: Any, **attrs: Any) -> None:
    file.create_dataset(name, data=values).attrs.update(attrs)


def objects(file: h5py.File) -> None:
    """As MATLAB stores a string, an enumeration, an empty array: numbers that are none of theirs."""
    mark(file, "text", np.uint32([[3707764736, 2, 1, 1, 1, 1]]), MATLAB_class=b"string", MATLAB_object_decode=3)
    file.create_group("enum").attrs.update({"MATLAB_class": np.bytes_("Color"), "MATLAB_object_decode": np.int32(3)})
    mark(file, "enum/ValueIndices", np.arange(8, dtype=np.uint32))
    mark(file, "nothing", np.zeros(8, np.uint64), MATLAB_class=b"double", MATLAB_empty=np.uint8(1))


def dimensions(file: h5py.File) -> None:
    mark(file, "time", np.zeros(8, np.float32), CLASS=b"DIMENSION_SCALE")
    file["time"].attrs["NAME"] = np.bytes_("This is a netCDF dimension but not a netCDF variable.         8")


def filtered(file: h5py.File) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((8,))
    plan.set_filter(305, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((8,))
    h5py.h5d.create(file.id, b"energy", h5py.h5t.NATIVE_DOUBLE, space, plan)


def times(file: h5py.File) -> None:
    h5py.h5d.create(file.id, b"when", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((8,)))


def image_files(file: h5py.File) -> None:
    jpeg, png = b"\xff\xd8\xff\xe0 a JPEG file", b"\x89PNG\r\n\x1a\n a PNG file"
    file["text"], file["raw"] = np.array([jpeg] * 8), np.array([png] * 8).view(f"V{len(png)}")
    file["padded"] = np.tile(np.frombuffer(png, np.uint8), (8, 1))
    varying = file.create_dataset("varying", 8, h5py.vlen_dtype(np.uint8))
    for k in range(8):
        varying[k] = np.frombuffer(jpeg, np.uint8)


def test_a_table_with_times_has_its_other_columns(tmp_path: Path) -> None:
    """As PyTables writes Time64Col, for which NumPy has no type."""
    with h5py.File(tmp_path / "a.h5", "w") as file:
        kind = h5py.h5t.create(h5py.h5t.COMPOUND, 14)
        columns = (("time", h5py.h5t.UNIX_D64LE), ("energy", h5py.h5t.IEEE_F32LE), ("label", h5py.h5t.STD_I16LE))
        for (name, column), offset in zip(columns, (0, 8, 12), strict=True):
            kind.insert(name.encode(), offset, column)
        rows = np.rec.fromarrays([np.arange(ROWS) / 2, np.arange(ROWS) % 3], dtype=[("energy", "f4"), ("label", "i2")])
        table = h5py.h5d.create(file.id, b"table", kind, h5py.h5s.create_simple((ROWS,)))
        table.write(h5py.h5s.ALL, h5py.h5s.ALL, rows)
        choice = choose(file)
    assert (choice.x.name, choice.y.name) == ("table/energy", "table/label")
    data = h5rows.open(tmp_path / "a.h5", {"x": "table/energy", "y": "table/label"}, decode=True)
    batch = data.gather(drawn := np.random.default_rng(0).permutation(ROWS))
    assert np.array_equal(batch["x"], rows["energy"][drawn])
    assert np.array_equal(batch["y"], rows["label"][drawn])


def weights(file: h5py.File) -> None:
    file.attrs["layer_names"] = ["dense"]
    file["dense/kernel"], file["dense/bias"] = np.ones((8, 3)), np.ones(8)


def molecules(file: h5py.File) -> None:
    file["barcodes"], file["barcode_idx"] = np.array([b"ACGT"] * 8), np.arange(8)
    file["umi"], file["count"], file["feature_idx"] = np.arange(8), np.arange(8), np.arange(8)


def mixed_cells(file: h5py.File) -> None:
    references(file, "both", [[[1.0]]] * 8)
    file["#refs#/both3"].attrs["MATLAB_class"] = np.bytes_("char")
    references(file, "sizes", [np.ones((2 + k, 3 + k)) for k in range(8)])


def few(file: h5py.File) -> None:
    file["gone"] = np.full((8, 2), math.nan)
    file["x"], file["z"], file["name"] = np.ones(3), np.ones(8, np.complex64), [f"n{k}" for k in range(8)]


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (objects, ["text: is a MATLAB string", "enum: is a MATLAB Color", "nothing: is empty in MATLAB"]),
        (dimensions, ["time: is a netCDF dimension without values"]),
        (filtered, ["energy: needs the filter LZO (number 305), which is not in hdf5plugin"]),
        (times, ["when: has a type that NumPy does not support"]),
        (few, ["gone: has no values", "x: has 3 rows", "z: contains complex numbers", "name: has too many"]),
        (image_files, ["text, varying: contains JPEG files; decode", "padded, raw: contains PNG files"]),
        (weights, ["it contains weights, not samples"]),
        (molecules, ["it lists molecules, not cells"]),
        (
            mixed_cells,
            ["both: its cells contain char and double; cells can", "sizes: its cells are arrays of different sizes"],
        ),
        (lambda file: file.__setitem__("one", 1), ["cannot be used for training: no rows of numbers"]),
    ],
)
def test_what_cannot_be_trained_on_is_named(tmp_path: Path, make: Callable[[h5py.File], None], said: list[str]) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        make(file)
        assert choose(file) is None
        text = "\n".join(meaning_of(file, "a.h5"))
    assert all(f"\n{line}" in text.replace("\n  ", "\n") for line in said), text
    assert "train" not in text.replace("for training", "")


@pytest.mark.parametrize("count", [6, 30])  # 30: HDF5 lists more groups than fields are read before the first field
def test_rows_of_one_episode_are_no_data_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    """Robomimic writes a group for each episode; others write one for each sample."""
    monkeypatch.setattr("h5rows.conventions.choice.MOST", 24)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        for k in range(count):
            file[f"data/demo_{k}/obs/image"] = np.zeros((30 + k % 9, 4, 4, 3), np.uint8)
            file[f"data/demo_{k}/dones"] = np.arange(30 + k % 9) % 2
        assert choose(file) is None
        assert "is in one of at least" in "\n".join(meaning_of(file, "x.h5"))
        file["images"], file["labels"] = np.zeros((33, 5), np.float32), np.arange(33) % 2
        choice = choose(file)
        assert choice is not None
        assert choice.x.shape[0] == 33  # cameras, for example, may be numbered


def test_the_rows_names_of_pandas_are_no_field(tmp_path: Path) -> None:
    rows = np.zeros(ROWS, [("index", "i8"), ("values_block_0", "f8", (2,)), ("label", "i1")])
    rows["index"], rows["label"] = np.arange(ROWS), np.arange(ROWS) % 2
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["PYTABLES_FORMAT_VERSION"] = "2.1"
        file.create_group("df").attrs["pandas_type"] = "frame_table"
        file["df/table"] = rows
        choice = choose(file)
    assert (choice.x.name, choice.y.name) == ("df/table/values_block_0", "df/table/label")


@pytest.mark.parametrize("labels", ["column", "series", "none"])
def test_the_blocks_of_pandas_are_listed_with_their_columns(tmp_path: Path, labels: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.attrs["PYTABLES_FORMAT_VERSION"] = "2.1"
        file.create_group("df").attrs["pandas_type"] = "frame"
        file["df/axis1"], file["df/block0_items"] = np.arange(ROWS), np.array([b"age", b"size"])
        file["df/axis1_label0"] = np.arange(ROWS) % 3  # of a MultiIndex
        file["df/block0_values"] = np.random.default_rng(0).normal(size=(ROWS, 2))
        if labels == "column":
            file["df/block1_items"], file["df/block1_values"] = np.array([b"kind"]), np.arange(ROWS)[:, None] % 2
        if labels == "series":
            file["s/index"], file["s/values"] = np.arange(ROWS), np.arange(ROWS) % 2
        choice, text = choose(file), "\n".join(meaning_of(file, "a.h5"))
    assert choice.x.name == "df/block0_values"
    expected = {"column": "df/block1_values@classes", "series": "s/values", "none": None}[labels]
    assert (choice.y and choice.y.name) == expected
    assert "its columns: age, size" in text
    assert ("its columns: kind" in text) == (labels == "column")
    assert ("data_columns=['label']" in text) == (labels == "none")


@pytest.mark.parametrize("kind", ["plain", "netcdf", "matlab", "table"])
def test_stored_nan_is_a_missing_value_where_it_is_asked_for(tmp_path: Path, kind: str) -> None:
    """Rows without a label are left out; in a table NaN stays, because 0 would look like a value."""
    rng, path = np.random.default_rng(0), tmp_path / "a.h5"
    values, labels = rng.normal(size=(ROWS, 5)), rng.normal(size=ROWS)
    values[rng.random(values.shape) < 0.2], labels[3] = math.nan, math.nan
    with h5py.File(path, "w") as file:
        if kind == "matlab":
            matlab(file, "x", values)
            matlab(file, "y", labels[:, None])
        elif kind == "table":
            file["t"] = np.rec.fromarrays([values, labels], dtype=[("x", "f8", (5,)), ("y", "f8")])
        else:
            file["x"], file["y"] = values, labels
            if kind == "netcdf":
                file["x"].attrs["_FillValue"] = file["y"].attrs["_FillValue"] = 1e20
    found = integration.suggestion(str(path))
    assert found[0]["missing"] == {"x": "nan", "y": "drop"}
    fields = {name: found[0][f"fields.{name}"] for name in "xy"}
    data = h5rows.Dataset(str(path), fields, decode=True, missing=found[0]["missing"])
    there = labels == labels
    assert (data.column("y") == labels[there]).all()
    assert np.array_equal(data.column("x"), values[there], equal_nan=True)
    as_it_lies = h5rows.Dataset(str(path), fields, decode=True).column("x")
    assert np.array_equal(as_it_lies, values, equal_nan=True)
