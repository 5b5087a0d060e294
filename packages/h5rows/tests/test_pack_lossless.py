"""A copy holds what the source holds, or names what it left out and ends with status 3."""

from __future__ import annotations

import json
import pickle
import re
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
from pack_typed import typed
from test_pack_formats import npy, packed, png, write_lmdb, write_tar

from h5rows.account import LEFT_OUT
from h5rows.command import as_options
from h5rows.errors import ConfigError
from h5rows.integration import PackOptions, open_source
from h5rows.packing.write import pack


def texts(group: h5py.Group) -> list[str]:
    ends = group["offsets"][1:-1]
    return [part.tobytes().decode() for part in np.split(group["values"][:], ends)]


# -- LMDB

NUMBERS = {f"image-{k}": b"%d" % k for k in range(4)}


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("items", "rows", "lost"),
    [  # rows: of each field; the number of the samples is none, and nothing is lost with it
        ({f"{kind}_{k}": b"%d" % k for kind in ("metal", "wood") for k in range(5)}, {"metal": 5, "wood": 5}, []),
        ({f"{kind}-{k:05}": b"7" for kind in ("image", "length") for k in range(3)}, {"image": 3, "length": 3}, []),
        (dict.fromkeys(("height", "length", "width", "keys", "depth"), b"4"), {"value": 5, "key": 5}, []),
        ({f"metaphor{k:02}-a": b"x" for k in range(7)}, {"value": 7, "key": 7}, []),
        ({**NUMBERS, "num-samples": b"4"}, {"image": 4}, []),
        ({**NUMBERS, "length": b"9"}, {"image": 4}, ["'length'"]),
        ({**NUMBERS, "meta": b"12"}, {"value": 5, "key": 5}, []),
        ({**NUMBERS, "__len__": b"4"}, {"image": 4}, []),
        ({**NUMBERS, "__len__": pickle.dumps(4)}, {"image": 4}, ["'__len__'"]),
        ({**NUMBERS, "__len__": b"17", "length": b"4"}, {"image": 4}, ["'__len__'"]),
        ({**NUMBERS, "__names__": b"cat,dog"}, {"image": 4}, ["'__names__'"]),
        ({"cat": b"text", "dog": b"more", "length": b"2"}, {"value": 3, "key": 3}, []),
    ],
)  # fmt: skip
def test_each_key_of_an_lmdb_is_a_sample_or_proven_to_be_none_or_named(
    tmp_path: Path, items: dict[str, bytes], rows: dict[str, int], lost: list[str]
) -> None:
    write_lmdb(tmp_path / "a", items)
    file, account = packed(tmp_path / "a")
    with file:
        assert {n: len(f["offsets"]) - 1 if isinstance(f, h5py.Group) else len(f) for n, f in file.items()} == rows
        if "key" in rows:
            assert texts(file["key"]) == sorted(items)
    said = " ".join(account.lines())
    assert all(name in said for name in lost)
    assert account.exit_status == (LEFT_OUT if lost else 0)


# -- links


def zarr_store(path: Path) -> Path:
    zarr = pytest.importorskip("zarr")
    array = zarr.open_group(str(path), mode="w", zarr_format=2).create_array(
        "x", shape=(4, 2), chunks=(2, 2), dtype="u1", compressors=None
    )
    array[:] = np.arange(8).reshape(4, 2)
    return path


def n5_store(path: Path) -> Path:
    store = pytest.importorskip("tensorstore")
    meta = {"dataType": "uint8", "dimensions": [4, 2], "blockSize": [2, 2], "compression": {"type": "raw"}}
    spec = {"driver": "n5", "kvstore": {"driver": "file", "path": f"{path}/x/"}, "metadata": meta}
    store.open(spec, create=True).result()[...] = np.arange(8, dtype=np.uint8).reshape(4, 2)
    return path


def lmdb_folder(path: Path) -> Path:
    write_lmdb(path, {"0": b"1"})
    return path


def folder_of(*names: str, data: bytes = b"words") -> Any:
    def make(path: Path) -> Path:
        for name in names:
            (path / name).parent.mkdir(parents=True, exist_ok=True)
            (path / name).write_bytes(data)
        return path

    return make


def tars(path: Path) -> Path:
    write_tar(path / "a.tar", [("0.cls", b"1")])
    return path


