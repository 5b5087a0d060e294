"""`repack` copies whatever a file holds, references by what they point to; `inspect` survives whatever it holds."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5_deep
import h5py
import numpy as np
import pytest
from pack_typed import typed

from h5rows import repack
from h5rows.account import LEFT_OUT
from h5rows.errors import ConfigError

ROWS = np.random.default_rng(0).normal(size=(700, 9)).astype(np.float32)


def copy(path: Path, codec: str = "none", **kwargs: Any) -> Any:
    """-> (the account, the copy)."""
    out = path.with_name("copy.h5")
    return repack(str(path), str(out), codec=codec, quiet=True, overwrite=True, **kwargs), out


def equal(path: Path, codec: str = "none") -> None:
    account, out = copy(path, codec)
    walk = h5_deep.compare(path, out)
    assert walk.differences == []
    assert walk.skipped == []
    assert account.lost == {}
    assert account.held == account.taken


def fields_of_a_struct(group: h5py.Group, names: list[str]) -> None:
    """As MATLAB lists them: vlens of strings of one character, without room for a NUL, which NumPy's types want."""
    raw = np.zeros(len(names), "V16")
    for pad in (h5py.h5t.STR_NULLPAD, h5py.h5t.STR_NULLTERM):
        kind = h5py.h5t.C_S1.copy()
        kind.set_size(1)
        kind.set_strpad(pad)
        vlen, space = h5py.h5t.vlen_create(kind), h5py.h5s.create_simple(raw.shape)
        attr = h5py.h5a.create(group.id, b"padded" if pad == h5py.h5t.STR_NULLPAD else b"MATLAB_fields", vlen, space)
        if pad == h5py.h5t.STR_NULLPAD:
            each = [np.array(list(name), "S1") for name in names]
            values = np.empty(len(names), h5py.vlen_dtype("S1"))
            values[:] = each
            attr.write(values)
            attr.read(raw, vlen)
        else:
            attr.write(raw, vlen)


def matlab(file: h5py.File) -> None:
    """Cells, and what only references reach through #refs#."""
    fields_of_a_struct(file.create_group("struct"), ["name", "of", "them"])
    refs = file.create_group("#refs#")
    for name, value in (("a", [[1.0, 2.0]]), ("b", np.arange(6, dtype="u2")[None])):
        refs[name] = value
        refs[name].attrs["MATLAB_class"] = np.bytes_("double")
    cell = file.create_dataset("cell", (2, 2), h5py.ref_dtype)
    cell[...] = [[refs["a"].ref, refs["b"].ref], [refs.ref, h5py.Reference()]]
    cell.attrs["MATLAB_class"] = np.bytes_("cell")
    refs.create_dataset("nested", (1,), h5py.ref_dtype)[0] = cell.ref  # a circle
    file["x"] = ROWS
    file["x"].attrs.create("self", file["x"].ref, dtype=h5py.ref_dtype)


def netcdf(file: h5py.File) -> None:
    """Dimension scales: vlens of references, compounds with them; a dimension without a variable, never written."""
    x = file.create_dataset("x", data=ROWS, fillvalue=9.9e36)
    x.attrs["_FillValue"], x.attrs["scale_factor"] = np.float32(9.9e36), 0.5
    for k, name in enumerate(("time", "lon")):
        file.create_dataset(name, (ROWS.shape[k],), ">f4", maxshape=(None,) if k == 0 else None)
        file[name].make_scale(f"This is a netCDF dimension but not a netCDF variable. {k}")
        file[name].attrs["_Netcdf4Dimid"] = np.int32(k)
        x.dims[k].attach_scale(file[name])
    file.create_dataset("huge", (4_500_000_000,), "f4").make_scale("huge")
    file.create_dataset("station", data=["a", "", "bcd"], dtype=h5py.string_dtype(), fillvalue="none" * 3000)
    file.attrs["_NCProperties"] = np.bytes_("version=2")


def nexus(file: h5py.File) -> None:
    """Regions: hyperslabs, points, nothing; links; scalars."""
    file["entry/data/x"] = ROWS
    x = file["entry/data/x"]
    points = np.zeros(ROWS.shape, bool)
    points[3, [2, 5, 7]] = True
    regions = file.create_dataset("entry/regions", (4,), h5py.regionref_dtype)
    regions[0], regions[1], regions[2] = x.regionref[2:9, 1:4], x.regionref[points], x.regionref[...]
    file.attrs.create("one", x.regionref[5:6], dtype=h5py.regionref_dtype)
    file["alias"], file["entry/up"] = x, file["entry"]
    file["soft"], file["out"] = h5py.SoftLink("/nowhere"), h5py.ExternalLink("other.h5", "/x")
    scalar = file.create_dataset("scalar", (), h5py.ref_dtype)
    scalar[()] = scalar.ref  # to itself
    file["nothing"] = h5py.Empty("f4")


