"""Rows at random of files as their programs mean them: ours beside their own libraries, where those are installed.

    ./run python benchmarks/read_meaning.py [folder] [--rounds 5]

A sparse matrix of AnnData (20,000 x 2,000, 8 % of it there, CSR) by anndata (backed) and from a dense copy; packed
numbers of netCDF-4 (20,000 x 1,000 int16 with scale, offset and fill) by netCDF4 and xarray. Batches of 256 rows, warm.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
from read_common import interleaved, report

import h5rows

ROWS, BATCH, BATCHES = 20_000, 256, 20


def sparse(path: Path, rng: np.random.Generator) -> None:
    width, per_row = 2000, 160
    columns = np.sort(rng.permuted(np.tile(np.arange(width, dtype=np.int32), (ROWS, 1)), axis=1)[:, :per_row], axis=1)
    with h5py.File(path, "w") as file:
        file.attrs.update({"encoding-type": "anndata", "encoding-version": "0.1.0"})
        x = file.create_group("X")
        x.attrs.update({"encoding-type": "csr_matrix", "encoding-version": "0.1.0", "shape": [ROWS, width]})
        x["data"], x["indices"] = rng.random(columns.size, np.float32), columns.ravel()
        x["indptr"] = np.arange(ROWS + 1, dtype=np.int64) * per_row
        for name, size in (("obs", ROWS), ("var", width)):
            table = file.create_group(name)
            table.attrs.update({"encoding-type": "dataframe", "encoding-version": "0.2.0", "_index": "i"})
            table.attrs.create("column-order", np.array([], "S1"))
            table["i"] = np.arange(size).astype("S").astype(h5py.string_dtype())
            table["i"].attrs.update({"encoding-type": "string-array", "encoding-version": "0.2.0"})


def batches(rng: np.random.Generator) -> list[np.ndarray]:
    return [np.unique(rng.integers(ROWS, size=BATCH)) for _ in range(BATCHES)]  # rising, as others want them


def way(read: Callable[[np.ndarray], Any], chosen: list[np.ndarray]) -> Callable[[], int]:
    def all_of_them() -> int:
        for rows in chosen:
            read(rows)
        return sum(map(len, chosen))

    return all_of_them


def ours(path: Path, name: str) -> Callable[[np.ndarray], Any]:
    return h5rows.Dataset(str(path), {"x": name}, decode=True).gather


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", nargs="?", default=tempfile.gettempdir())
    parser.add_argument("--rounds", type=int, default=5)
    args = parser.parse_args()
    rng = np.random.default_rng(0)
    with tempfile.TemporaryDirectory(dir=args.folder) as folder:
        place = Path(folder)
        chosen = batches(rng)
        sparse(place / "cells.h5ad", rng)
        with h5py.File(place / "dense.h5", "w") as file:
            file["x"] = ours(place / "cells.h5ad", "X")(np.arange(ROWS))["x"].numpy()
        ways = {"ours": ours(place / "cells.h5ad", "X"), "ours, of a dense copy": ours(place / "dense.h5", "x")}
        try:
            import anndata

            cells = anndata.read_h5ad(place / "cells.h5ad", backed="r")
            known = np.asarray(cells.X[chosen[0]].todense())
            assert np.array_equal(ways["ours"](chosen[0])["x"].numpy(), known)
            ways["anndata, backed"] = lambda rows: cells.X[rows].toarray()
        except ImportError:
            print("anndata is not installed")
        report("sparse rows", interleaved({k: way(v, chosen) for k, v in ways.items()}, args.rounds), "ours", "rows")

        with h5py.File(place / "rain.nc", "w") as file:
            v = file.create_dataset("v", data=rng.integers(-999, 999, (ROWS, 1000), dtype=np.int16))
            v.attrs.update({"scale_factor": 0.01, "add_offset": 5.0, "_FillValue": np.int16(-999)})
            v.dims[0].label, v.dims[1].label = "time", "x"
            for name, size in (("time", ROWS), ("x", 1000)):
                file[name] = np.arange(size)
                file[name].make_scale(name)
            v.dims[0].attach_scale(file["time"])
            v.dims[1].attach_scale(file["x"])
        ways = {"ours": ours(place / "rain.nc", "v")}
        try:
            import netCDF4

            rain = netCDF4.Dataset(place / "rain.nc")["v"]
            assert np.array_equal(ways["ours"](chosen[0])["x"].numpy(), rain[chosen[0]].filled(np.nan), equal_nan=True)
            ways["netCDF4"] = lambda rows: rain[rows]
        except ImportError:
            print("netCDF4 is not installed")
        try:
            import xarray

            held = xarray.open_dataset(place / "rain.nc", engine="netcdf4", cache=False)["v"]
            ways["xarray"] = lambda rows: held[rows].values
        except ImportError:
            print("xarray is not installed")
        report("packed rows", interleaved({k: way(v, chosen) for k, v in ways.items()}, args.rounds), "ours", "rows")


if __name__ == "__main__":
    main()