PNG, NPY = png()[0], npy(np.zeros((3, 2)))
WITH_LINKS = [  # what makes a source, the file or folder that becomes a link, the options
    (zarr_store, "x/0.0", {}),
    (zarr_store, "x/.zarray", {}),
    (n5_store, "x", {"format": "n5"}),
    (lmdb_folder, "data.mdb", {}),
    (folder_of("a/1.png", "b/2.png", data=PNG), "a/1.png", {}),
    (folder_of("a/1.png", "b/2.png", data=PNG), "b", {}),
    (folder_of("train/a/1.png", "test/a/2.png", data=PNG), "train", {}),
    (folder_of("x.npy", "y.npy", data=NPY), "y.npy", {}),
    (folder_of("train/x.npy", "test/x.npy", data=NPY), "test", {}),
    (folder_of("1.npy", "2.npy", data=NPY), "2.npy", {"format": "samples"}),
    (folder_of("1.txt", "deep/2.txt"), "deep", {}),
    (folder_of("1.csv", "2.csv", data=b"x,y\n1,2\n"), "2.csv", {}),
    (tars, "a.tar", {}),
]


@pytest.mark.one_quick
@pytest.mark.parametrize(("make", "name", "options"), WITH_LINKS)
def test_a_link_out_of_a_source_is_refused_and_one_within_it_or_to_it_is_not(
    tmp_path: Path, make: Any, name: str, options: dict[str, Any]
) -> None:
    source, elsewhere = make(tmp_path / "in"), tmp_path / "elsewhere"
    (tmp_path / "given").symlink_to(source)
    with packed(tmp_path / "given", **options)[0] as file:
        whole: dict[str, Any] = {}
        file.visititems(lambda n, item: whole.update({n: item[:]}) if isinstance(item, h5py.Dataset) else None)
    (source / name).rename(elsewhere)
    (source / name).symlink_to(elsewhere)
    for path in (source, tmp_path / "given"):
        with pytest.raises(ConfigError, match=rf"{name} is a link to .*/elsewhere, outside of .*external='allow'"):
            packed(path, **options)
    with packed(source, external="allow", **options)[0] as file:
        assert all(np.array_equal(file[n][:], values) for n, values in whole.items())
    (source / name).unlink()
    inside = source / f".{elsewhere.name}"  # a hidden name: no second sample
    elsewhere.rename(inside)
    (source / name).symlink_to(inside)
    if "zarr" not in make.__name__ and "n5" not in make.__name__:
        with packed(source, ignore=(inside.name,), **options)[0] as file:
            assert all(np.array_equal(file[n][:], values) for n, values in whole.items())


@pytest.mark.slow
def test_a_table_or_a_pattern_names_nothing_outside(tmp_path: Path) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "secret.png").write_bytes(PNG)
    (tmp_path / "in/link.png").symlink_to(tmp_path / "secret.png")
    for name in ("../secret.png", str(tmp_path / "secret.png"), "link.png"):
        (tmp_path / "in/a.csv").write_text(f"file,n\n{name},1\n")
        with pytest.raises(ConfigError, match=r"column 'file' names .*outside of .*external='allow'"):
            packed(tmp_path / "in/a.csv", file_column="file")
        packed(tmp_path / "in/a.csv", file_column="file", external="allow")[0].close()
    (tmp_path / "secret.csv").write_text("n\n1\n")
    (tmp_path / "in/b-1.csv").symlink_to(tmp_path / "secret.csv")
    with pytest.raises(ConfigError, match=r"b-1.csv is a link to"):
        packed(tmp_path / "in/b-*.csv")
    packed(tmp_path / "in/b-1.csv")[0].close()  # named by the user


# -- CSV


def columns(path: Path, text: str | bytes, **kwargs: Any) -> dict[str, list[Any]]:
    """What the packed file says of each column, as numbers or as the texts that the cells were."""
    pytest.importorskip("pyarrow")
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    found: dict[str, list[Any]] = {}
    with packed(path, **kwargs)[0] as file:
        for name, item in file.items():
            if isinstance(item, h5py.Group):
                found[name] = texts(item)
            else:
                classes = item.attrs.get("classes")
                found[name] = item[:].tolist() if classes is None else [str(classes[k]) for k in item[:]]
    return found