def nested(file: h5py.File) -> None:
    """References in compounds, arrays, vlens and vlens of compounds; beside strings of any length."""
    file["x"] = ROWS
    refs = [file["x"].ref, file.ref, h5py.Reference()]
    pair = np.dtype([("n", "i4"), ("to", h5py.ref_dtype), ("name", h5py.string_dtype())])
    deep = np.dtype([("pair", pair), ("many", h5py.ref_dtype, (2,)), ("region", h5py.regionref_dtype)])
    rows = np.empty(3, deep)
    for k in range(3):
        rows[k] = ((k, refs[k], "ä" * k), (refs[0], refs[k]), file["x"].regionref[k : k + 2, :3])
    file.create_dataset("deep", data=rows, dtype=deep)
    file.create_dataset(
        "chunked", data=np.resize(rows, 40), dtype=deep, chunks=(7,), maxshape=(None,), compression="gzip"
    )
    ragged = file.create_dataset("ragged", (3,), h5py.vlen_dtype(h5py.ref_dtype))
    for k in range(3):
        ragged[k] = np.array(refs[:k], dtype=h5py.ref_dtype)
    file["x"].attrs.create("pair", rows["pair"][:2], dtype=pair)
    file["words"] = ["a", "", "ü" * 3000]


def types(file: h5py.File) -> None:
    """Named types, two of them equal; every kind of attribute; extents, fill values, order, layouts."""
    for name in ("first", "second"):
        file[name] = np.dtype([("a", "<i4"), ("b", "<f8")])
        file[name].attrs["unit"] = "m"
    for k, name in enumerate(("first", "second", "first")):
        file.create_dataset(f"typed{k}", (900,), file[name])["a"] = np.arange(900)
    file.attrs.create("typed", np.zeros(2, file["second"].dtype), dtype=file["second"])
    group = file.create_group("ordered", track_order=True)
    for name in "zebra":
        group.attrs[name] = name
        group[name] = np.arange(3)
    kinds: dict[str, Any] = {
        "text": "ä", "bytes": np.bytes_(b"a\0b"), "empty": h5py.Empty("S3"), "words": ["a", "bc"],
        "big": np.arange(20_000.0), "none": np.zeros((0, 2)), "opaque": np.void(b"\x01\x02"),
        "flag": True, "half": np.float16(1.5), "z": 1 + 2j,
    }  # fmt: skip
    for name, value in kinds.items():
        group.attrs[name] = value
    group.attrs.create("enum", 1, dtype=h5py.enum_dtype({"red": 0, "blue": 1}, "u1"))
    group.attrs.create("ascii", "a", dtype=h5py.string_dtype("ascii", 7))
    file.create_dataset("grows", data=ROWS, maxshape=(None, 9), chunks=(50, 9), compression="gzip", fillvalue=3)
    file.create_dataset("sparse", (1000, 1000), "f8", chunks=(100, 100), fillvalue=-1)[250, 3] = 7
    file.create_dataset("unwritten", (10**12,), "f8", fillvalue=5)
    file.create_dataset("never", data=ROWS, chunks=(100, 9), fill_time="never", shuffle=True)
    file.create_dataset("flags", data=np.arange(900) % 2 == 0)
    file.create_dataset("array", (5,), np.dtype(("i2", (3,))))[...] = np.full((5, 3), 4)
    for k in range(40):
        file[f"small/{k}"] = np.arange(k)


FILES: dict[str, Callable[[h5py.File], None]] = {f.__name__: f for f in (matlab, netcdf, nexus, nested, types)}


@pytest.mark.one_quick
@pytest.mark.parametrize("codec", ["none", "gzip"])
@pytest.mark.parametrize("name", FILES)
def test_a_copy_is_deeply_equal(tmp_path: Path, name: str, codec: str) -> None:
    how = {"userblock_size": 512, "libver": "latest" if codec == "gzip" else "earliest"}
    with h5py.File(tmp_path / "a.h5", "w", **how, track_order=name == "types") as file:
        FILES[name](file)
    with open(tmp_path / "a.h5", "r+b") as raw:
        raw.write(b"MATLAB 7.3 MAT-file")
    equal(tmp_path / "a.h5", codec)
    assert (tmp_path / "copy.h5").stat().st_size < 2_000_000  # what was never written takes no room


DAMAGE: dict[str, Any] = {  # what of the copying goes wrong
    "exchanged": lambda values, swap: values,
    "h5o.copy": lambda *args, copy=h5py.h5o.copy, **kwargs: broken(copy(*args, **kwargs), *args[2:4]),
    "Copier.reference": lambda copier, reference: next(iter(copier.made.values())),
}


def broken(_: None, holder: Any, name: bytes) -> None:
    """What HDF5 has copied gets other values."""
    dset = h5py.Dataset(h5py.h5o.open(holder, name))
    dset[...] = np.zeros(dset.shape) if dset.dtype.kind == "f" else "?"


@pytest.mark.parametrize("part", DAMAGE)
def test_what_is_copied_as_it_lies_is_read_back_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file["x"], file["words"], file["small"] = ROWS, ["a", "bc"], np.ones(3)
        file.create_dataset("to", (2,), h5py.ref_dtype)[:] = [file["x"].ref, file["words"].ref]
    monkeypatch.setattr(f"h5rows.packing.copying.{part}", DAMAGE[part])
    with pytest.raises(ConfigError, match="read back with other bytes than written"):
        copy(tmp_path / "a.h5")
    assert [path.name for path in tmp_path.iterdir()] == ["a.h5"]


