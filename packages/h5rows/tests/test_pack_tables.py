"""Cells of tables: each number is the one that was written, or its column is refused by name."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import h5rows
from h5rows.errors import ConfigError
from h5rows.importers import open_source
from h5rows.options import PackOptions

pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
few = settings(max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])

EDGES = [0, 1, -1, 2**24, 2**24 + 1, 123456789, 2**31, 2**53, 2**53 + 1, -(2**53) - 1, 2**63 - 1, -(2**63)]
WIDE = [*EDGES, 2**63, 2**63 + 1, 2**64 - 1, 2**64, -(2**63) - 1, 10**30, 10**400]
POINTS = [0.5, -1.25, 0.1, 1e-3, 16777217.5, 1e39, 1e-42, 1e300]
NAMES = ["a", "b"]


def read(path: Path, name: str, **kwargs: Any) -> np.ndarray:
    source = open_source(str(path), PackOptions(quiet=True, fields={name: "x"}, **kwargs))
    values, bad = source.read(range(len(source.splits[""])), [name])
    assert not bad
    return np.asarray(values[name], source.fields[name].dtype)


def attempt(path: Path, name: str) -> tuple[np.ndarray, str]:
    """(values, "") or (nothing, why it was refused)."""
    try:
        return read(path, name, empty="nan"), ""
    except ConfigError as error:
        return np.empty(0), str(error)


def same(cell: Any, value: Any) -> bool:
    """Whole numbers to the last digit; others rounded once, to float32 where that has an exponent for them."""
    if cell is None:
        return math.isnan(value)
    if isinstance(cell, float):
        return value == cell or (1e-38 < abs(cell) < 2**24 and value == float(np.float32(cell)))
    return not math.isinf(value) and int(value) == cell


@pytest.mark.slow
@few
@given(st.data())
@pytest.mark.parametrize("together", [False, True])
def test_a_csv_keeps_each_number_or_is_refused_by_name(tmp_path: Path, together: bool, data: Any) -> None:
    cell = st.sampled_from([EDGES, WIDE, POINTS, [*EDGES, None], [*EDGES, *POINTS, None], [*WIDE, *POINTS]]).flatmap(
        st.sampled_from
    )
    columns = {n: data.draw(st.lists(cell, min_size=3, max_size=3)) for n in NAMES}
    rows = [",".join("" if c is None else str(c) for c in row) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "t.csv").write_text("a,b\n" + "\n".join(rows) + "\n")
    found: dict[str, Any] = {}
    for name in ["a,b"] if together else NAMES:
        found[name], refusal = attempt(tmp_path / "t.csv", name)
        if refusal:
            assert "column" in refusal
            assert "\n" not in refusal
            assert together or any(c is not None and abs(c) > 2**53 for cells in columns.values() for c in cells)
            return
    for k, name in enumerate(NAMES):
        values = found["a,b"][:, k] if together else found[name]
        assert all(map(same, columns[name], values.tolist())), (columns[name], values)


@few
@given(st.data())
def test_parquet_keeps_each_number_or_is_refused_by_name(tmp_path: Path, data: Any) -> None:
    kinds = {"int64": EDGES, "uint64": [0, 2**53 + 1, 2**64 - 1], "int8": [-128, 5], "float32": [0.5, 1e-3]}
    columns = {}
    for name in NAMES:
        kind = data.draw(st.sampled_from(sorted(kinds)))
        cells = data.draw(st.lists(st.sampled_from([*kinds[kind], None]), min_size=4, max_size=4))
        columns[name] = pa.array(cells, kind)
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", row_group_size=2)
    for chosen in (["a"], ["b"], NAMES):
        values, refusal = attempt(tmp_path / "t.parquet", ",".join(chosen))
        if refusal:
            assert "would lose digits" in refusal
            continue
        values = values.reshape(4, -1)
        for k, name in enumerate(chosen):
            cells = columns[name].to_pylist()
            assert all(map(same, cells, values[:, k].tolist())), (columns[name], values)


def test_types_of_a_csv_stay_small_where_nothing_is_lost(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("n,v,big,u,g\n1,0.1,16777217,18446744073709551615,7\n2,2.5,,3,\n")
    kinds = {n: read(tmp_path / "t.csv", n, empty="nan").dtype for n in ("n", "v", "big", "u", "g", "n,v")}
    assert kinds == {"n": "i8", "v": "f4", "big": "f8", "u": "u8", "g": "f8", "n,v": "f8"}
    (tmp_path / "t.csv").write_text("v,d\n1,2020-01-02\nNaN,2020-01-03\n")
    with pytest.raises(ConfigError, match=r"'v' is empty or NaN in row 1"):
        read(tmp_path / "t.csv", "v")
    (tmp_path / "t.csv").write_text("v,v\n1,2\n")
    with pytest.raises(ConfigError, match=r"t.csv has two columns 'v'"):
        read(tmp_path / "t.csv", "v")


def test_empty_places_in_lists_and_texts_are_refused(tmp_path: Path) -> None:
    table = {"f": [[1.5, None], [2.0, 3.0]], "i": [[1, 2], [2**53 + 1, None]], "none": [[1], None], "t": ["ü", None]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    for name in ("f", "i", "none"):
        for variable in (False, True):
            with pytest.raises(ConfigError, match=rf"column '{name}' .*empty.* row"):
                read(tmp_path / "t.parquet", name, variable=variable)
    with pytest.raises(ConfigError, match=r"9007199254740993 would lose digits as float64"):
        read(tmp_path / "t.parquet", "i", empty="nan")
    source = open_source(str(tmp_path / "t.parquet"), PackOptions(fields={"t": "t"}, kinds={"t": "text"}))
    values, bad = source.read(range(2), ["t"])
    assert [v.tobytes().decode() for v in values["t"]] == ["ü"]
    assert [(b.place, b.reason) for b in bad] == [(1, "is empty")]


@pytest.mark.parametrize("kind", ["csv", "parquet", "dictionary"])
def test_a_missing_category_is_refused_or_minus_one_and_masked(tmp_path: Path, kind: str) -> None:
    """As AnnData's: the packed file says that -1 is no class, and a run leaves such rows out."""
    names, path = ["x", None, "y", "x", None], tmp_path / f"t.{'csv' if kind == 'csv' else 'parquet'}"
    if kind == "csv":
        path.write_text("a,d\n" + "".join(f"{k},{name or ''}\n" for k, name in enumerate(names)))
    else:
        cells = pa.array(names).dictionary_encode() if kind == "dictionary" else pa.array(names)
        pq.write_table(pa.table({"a": list(range(5)), "d": cells}), path)
    for kinds in ({}, {"d": "class"}):
        with pytest.raises(ConfigError, match=r"column 'd' has empty cells; empty='nan' makes them class -1"):
            read(path, "d", kinds=kinds)
        assert read(path, "d", empty="nan", kinds=kinds).tolist() == [0, -1, 1, 0, -1]
    h5rows.pack(path, out := tmp_path / "t.h5", empty="nan", quiet=True)
    data = h5rows.Dataset(str(out), {"x": "a", "y": "d"}, decode=True, missing={"y": "drop"})
    assert data.class_names["y"] == ["x", "y"]
    assert [data.column(name).tolist() for name in "xy"] == [[0, 2, 3], [0, 1, 0]]
    assert h5rows.Dataset(str(out), {"y": "d"}, decode=True, missing=-1).column("y").tolist() == [0, -1, 1, 0, -1]
    with pytest.raises(ConfigError, match=r"d: 40.00% of its rows have no class: set missing={'y': 'drop'} to remove"):
        h5rows.Dataset(str(out), {"x": "a", "y": "d"}, decode=True)