@pytest.mark.one_quick
@pytest.mark.parametrize(
    ("text", "options", "expected"),
    [
        ("a;b\n1;2\n3;4\n", {"separator": ";"}, {"a": [1, 3], "b": [2, 4]}),
        ("a\tb\n1\tx\n3\ty\n", {"separator": "\t"}, {"a": [1, 3], "b": ["x", "y"]}),
        ('a,b\n1,"x;y"\n2,"u;v"\n', {}, {"a": [1, 2], "b": ["x;y", "u;v"]}),
        ('a,b\n"1,5",2\n', {"decimal": ","}, {"a": [1.5], "b": [2]}),
        ("a;b\n1,5;2\n", {"decimal": ",", "separator": ";"}, {"a": [1.5], "b": [2]}),
        ("a;b\n1,5;2\n", {"kinds": {"a": "text"}, "separator": ";"}, {"a": ["1,5"], "b": [2]}),
        ("a b\n1 2\n", {"separator": " "}, {"a": [1], "b": [2]}),
        ("zip,n\n02139,1\n10001,2\n", {}, {"zip": ["02139", "10001"], "n": [1, 2]}),
        ("zip,n\n10001,1\n02139,2\n", {"kinds": {"zip": "int"}}, {"zip": [10001, 2139], "n": [1, 2]}),
        ("id,n\n007,0\n8,0.5\n", {"kinds": {"id": "text"}}, {"id": ["007", "8"], "n": [0, 0.5]}),
        ("id,n\n1.5,0\n02,0.5\n", {"kinds": {"id": "class"}}, {"id": ["1.5", "02"], "n": [0, 0.5]}),
        ("id,n\n1.5,0\n02,0.5\n", {"kinds": {"id": "float"}}, {"id": [1.5, 2], "n": [0, 0.5]}),
        ("hp,n\n1.5,0\n?,0.5\n", {"empty": "?", "fields": {"n": "n"}}, {"n": [0, 0.5]}),
        ("hp,n\n1,0\n?,0.5\n", {"kinds": {"hp": "text"}}, {"hp": ["1", "?"], "n": [0, 0.5]}),
        ('t,n\n"He said \\"hi\\", ok",1\n', {"escape": "\\"}, {"t": ['He said "hi", ok'], "n": [1]}),
        ('t,n\n"He said ""hi"", ok",1\n', {}, {"t": ['He said "hi", ok'], "n": [1]}),
        ("t,n\n<=50K,1\n>50K,2\n", {}, {"t": ["<=50K", ">50K"], "n": [1, 2]}),
        ("t,n\n18-25,1\n26+,2\n", {"kinds": {"t": "class"}}, {"t": ["18-25", "26+"], "n": [1, 2]}),
        ("1,2\n3,4\n", {"header": False}, {"f0": [1, 3], "f1": [2, 4]}),
        ("1,2\n3,4\n", {"header": True}, {"1": [3], "2": [4]}),
        ("label,0,1,2\n7,1,2,3\n", {"header": True}, {"label": [7], "0": [1], "1": [2], "2": [3]}),
        ("text,y\na b,pos\nc d,neg\n", {"kinds": {"text": "text"}}, {"text": ["a b", "c d"], "y": ["pos", "neg"]}),
        ("lat,n\n12.3456789012,0.1\n0.5,2.5\n", {}, {"lat": [12.3456789012, 0.5], "n": [0.1, 2.5]}),
        ("a,b\n1,\xe9t\xe9\n".encode("latin-1"), {"encoding": "latin-1"}, {"a": [1], "b": ["été"]}),
        ("a,b\n1,é\n".encode("utf-16"), {"encoding": "utf-16"}, {"a": [1], "b": ["é"]}),
        ("a,b\n1,é\n".encode("utf-16-be"), {"encoding": "utf-16-be"}, {"a": [1], "b": ["é"]}),
        (b"\xef\xbb\xbfa,b\n1,2\n", {}, {"a": [1], "b": [2]}),
        ('a,b\n1,"x\n\ny"\n2,z\n', {}, {"a": [1, 2], "b": ["x\n\ny", "z"]}),
        ("a\n1\n2\n\n", {}, {"a": [1, 2]}),
        ("a,b\n1,2\n\n3,4\n", {}, {"a": [1, 3], "b": [2, 4]}),
        ("a,d\n1,2020-01-02\n", {"kinds": {"d": "text"}}, {"a": [1], "d": ["2020-01-02"]}),
        ('a,b\n1,"1,2,x"\n', {}, {"a": [1], "b": ["1,2,x"]}),
    ],
)
def test_a_csv_is_read_as_it_was_meant(tmp_path: Path, text: Any, options: Any, expected: Any) -> None:
    found = columns(tmp_path / "a.csv", text, **options)
    assert list(found) == sorted(expected)
    for name, cells in expected.items():
        same = [f == c or (isinstance(c, float) and f == float(np.float32(c)) and float(str(np.float32(f))) == c)
                for f, c in zip(found[name], cells, strict=True)]  # fmt: skip
        assert all(same), (name, found[name])


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("1,2\n3,4\n", {}, "may be names or a sample: it contains '1'; --header .* --no-header"),
        ("0,1\n3,4\n", {}, "--header .* --no-header"),
        ("5.1,3.5,Iris-setosa\n4.9,3.0,Iris-setosa\n", {}, "--header .* --no-header"),
        ("?,1.5\n3,2\n", {}, "--no-header"),
        (",a\n0,1.5\n1,2\n", {}, "cannot be named ''; --fields can exclude it, such as pandas' index"),
        ("p,x,s,x\ne,x,s,y\n", {}, "two columns 'x'.*--no-header"),
        ("good film,pos\nbad film,neg\nbest film,pos\n", {}, "no column contains numbers.*--no-header"),
        ("NA,1\n5,2\n", {}, "--no-header"),
        ("1,5;2,5\n3,5;4,5\n", {}, "name contains ';'; --separator ';' if it separates columns, --separator ,"),
        ("a;b\n1;2\n3;4;5\n", {"separator": ";"}, "Row #3: Expected 2 columns, got 3: 3;4;5.*--separator"),
        ("a b\n1 2\n", {}, "name contains ' '; --separator"),
        ("a:b\n1:2\n", {}, "name contains ':'; --separator"),
        ("a;b\n1,5;2\n2,5;3\n", {}, "a.csv cannot be read as CSV: .*--separator"),
        ("a;b\n1,5;2\n", {"separator": ";"}, "column 'a' contains '1,5': --decimal , reads .*--as a=text"),
        ('a,b\n"1,234",2\n', {}, "column 'a' contains '1,234': --decimal"),
        ("a,b\n1,\xe9t\xe9\n".encode("latin-1"), {}, "utf-8 text, which .*--encoding"),
        ("a,b\n1,é\n".encode("utf-16"), {}, "utf-8 text, which .*--encoding"),
        ("a,b\n1,2\n", {"encoding": "utf-99"}, "unknown encoding: utf-99"),
        ("a\n1\n\n3\n", {}, "column 'a' is empty or NaN in row 1"),
        ("a,b\n1,2\n", {"kinds": {"c": "text"}}, "--as: .* has no column 'c'"),
        ("a,b\n1,2\n", {"kinds": {"a": "image"}}, "--as a=image"),
        ("a;b\n1.234;2\n", {"separator": ";", "decimal": ","}, "column 'a' contains '1.234', but --decimal ,"),
        ("a;b\n1.5e3;2\n2,5;3\n", {"separator": ";", "decimal": ","}, "column 'a' contains '1.5e3', but --decimal ,"),
        ("a;b\n1.234;2\n", {"separator": ";", "decimal": ",", "kinds": {"a": "float"}}, "column 'a' contains '1.234'"),
        ("a;b\n1.234;2\n?;3\n", {"separator": ";", "decimal": ",", "empty": "?"}, "column 'a' contains '1.234'"),
        ('t,n\n"He said \\"hi\\" ok",1\n', {}, r"line 2: text follows the closing quote .*--escape '\\' reads"),
        ('t,n\n"ends \\"",1\n', {}, r"line 2: text follows the closing quote .*--escape"),
        ('t,n\n"a" b,1\n', {}, r"line 2: text follows the closing quote .*--escape"),
        ("t,n\na,1\n\\N,2\n", {"escape": "\\"}, r"line 3: \\N means a missing value in some programs"),
        *[
            (f"hp,n\n130.0,1\n{odd},2\n165,3\n", {}, f"number '1.*{re.escape(odd)}'.*--as hp=class.*--as hp=text")
            for odd in ("?", "-", "abc", "0x10", "1_000", "2024-01-02", "12:30", "1.2.3")
        ],
        ("a,n\n1e-400,1\n,2\n0.0,3\n", {"empty": "nan"}, "no type can represent 1e-400 and the other numbers exactly"),
        # arrow reads 0xFFFFFFFFFFFFFFFF as int64: -1
        ("a,n\n0xFFFFFFFFFFFFFFFF,1\n2,2\n", {}, "number '2' and '0xFFFFFFFFFFFFFFFF'"),
        ("a,n\n0x10,1\n0x11,2\n", {}, "column 'a' contains '0x10', neither a number nor a name: --as a=class"),
        ("a,n\n+nan,1\n2,2\n", {}, r"number '2' and '\+nan'"),
        ("a,n\n0x10,1\n", {"kinds": {"a": "float"}}, "column 'a' of .* contains '0x10'; --empty 0x10"),
        ("a,n\n3,1\n2.5,2\n", {"kinds": {"a": "int"}}, "contains '2.5', which cannot be read as int64; --as a=float"),
        ("a,n\n-3,1\n9223372036854775808,2\n", {"kinds": {"a": "int"}}, "contains '9223372036854775808', which cannot"),
        ('a,n\n1,"x\n2,y\n', {}, "line 3: .*or a quote is not closed .*--escape"),
        (b"\x1f\x8b\x08\0", {}, "a.csv is gzip; decompress it first"),
        ("hp,n\n130.0,1\n007,2\n", {}, "column 'hp' contains '007', a number or a name: --as hp=float"),
        ("hp,n\n130.0,1\n?,2\n", {}, "--empty '\\?' reads it as a missing value"),
        (
            "hp,n\n130.0,1\n?,2\n",
            {"kinds": {"hp": "float"}},
            "contains '\\?'; --empty '\\?' reads it as a missing value",
        ),
        ("hp,n\n130.0,1\n1,2\n", {"empty": "zero"}, "--empty zero: no cell of .*a.csv contains it; give nan"),
        *[
            (f"d,n\n{cell},1\n{cell},2\n", {}, "column 'd' contains .* neither a number nor a name: --as d=class")
            for cell in ("2024-01-02", "12:30:01", "2024-01-02T12:30:00Z", "01/02/2024", "1.234.567", "5 %", "$5.10")
        ],
        ("id,n\n" + "".join(f"u{k},{k}\n" for k in range(300)), {}, "column 'id' has 300 different texts in 300 rows"),
        ("d,n\nx,1\n,2\ny,3\n", {}, "column 'd' has empty cells; --empty nan makes them class -1 .*missing"),
        ("d,n\nx,1\n,2\n", {"kinds": {"d": "class"}}, "column 'd' has empty cells; --empty nan"),
        ("d,n\nx,1\nNA,2\n", {}, "column 'd' contains 'NA', a missing value or a name: --empty NA .*--as d=class"),
    ],
)
def test_a_csv_that_may_be_meant_otherwise_is_refused(tmp_path: Path, text: Any, options: Any, message: str) -> None:
    """message: as the command says it."""
    with pytest.raises(ConfigError) as caught:
        columns(tmp_path / "a.csv", text, **options)
    assert re.search(message, as_options(str(caught.value)))
    assert str(caught.value).isprintable()