def user_link(path: Path) -> None:
    """h5py writes no user-defined link: the class of an external one is exchanged in the file."""
    with h5py.File(path, "w", libver="earliest") as file:
        file["mine"] = h5py.ExternalLink("other.h5", "/x")
        file["x"] = ROWS
    data = path.read_bytes()
    at = data.index(b"\x04mine") - 1
    assert data[at] == 64
    path.write_bytes(data[:at] + bytes([187]) + data[at + 1 :])


def dangling(path: Path) -> None:
    with h5py.File(path, "w") as file:
        file["x"], file["y"] = ROWS, np.arange(2000)
        file.create_dataset("to", (2,), h5py.ref_dtype)[:] = [file["x"].ref, file["y"].ref]
        del file["y"]


def unnamed(path: Path) -> None:
    """An object that no name leads to: it holds itself."""
    with h5py.File(path, "w") as file:
        file["x"], file["group/kind"] = ROWS, np.dtype("f8")
        file["group/self"] = file["group"]
        file.create_dataset("to", (2,), h5py.ref_dtype)[:] = [file["x"].ref, file["group"].ref]
        file.create_dataset("typed", data=np.arange(3.0), dtype=file["group/kind"])
        del file["group"]


@pytest.mark.parametrize(
    ("make", "kind", "names"),
    [
        (user_link, "links", "/mine (a user-defined link"),
        (dangling, "references", "in /to (has no target"),
        (unnamed, "references", "in /to (leads to an object without a name"),
    ],
)
def test_what_is_left_out_is_named_counted_and_in_the_status(
    tmp_path: Path, make: Callable[[Path], None], kind: str, names: str, capsys: pytest.CaptureFixture[str]
) -> None:
    make(tmp_path / "a.h5")
    account, out = copy(tmp_path / "a.h5")
    assert account.exit_status == LEFT_OUT
    assert account.lost == {kind: 1}
    assert f"left out: 1 {kind}: " in (said := capsys.readouterr().out)
    assert names in said
    with h5py.File(out) as file:
        np.testing.assert_array_equal(file["x"][:], ROWS)


def test_a_copy_many_times_as_large_is_asked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("h5rows.packing.repack.MOST_BYTES", 1 << 20)
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=np.zeros((2000, 1000), "u1"), chunks=(1000, 1000), compression="gzip")
    with pytest.raises(ConfigError, match=r"\(x: 2 MB\).*allow_larger=True"):
        copy(tmp_path / "a.h5")
    assert [p.name for p in tmp_path.iterdir()] == ["a.h5"]
    assert copy(tmp_path / "a.h5", allow_larger=True)[0].exit_status == 0


def test_what_can_grow_becomes_contiguous_if_asked(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        file.create_dataset("x", data=ROWS, maxshape=(None, 9), compression="gzip")
    account, out = copy(tmp_path / "a.h5", contiguous=True)
    assert account.exit_status == 0
    assert account.asked["extents that can grow"] == 1
    with h5py.File(out) as file:
        assert file["x"].chunks is None
        np.testing.assert_array_equal(file["x"][:], ROWS)


def odd(path: Path) -> None:
    """An attribute and a dataset of types that NumPy lacks, a link that h5py does not know, and a good dataset."""
    user_link(path)
    with h5py.File(path, "r+") as file:
        quad = h5py.h5t.IEEE_F64LE.copy()
        quad.set_size(16)
        quad.set_precision(128)
        quad.set_fields(127, 112, 15, 0, 112)
        quad.set_ebias(16383)
        h5py.h5d.create(file.id, b"quad", quad, h5py.h5s.create_simple((3,)))
        h5py.h5a.create(file.id, b"odd", quad, h5py.h5s.create_simple((1,)))
        file.attrs["steers\x1b[2J"] = "\x1b[31mred"
        file["x"].attrs["unit"] = "m"


def test_inspect_lists_the_rest(tmp_path: Path) -> None:
    odd(tmp_path / "a.h5")
    done = typed("inspect", tmp_path / "a.h5")
    assert done.status == 0, done.err
    lines = (
        "x: 700x9 float32",
        "  unit: m",
        "quad: cannot be read",
        "  odd: cannot be read",
        "mine: a user-defined link",
    )
    assert [line for line in lines if line not in done.out] == []
    assert "\x1b" not in done.out
    account, out = copy(tmp_path / "a.h5")
    assert account.lost == {"links": 1}
    with h5py.File(out) as file:
        assert h5py.h5d.open(file.id, b"quad").get_type().get_size() == 16


def test_a_closed_pipe_ends_inspect_quietly(tmp_path: Path) -> None:
    with h5py.File(tmp_path / "a.h5", "w") as file:
        for k in range(200):
            file[f"x{k}"] = np.arange(9)
    line = f"{sys.executable} -m h5rows inspect {tmp_path}/a.h5 | head -1"
    done = subprocess.run(
        ["bash", "-c", line],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert done.stdout.startswith(str(tmp_path))
    assert done.stderr == ""