def test_texts_that_stand_for_no_value(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("hp,d,n\n130.5,?,1\n?,a, ?\n165,b,NA\n")
    found = {name: read(tmp_path / "t.csv", name, empty="?").tolist() for name in ("hp", "d", "n")}
    assert str(found) == "{'hp': [130.5, nan, 165.0], 'd': [-1, 0, 1], 'n': [1.0, nan, nan]}"
    pq.write_table(pa.table({"d": ["a", "?", "b"], "when": ["2024-01-02", "a", "a"]}), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet", "d").tolist() == [1, 0, 2]
    with pytest.raises(ConfigError, match=r"empty='\?': .*t.parquet is Parquet, which marks empty cells itself"):
        read(tmp_path / "t.parquet", "d", empty="?")
    with pytest.raises(
        ConfigError, match=r"'when' contains '2024-01-02', neither a number nor a name: kinds={'when': 'class'}"
    ):
        read(tmp_path / "t.parquet", "when")


def test_each_of_the_columns_that_a_field_names_is_there(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,water\n1,2\n")
    assert read(tmp_path / "a.csv", "age,wat*").shape == (1, 2)
    with pytest.raises(ConfigError, match=r"^fields=: .* has no column 'wat'; it has \['age', 'water'\]"):
        read(tmp_path / "a.csv", "age,wat")


def test_the_first_cell_that_can_be_read_says_what_all_are_like(tmp_path: Path) -> None:
    image = pytest.importorskip("PIL.Image")
    image.new("RGB", (4, 3)).save(tmp_path / "1.png")
    (tmp_path / "0.png").write_bytes(b"damaged")
    (tmp_path / "t.csv").write_text("file,words\n0.png,a\n1.png,bb\n")
    cells = [b"damaged", (tmp_path / "1.png").read_bytes()]
    pq.write_table(pa.table({"image": cells, "raw": [None, b"12"]}), tmp_path / "t.parquet")
    how: dict[str, Any] = {"quiet": True, "on_error": "skip", "overwrite": True}
    for name, options in {
        "t.csv": {"file_column": "file", "kinds": {"words": "text"}},
        "t.parquet": {"kinds": {"image": "image"}},
    }.items():
        h5rows.pack(tmp_path / name, out := tmp_path / "t.h5", **how, **options)
        data = h5rows.open(str(out))
        assert len(data) == 1
        assert data[0]["image"].shape == (3, 3, 4)
    assert data[0]["raw"] == 12


def test_a_table_with_a_column_image_beside_the_one_of_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("file,image\n1.png,2\n")
    with pytest.raises(
        ConfigError, match=r"file_column='file' creates a field image, but .* has a column of this name"
    ):
        read(tmp_path / "t.csv", "image", file_column="file")


@pytest.mark.skipif(not hasattr(pa, "string_view"), reason="an older pyarrow")
@pytest.mark.parametrize("kind", ["string", "large_string", "string_view", "binary", "large_binary", "binary_view"])
def test_all_kinds_of_strings_and_bytes_are_packed(tmp_path: Path, kind: str) -> None:
    cells = ["a", "b", "a"] if "string" in kind else [b"1", b"2", b"1"]
    pq.write_table(pa.table({"k": pa.array(cells, getattr(pa, kind)())}), tmp_path / "t.parquet")
    assert read(tmp_path / "t.parquet", "k").tolist() == ([0, 1, 0] if "string" in kind else [1, 2, 1])