def test_a_tsv_is_cut_at_tabs(tmp_path: Path) -> None:
    assert columns(tmp_path / "a.tsv", "a\tb,c\n1\t2\n") == {"a": [1], "b,c": [2]}


def test_a_column_is_text_in_all_files_of_a_set(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow")
    for k, cells in enumerate(("12", "034", "56")):
        (tmp_path / f"{k}.csv").write_text(f"zip,n\n{cells},{k}\n")
    with packed(tmp_path / "*.csv")[0] as file:
        assert [str(file["zip"].attrs["classes"][k]) for k in file["zip"][:]] == ["12", "034", "56"]


# -- texts that look like numbers


@pytest.mark.slow
@pytest.mark.parametrize("values", [["007", "12"], ["12", "007"], ["12", "+7"], ["-0", "1"]])
def test_a_number_is_no_name(tmp_path: Path, values: list[str]) -> None:
    write_lmdb(tmp_path / "a", {str(k): v.encode() for k, v in enumerate(values)})
    write_tar(tmp_path / "a.tar", [(f"{k}.id", v.encode()) for k, v in enumerate(values)])
    write_tar(tmp_path / "b.tar", [(f"{k}.cls", v.encode()) for k, v in enumerate(values)])
    for name, field in (("a", "value"), ("a.tar", "id"), ("b.tar", "label")):
        try:
            with packed(tmp_path / name)[0] as file:
                assert texts(file[field]) == values
        except ConfigError as error:
            assert "kinds={'NAME': 'text'} keeps it" in str(error)  # noqa: PT017 - one of both
        with packed(tmp_path / name, kinds={field: "text"})[0] as file:
            assert texts(file[field]) == values
        with packed(tmp_path / name, kinds={field: "int"})[0] as file:
            assert file[field][:].tolist() == [int(v) for v in values]


# -- images

COLOURS = [0, 0, 0, 128, 0, 0, 0, 128, 0, 128, 128, 0]


def mask(path: Path, numbers: Any, colours: list[int] = COLOURS, **kwargs: Any) -> None:
    from PIL import Image

    image = Image.fromarray(np.asarray(numbers, np.uint8), "P")
    image.putpalette(colours)
    path.parent.mkdir(exist_ok=True)
    image.save(path, **kwargs)


@pytest.fixture
def numbers() -> np.ndarray:
    return np.random.default_rng(0).integers(0, 4, (8, 6))


@pytest.mark.slow
def test_a_mask_keeps_its_class_numbers(tmp_path: Path, numbers: np.ndarray) -> None:
    from PIL import Image

    for k in range(3):
        mask(tmp_path / f"in/{k}.png", (numbers + k) % 4, COLOURS[: 12 if k else 24])
    for options in ({}, {"mode": "P"}, {"size": (16, 12)}, {"variable": True}):
        file, account = packed(tmp_path / "in", **options)
        with file:
            flat = file["image/values"] if "variable" in options else file["image"]
            assert flat.attrs["palette"][:4].tolist() == np.reshape(COLOURS, (4, 3)).tolist()
            got = flat[:].reshape(3, 1, 8, 6) if "variable" in options else flat[:]
            step = 2 if "size" in options else 1
            assert np.array_equal(got[:, :, ::step, ::step], [[(numbers + k) % 4] for k in range(3)])
        assert account.exit_status == 0
    mask(tmp_path / "in/9.png", numbers, [*COLOURS[:9], 1, 2, 3])
    with pytest.raises(ConfigError, match=r"9.png: has another palette than 0.png.*mode='RGB' .*mode='P'"):
        packed(tmp_path / "in")
    file, account = packed(tmp_path / "in", mode="P")
    with file:
        assert np.array_equal(file["image"][3, 0], numbers)
    assert account.exit_status == 0
    with packed(tmp_path / "in", mode="RGB")[0] as file:
        assert np.array_equal(file["image"][0].transpose(1, 2, 0), np.reshape(COLOURS, (4, 3))[numbers])
    for k, mode in enumerate("L1"):  # white was 255 in the first, and 1 in the second
        Image.new(mode, (6, 8), 255).save(tmp_path / f"in/gray{k}.png")
    with pytest.raises(ConfigError, match=r"gray1.png: is an image of mode 1, but gray0.png is L; .*save all in one"):
        packed(tmp_path / "in", mode="P")


@pytest.mark.slow
def test_what_a_mode_leaves_out_of_images_is_refused_unless_it_was_asked_for(tmp_path: Path) -> None:
    from PIL import Image

    rng = np.random.default_rng(0)
    pixels = rng.integers(0, 256, (8, 6, 4)).astype(np.uint8)
    turned = Image.Exif()
    turned[0x0112] = 6
    made = {
        "0.png": (Image.fromarray(pixels[..., :3]), {}),
        "1.png": (Image.fromarray(pixels), {}),
        "2.png": (Image.fromarray(pixels[..., :2], "LA"), {}),
        "3.tif": (Image.fromarray(pixels, "CMYK"), {}),
        "4.png": (Image.fromarray(pixels[..., :3]), {"exif": turned}),
        "5.png": (Image.fromarray(np.dstack([pixels[..., :3], np.full((8, 6), 255, np.uint8)])), {}),
    }
    (tmp_path / "in").mkdir()
    for name, (image, how) in made.items():
        image.save(tmp_path / "in" / name, **how)
    for name, why in {
        "1.png": "has an alpha channel; mode='RGBA' keeps it, mode='RGB' does not",
        "2.png": "has an alpha channel",
        "3.tif": "has the colors CMYK; mode='RGB' converts them",
        "4.png": "has the EXIF orientation 6; exif='apply'",
    }.items():
        with pytest.raises(ConfigError, match=f"{name}: {why}"):
            packed(tmp_path / "in")
        (tmp_path / "in" / name).rename(tmp_path / name)
    with packed(tmp_path / "in", workers=2)[0] as file:
        assert np.array_equal(file["image"][:].transpose(0, 2, 3, 1), [pixels[..., :3]] * 2)
    for name in ("1.png", "2.png", "3.tif", "4.png"):
        (tmp_path / name).rename(tmp_path / "in" / name)
    file, account = packed(tmp_path / "in", mode="RGB", exif="ignore")
    with file:
        assert np.array_equal(file["image"][[0, 1, 4, 5]].transpose(0, 2, 3, 1), [pixels[..., :3]] * 4)
    assert account.exit_status == 0
    (tmp_path / "turned").mkdir()
    (tmp_path / "in/4.png").rename(tmp_path / "turned/4.png")
    for variable in (False, True):
        file, account = packed(tmp_path / "turned", exif="apply", variable=variable)
        with file:
            flat = file["image/values"][:] if variable else file["image"][0]
            assert np.array_equal(flat.reshape(3, 6, 8).transpose(1, 2, 0), np.rot90(pixels[..., :3], -1))
        assert account.exit_status == 0


# -- zarr and N5

ATTRS: dict[str, Any] = {
    "units": "K", "scale_factor": 0.01, "n": 3, "large": 2**64 - 1, "huge": 2**70, "flag": True, "none": None,
    "empty": [], "names": ["a", "ü"], "range": [0, 5], "mixed": [1, 2.5, "x"], "deep": {"a": {"b": [1]}},
    "nul": "a\0b", "source": "model", "nan": float("nan"), "text": "",
}  # fmt: skip


N5_ATTRS = {key: value for key, value in ATTRS.items() if key not in ("nan", "units")}  # tensorstore takes none such


def same_json(found: Any, want: Any) -> bool:
    """An attribute that HDF5 has no type for is JSON text."""
    if isinstance(found, str) and found != want:
        found = json.loads(found)
    found = found.tolist() if isinstance(found, (np.ndarray, np.generic)) else found
    return bool(found == want or (want != want and found != found))


def stores(path: Path) -> list[tuple[Path, dict[str, Any]]]:
    """Stores of both formats with attributes of the root, a group, and arrays."""
    zarr, made = pytest.importorskip("zarr"), []
    for version in (2, 3):
        root = zarr.open_group(str(path / f"{version}.zarr"), mode="w", zarr_format=version)
        root.attrs.update(ATTRS)
        for name, kind, fill in (("g/x", "i2", -1), ("g/y", "f8", float("nan")), ("z", "?", True)):
            array = root.create_array(
                name, shape=(4, 2)[: 1 + (name != "z")], chunks="auto", dtype=kind, fill_value=fill
            )
            array.attrs.update({**ATTRS, "own": name})
        root["g"].attrs["in"] = "g"
        root["g/x"][:2] = 5  # the rest is never written
        made.append((path / f"{version}.zarr", {"x": [[5, 5], [5, 5], [-1, -1], [-1, -1]]}))
    n5_store(path / "a.n5")
    for name in ("", "x/"):
        file = path / "a.n5" / name / "attributes.json"
        file.write_text(
            json.dumps({**(json.loads(file.read_text()) if file.exists() else {"n5": "2.0.0"}), **N5_ATTRS})
        )
    return made


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"split": {"val": 0.5}}])
def test_attributes_and_fill_values_of_stores_are_taken(tmp_path: Path, options: dict[str, Any]) -> None:
    for path, values in stores(tmp_path):
        file, account = packed(path, **options)
        with file:
            splits = ["train/", "val/"] if options else [""]
            for split in splits:
                for name, fill in (("g/x", -1), ("g/y", float("nan")), ("z", True)):
                    got = file[split + name].attrs
                    assert all(same_json(got[key], value) for key, value in ATTRS.items()), name
                    assert got["own"] == name
                    assert np.array_equal(got["fill_value"], fill, equal_nan=name == "g/y")
                    assert np.asarray(got["fill_value"]).dtype == file[split + name].dtype
                assert file[f"{split}g"].attrs["in"] == "g"
            assert all(same_json(file.attrs[key], value) for key, value in ATTRS.items())
            x = np.concatenate([file[f"{split}g/x"][:] for split in splits])
            assert sorted(x.tolist()) == sorted(values["x"])
        assert account.exit_status == 0
        assert account.held["attributes"] == account.taken["attributes"] == 4 * len(ATTRS) + 3 + 1 + 3
    with packed(tmp_path / "a.n5", **options)[0] as file:
        for item in (file, file["val/x" if options else "x"]):
            assert all(same_json(item.attrs[key], value) for key, value in N5_ATTRS.items())


