"""Random tables and texts: CSV as Python's csv module reads it, Parquet as to_pylist gives it, text by its bytes."""

from __future__ import annotations

import csv
import datetime
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from h5_types import Draw
from pack_case import Case, Cells

WHOLE = ["0", "1", "-1", "16777217", "123456789", "9007199254740993", "-9223372036854775808", "+5", "007"]
WIDE = ["9223372036854775808", "18446744073709551615", "18446744073709551616", "-9223372036854775809", "1" * 30]
POINT = [
    "0.5",
    "-1.25",
    "0.1",
    "12.3456789012",
    "1e-3",
    "1e5",
    "16777217.5",
    "1e39",
    "1e-42",
    "2.",
    ".5",
    "-0.0",
    "1.7976931348623157e308",
]
ODD = ["", "NA", "nan", "inf", "-inf", "true", "False", "2020-01-02", "10:00:00", "0x10", "1_000", "1e400", "N/A"]
WORDS = ["cat", "dög", "a,b", 'say "hi"', " lead", "tail ", "line\nbreak", "12a", "名", "-", "1 2", "'x'"]
KINDS = [[WHOLE], [WHOLE, POINT], [POINT], [WORDS], [WHOLE, WIDE], [WHOLE, ODD], [ODD], [WORDS, ODD], [WHOLE, WORDS],
         [WHOLE[:2]], [POINT, ODD], [WIDE]]  # fmt: skip
HEADS = ["x", "y", "label", "ü", "a b", "n.1", "", "x0", "..", "t,u", "x[0]", "*", "y,x0"]


def csv_file(w: Draw, folder: Path) -> Case:
    path, rows, count = folder / "a.csv", w.between(1, 12), w.between(1, 4)
    plain_heads = w.chance(0.85)
    heads = [f"c{k}" for k in range(count)] if plain_heads else [w.one_of(HEADS) for _ in range(count)]
    columns = []
    for _ in range(count):
        kinds = w.one_of(KINDS)
        columns.append([w.one_of(w.one_of(kinds)) for _ in range(rows)])
    text, stop = io.StringIO(), w.one_of(["\n", "\n", "\r\n"])
    style = w.one_of([csv.QUOTE_MINIMAL, csv.QUOTE_MINIMAL, csv.QUOTE_ALL])
    writer = csv.writer(text, lineterminator=stop, quoting=style)
    writer.writerow(heads)
    for row in zip(*columns):
        writer.writerow(row)
    made, what = text.getvalue(), w.one_of(["", "", "", "", "bom", "short", "long", "blank", "no end", "latin"])
    if what == "short" and count > 1:
        made += stop.join(["7"] * 1) + stop
    elif what == "long":
        made += ",".join(["7"] * (count + 1)) + stop
    elif what == "blank":
        made += stop
    elif what == "no end":
        made = made.removesuffix(stop)
    encoding = {"bom": "utf-8-sig", "latin": "latin-1"}.get(what, "utf-8")
    path.write_bytes(made.encode(encoding, "replace"))
    empty = w.one_of(["stop", "nan"])
    refused = what == "long" or (what == "short" and count > 1) or len(set(heads)) < count
    if what == "latin" and made.encode("latin-1", "replace").isascii():
        what = ""
    expected = {head: Cells(cells, empty == "nan") for head, cells in zip(heads, columns)}
    if encoding == "latin-1":
        expected = {head: Cells([c.encode("latin-1", "replace").decode("latin-1") for c in cells.values], cells.gaps)
                    for head, cells in expected.items()}  # fmt: skip
    harmless = all(set(cells) <= {*WHOLE, *POINT[:5]} or set(cells) <= {*WORDS} for cells in columns)
    plain = (
        harmless
        and plain_heads
        and what in ("", "no end", "bom")
        and not any("9007" in c or "-92" in c for cells in columns for c in cells)
    )
    header = w.one_of([True, True, None])
    return Case(
        path, None if refused else expected, {"empty": empty, "header": header}, plain and bool(header), what=what
    )


