"""What a random source for the packer is, and how what was packed is compared with it."""

from __future__ import annotations

import contextlib
import io
import itertools
import math
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from engine.errors import ConfigError
from h5rows.importers import open_source
from h5rows.packing.options import PackOptions
from h5rows.packing.write import pack


@dataclass
class Case:
    """expected: path in the file -> an array, or a list of arrays of different length; None: it must be refused.

    plain: it must be packed; else it may be refused too. left_out: what a line must name."""

    path: Path
    expected: dict[str, Any] | None
    options: dict[str, Any] = field(default_factory=dict)
    plain: bool = False
    left_out: str = ""
    what: str = ""


@dataclass
class Cells:
    """A table's column. values: as they are written, str, or as they are. gaps: empty ones may become NaN."""

    values: list[Any]
    gaps: bool = False


def judge(case: Case) -> tuple[str, str]:
    """-> (packed | refused, what is wrong or "")."""
    options = PackOptions(**{"workers": 1, "overwrite": True, **case.options})
    said = io.StringIO()
    try:
        with contextlib.redirect_stdout(said), contextlib.redirect_stderr(io.StringIO()):
            source = open_source(str(case.path), options)
            out = pack(source, case.path.parent / "out.h5", options, {})
    except ConfigError as error:
        text = str(error)
        if "\n" in text or not text.isprintable():
            return "refused", f"not one printable line: {text!r}"
        files = [case.path, *(case.path.rglob("*") if case.path.is_dir() else ())]
        if not any(file.name in text for file in files) and not text.startswith(("--", "field")):
            return "refused", f"names no file: {text}"
        return "refused", f"is refused: {text}" if case.plain else ""
    except Exception as error:
        return "refused", f"{type(error).__name__}: {error}"
    if case.expected is None:
        return "packed", "and should be refused"
    if case.left_out and case.left_out not in said.getvalue():
        return "packed", f"and no line says that {case.left_out} is left out: {said.getvalue()}"
    if (case.plain or case.left_out) and bool(source.account.exit_status) != bool(case.left_out):
        return "packed", f"and the status is {source.account.exit_status}: {source.account.lines()}"
    with h5py.File(out) as file:
        return "packed", next(filter(None, (differs(file, name, value) for name, value in case.expected.items())), "")


def differs(file: h5py.File, name: str, value: Any) -> str:
    if name not in file:
        return f"{name} is not there: {list(file)}"
    if isinstance(value, Cells):
        return cells_differ(file, name, value)
    if isinstance(value, np.ndarray):
        if not isinstance(file[name], h5py.Dataset):
            return f"{name} is of different lengths"
        return array_differs(name, file[name][...], value)
    offsets, flat = file[f"{name}/offsets"][:], file[f"{name}/values"][...]
    unit = math.prod(flat.shape[1:])
    found = [flat.reshape(-1)[a * unit : b * unit] for a, b in itertools.pairwise(offsets)]
    if len(found) != len(value):
        return f"{name}: {len(found)} samples instead of {len(value)}"
    wrong = (array_differs(f"{name}[{k}]", f, np.asarray(v).reshape(-1)) for k, (f, v) in enumerate(zip(found, value)))
    return next(filter(None, wrong), "")


def array_differs(name: str, found: np.ndarray, value: np.ndarray) -> str:
    """Numbers, not types: an array of objects says each as Python has it."""
    if found.shape != value.shape:
        return f"{name}: {found.shape} instead of {value.shape}"
    if value.dtype != object:
        if found.dtype == value.dtype and found.tobytes() == np.ascontiguousarray(value).tobytes():
            return ""
        if np.array_equal(found, value, equal_nan=value.dtype.kind in "fc"):
            return ""
        return f"{name}: {found.dtype} {found.reshape(-1)[:5]} instead of {value.dtype} {value.reshape(-1)[:5]}"
    for got, want in zip(found.reshape(-1).tolist(), value.reshape(-1).tolist()):
        if not same_number(got, want):
            return f"{name}: {got!r} instead of {want!r} ({found.dtype})"
    return ""


def same_number(got: Any, want: Any) -> bool:
    """Whole numbers to the last digit; others may be float32 where that is written with the same digits."""
    if want is None:
        return isinstance(got, float) and math.isnan(got)
    if isinstance(want, float):
        if math.isnan(want):
            return math.isnan(got)
        rounded = 1e-38 < abs(want) < 2**24 and got == float(np.float32(want)) and float(str(np.float32(want))) == want
        return got == want or rounded
    return not (isinstance(got, float) and math.isinf(got)) and int(got) == want


def cells_differ(file: h5py.File, name: str, cells: Cells) -> str:
    """Each cell must say what was written, whichever type was chosen: as a number, a class's name, text or a list."""
    item = file[name]
    if isinstance(item, h5py.Group):
        offsets, flat = item["offsets"][:], item["values"][...]
        found: list[Any] = [flat[a:b] for a, b in itertools.pairwise(offsets)]
        if item["values"].attrs.get("encoding"):
            found = [part.tobytes().decode() for part in found]
    else:
        classes = item.attrs.get("classes")
        found = [str(classes[k]) for k in item[:]] if classes is not None else list(item[...])
    if len(found) != len(cells.values):
        return f"{name}: {len(found)} rows instead of {len(cells.values)}"
    for got, want in zip(found, cells.values):
        if not same_cell(got, want, cells.gaps):
            return f"{name}: {got!r} instead of {want!r}"
    return ""


def same_cell(got: Any, want: Any, gaps: bool) -> bool:
    if isinstance(got, str):
        return got == (want.decode() if isinstance(want, bytes) else want)
    if isinstance(want, list):
        return len(got) == len(want) and all(same_cell(g, v, gaps) for g, v in zip(got, want))
    got = got.item()
    if isinstance(want, (str, bytes)):
        want = number_of(want if isinstance(want, str) else want.decode())
    return (gaps if want is None else want != "text") and same_number(got, want)


def number_of(cell: str) -> Any:
    """None: empty; "text": no number, as 007."""
    cell = cell.strip()
    if re.match(r"[+-]?0[0-9xX]", cell):
        return "text"
    if cell in ("", "NA", "N/A", "nan", "NaN", "null"):
        return None
    if cell.lower() in ("true", "false"):
        return int(cell.lower() == "true")
    for kind in (int, float, lambda text: int(text, 16)):
        try:
            return kind(cell) if "_" not in cell else "text"
        except ValueError:
            continue
    return "text"