def test_whatever_of_a_store_is_not_taken_is_named(tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    root = zarr.open_group(str(tmp_path / "a.zarr"), mode="w", zarr_format=2)
    root.create_array("x", shape=(4,), dtype="i4")[:] = 1
    root.create_array("one", shape=(), dtype="i4")
    zarr.consolidate_metadata(str(tmp_path / "a.zarr"))
    root.create_array("later", shape=(4,), dtype="i4")[:] = 2  # not in the consolidated list
    root.create_array("lost/y", shape=(4,), dtype="i4")[:] = 3
    (tmp_path / "a.zarr/lost/.zgroup").unlink()
    file, account = packed(tmp_path / "a.zarr")
    with file:
        assert file["later"][:].tolist() == [2] * 4
        assert file["lost/y"][:].tolist() == [3] * 4
    assert account.exit_status == LEFT_OUT
    assert account.lines() == ["left out: 1 arrays: one (a single value, not rows)"]
    account = packed(tmp_path / "a.zarr", ignore=("one",))[1]
    assert account.exit_status == 0


def test_a_provenance_of_its_own_does_not_hide_the_source_s(tmp_path: Path) -> None:
    path = stores(tmp_path)[0][0]
    options = PackOptions(quiet=True, workers=1)
    source = open_source(str(path), options)
    with h5py.File(pack(source, tmp_path / "o.h5", options, {"source": "a.zarr"})) as file:
        assert (file.attrs["source"], file.attrs["source_source"]) == ("a.zarr", "model")
    assert source.account.exit_status == 0


def test_two_arrays_of_one_place_are_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", x_train=np.zeros(3), train_x=np.ones(3))
    with pytest.raises(ConfigError, match=r"'x_train' and 'train_x' are both 'x' of train"):
        packed(tmp_path / "a.npz")
    np.savez(tmp_path / "a.npz", x_val=np.zeros(3), x_valid=np.ones(3))
    with pytest.raises(ConfigError, match=r"are both 'x' of val"):
        packed(tmp_path / "a.npz")
    torch.save({"a/b": torch.zeros(3), "a": {"b": torch.ones(3)}}, tmp_path / "a.pt")
    with pytest.raises(ConfigError, match="two tensors named 'a/b'"):
        packed(tmp_path / "a.pt")


def test_what_is_no_array_of_a_file_is_named(tmp_path: Path) -> None:
    import zipfile

    torch.save({"x": torch.zeros(3), "epoch": 5, "deep": {"name": "cat"}, "mean": torch.tensor(0.5)}, tmp_path / "a.pt")
    account = packed(tmp_path / "a.pt")[1]
    assert account.exit_status == LEFT_OUT
    assert account.lines()[0].startswith("left out: 3 values: epoch (a int, not a tensor); deep/name (a str")
    np.savez(tmp_path / "a.npz", x=np.zeros(3))
    with zipfile.ZipFile(tmp_path / "a.npz", "a") as archive:
        archive.writestr("notes.txt", "words")
    account = packed(tmp_path / "a.npz")[1]
    assert account.lines() == ["left out: 1 members: notes.txt (not .npy)"]
    (tmp_path / "in/_temporary").mkdir(parents=True)
    for name in ("1.tar", "labels.csv", ".hidden.tar", ".DS_Store", "_temporary/2.tar"):
        write_tar(tmp_path / "in" / name, [("0.cls", b"1")])
    file, account = packed(tmp_path / "in", format="webdataset")
    with file:
        assert [len(rows) for rows in file.values()] == [1]
    assert account.lines() == ["left out: 1 files: labels.csv (not .tar)"]
    for pattern, status in (("*.tsv", LEFT_OUT), ("*.csv", 0)):
        assert packed(tmp_path / "in", format="webdataset", ignore=(pattern,))[1].exit_status == status


def test_a_loss_is_in_the_status_of_the_command_and_on_the_screen(tmp_path: Path) -> None:
    write_tar(tmp_path / "a.tar", [("0.cls", b"1"), ("README", b"words")])
    for more, status in (
        (["--quiet"], LEFT_OUT),
        (["--overwrite"], LEFT_OUT),
        (["--overwrite", "--ignore", "*README"], 0),
    ):
        done = typed("pack", tmp_path / "a.tar", tmp_path / "a.h5", *more)
        assert done.status == status, done.err
        assert ("left out: 1 members: a.tar: README" in done.out) == (status != 0)
        assert ("all read back and compared" in done.out) == (status == 0)