def parquet_column(w: Draw, rows: int) -> pa.Array:
    kind = w.one_of(["int", "int", "float", "bool", "text", "category", "list", "lists", "fixed", "date", "decimal",
                     "nested", "record", "bytes", "none"])  # fmt: skip
    gaps = w.chance(0.2)

    def cells(values: list[Any]) -> list[Any]:
        return [None if gaps and w.chance(0.3) else w.one_of(values) for _ in range(rows)]

    if kind == "int":
        name = w.one_of(["int8", "uint8", "int16", "int32", "uint32", "int64", "uint64"])
        top = np.iinfo(name)
        return pa.array(cells([0, 1, int(top.min), int(top.max), int(top.max) - 1]), name)
    if kind == "float":
        return pa.array(
            cells([0.5, -1.25, 0.0, float("nan"), float("inf"), 2.0**-10]), w.one_of(["float32", "float64"])
        )
    if kind == "bool":
        return pa.array(cells([True, False]))
    if kind == "text":
        return pa.array(cells(["", "a", "ü", "line\nbreak"]), w.one_of([pa.string(), pa.large_string()]))
    if kind == "category":
        return pa.array(cells(["cat", "dog"])).dictionary_encode()
    if kind in ("list", "lists"):
        inner = [1, -2, 2**53 + 1] if w.chance(0.5) else [0.5, float("nan")]
        size = w.between(1, 3)
        made = [[w.one_of([*inner, *[None] * gaps]) for _ in range(size if kind == "list" else w.between(0, 4))]
                for _ in range(rows)]  # fmt: skip
        return pa.array(made, pa.list_(pa.int64() if isinstance(inner[0], int) else pa.float32()))
    if kind == "fixed":
        return pa.array([[1, 2]] * rows, pa.list_(pa.int32(), 2))
    if kind == "date":
        return pa.array(cells([datetime.date(2020, 1, 2)]))
    if kind == "decimal":
        return pa.array(cells([1, 2]), pa.decimal128(5, 2))
    if kind == "nested":
        return pa.array(cells([[[1], [2, 3]]]), pa.list_(pa.list_(pa.int64())))
    if kind == "record":
        return pa.array(cells([{"a": 1, "b": 2.5}]))
    if kind == "bytes":
        return pa.array(cells([b"\x80\x04K\x05.", b"\xff\xfe", b"12", b"words"]), pa.binary())
    return pa.nulls(rows)


def parquet_file(w: Draw, folder: Path) -> Case:
    rows, path = w.between(1, 30), folder / "a.parquet"
    table = pa.table({f"c{k}": parquet_column(w, rows) for k in range(w.between(1, 3))})
    pq.write_table(table, path, row_group_size=w.between(1, rows), compression=w.one_of(["none", "snappy", "gzip"]))
    empty, variable = w.one_of(["stop", "nan"]), w.chance(0.5)
    options = {"empty": empty, "variable": variable}
    expected = {name: Cells(table.column(name).to_pylist(), empty == "nan") for name in table.column_names}
    simple = all(c.null_count == 0 and (pa.types.is_integer(c.type) or pa.types.is_floating(c.type)
                 or pa.types.is_boolean(c.type)) for c in table.columns)  # fmt: skip
    if w.chance(0.2):
        raw = path.read_bytes()
        path.write_bytes(raw[: w.between(0, len(raw) - 1)])
        return Case(path, None, options, what="cut")
    return Case(path, expected, options, simple)


def text_file(w: Draw, folder: Path) -> Case:
    path, tokenizer = folder / "a.txt", w.one_of(["bytes", "chars"])
    letters = ["a", "b", " ", "\n", "\r\n", "ü", "猫", "\U0001f600", "\0", "\ufeff", "e\u0301"]
    text = "".join(w.one_of(letters) for _ in range(w.between(0, 60)))
    raw = text.encode() + (b"\xff" if w.chance(0.2) else b"")
    path.write_bytes(raw)
    options = {"tokenizer": tokenizer}
    if not raw or (tokenizer == "chars" and raw[-1:] == b"\xff"):
        return Case(path, None, options)
    if tokenizer == "bytes":
        return Case(path, {"tokens": np.frombuffer(raw, np.uint8)}, options, True)
    vocab = sorted(set(text))
    return Case(path, {"tokens": np.array([vocab.index(c) for c in text])}, options, "\0" not in text)


MAKERS = [csv_file, parquet_file, text_file]
