"""Suggest which fields of a file a model reads (x) and learns (y), and the config keys that train on them."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.detect import attribute, kind_of
from h5rows.conventions.opening import MOST_CLASSES, Opened, how, lost_share, one_per_row
from h5rows.errors import ConfigError, argument, first_line
from h5rows.reading.external import items_below
from h5rows.reading.fields import Field
from h5rows.reading.opening import is_remote, names_of, open_h5
from h5rows.reading.raw import ChunkCache
from h5rows.reading.stored import dtype_of, stored
from h5rows.reading.texts import DECODE, UTF_8, image_of, name_of

VARYING = "has rows of different length"
MOST, MOST_OBJECTS = 500, 20_000  # fields that are read; objects, most of them groups, that are looked at
FEWEST = 5  # rows; a fifth of them is used for validation
HELD = 256 << 20  # bytes of a matrix that may be transposed in memory
SPLITS = ("train", "val", "test")
LABELS = re.compile(
    r"(^|[/_])(y|labels?|targets?|class(es)?|cls|category|categories|outcome|diagnosis|cell_?types?)$", re.I
)
INPUTS = re.compile(r"(^|[/_])(x|images?|imgs?|data|features?|inputs?|signals?|expression)\d*$", re.I)
# groups that are one field
WHOLE = ("csr_matrix", "csc_matrix", "csr", "csc", "categorical", "nullable-integer", "nullable-boolean")
# members of such groups: rows of different length; rows of a sparse matrix as 10x Genomics writes it
MADE_OF: tuple[set[str], ...] = ({"values", "offsets"}, {"data", "indices", "indptr", "shape"})
# AnnData: fields that describe samples, fields with one row per sample
LABELLING, SAMPLES = re.compile(r"obs/"), re.compile(r"(X$|layers/|obsm/|obs/)")
# files whose datasets are no samples
NO_SAMPLES = {
    "keras": "it contains weights, not samples",
    "molecules": "it lists molecules, not cells; use filtered_feature_bc_matrix.h5 of the same folder",
}
# NWB: what describes the other fields, and their times
ABOUT = re.compile(
    r"^(general|specifications|file_create_date)(/|$)|(^|/)(timestamps|control|id|electrodes)$|/timeseries$|_index$"
)
LATER = re.compile(r"^(processing/behavior|stimulus)/")  # NWB: what is predicted from the other fields
NUMBERED = re.compile(r"((?:[^/]+/)*?[^/]*\d)/(.+)")  # a numbered group, and the rest of the path
# internal objects of the programs, in addition to the data
INNER = re.compile(
    r"(^|/)(#refs#|#subsystem#|__categories|_i_[^/]*|_index|(axis\d+|index)_(label|level)\d+|axis\d+|indptr|indices"
    r"|categories|codes)(/|$)"
)


@dataclass(frozen=True)
class Candidate:
    """A field as it would be read.

    shape: (N, *sample). classes: how many have names in the file, or are found in the integers; None if it has no
    classes. lost: the share of its values that are missing. whole: number of rows without missing values. as_x: how x
    would read it, if it is read as classes only as y, such as one-hot rows.
    """

    name: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    classes: int | None
    lost: float
    whole: int
    as_x: Candidate | None = None

    @property
    def size(self) -> int:
        """Return the number of values of one sample."""
        return math.prod(self.shape[1:])


@dataclass(frozen=True)
class Choice:
    """The suggested fields. settings: keys of `data` that read x and y. task: classification or regression, as y
    requires."""

    x: Candidate
    y: Candidate | None
    settings: dict[str, Any]
    task: str


def names_below(file: h5py.File, group: str) -> Iterator[str]:
    """Yield the paths, relative to a group, of objects that may be a field: datasets with rows, and groups that are
    read as one field."""
    whole: list[str] = []
    datasets = 0
    for k, (name, item) in enumerate(items_below(file[group])):
        if k >= MOST_OBJECTS or datasets >= MOST:
            return
        datasets += isinstance(item, h5py.Dataset)
        if item is None or INNER.search(name) or any(name.startswith(above) for above in whole):
            continue
        if isinstance(item, h5py.Group):
            one = attribute(item, "encoding-type") in WHOLE or attribute(item, "h5sparse_format") in WHOLE
            one = one or any(attribute(item, f"MATLAB_{mark}") is not None for mark in ("sparse", "object_decode"))
            if one or attribute(item, "signal") or any(made <= set(item) for made in MADE_OF):
                yield name
                whole += [f"{name}/"] * (not attribute(item, "signal"))
        elif isinstance(item, h5py.Dataset) and item.shape:
            members = getattr(dtype_of(stored(item)), "names", None)
            yield from [f"{name}/{member}" for member in members or ()] or [name]


def candidates(
    file: h5py.File, kind: str, group: str, with_rows: tuple[str, ...] = (), refused: dict[str, str] | None = None
) -> list[Candidate]:
    """Return the fields that can be read as numbers.

    kind: of the file. with_rows: names of fields that determine which axis of MATLAB's arrays counts the samples.
    refused: receives the other fields, name -> reason.
    """
    found = []
    refused = {} if refused is None else refused
    for name in names_below(file, group):
        try:
            if image := image_format(file[group], name):
                raise ValueError(f"contains {image} files; {DECODE}")
            fields = {"x": name, **{f"with{k}": other for k, other in enumerate(with_rows)}}
            field, names = Opened(file, group, ChunkCache(HELD), how(fields, decode=True), kind).field("x")
            if len(field) < FEWEST or 0 in field.shape:
                raise ValueError(f"has {len(field)} rows of {field.shape[1:]}, expected at least {FEWEST}, not empty")
            if field.dtype.kind == "c":
                raise ValueError("contains complex numbers: read them with your own transform or model")
            if (count := as_classes(field, name)) is not None:
                rows, shape, kind_of_class = len(field), tuple(field.shape), np.dtype(np.int64)
                as_x = None if field.text else Candidate(name, shape, field.dtype, count, 0.0, rows)
                found.append(Candidate(f"{name}@classes", (rows,), kind_of_class, count, 0.0, rows, as_x))
                continue
            if field.text or field.shape[0] == -1:
                raise ValueError("has too many distinct texts" if field.text else VARYING)
            classes = len(names) if names else None
            if classes is None and field.dtype.kind in "iub" and len(field.shape) == 1 and len(field) <= 1 << 20:
                labels = field.column()
                most = 1000 if LABELS.search(name) else min(1000, len(labels) // 2)  # more are an axis or an index
                labelled = labels.min() >= 0 and labels.max() < MOST_CLASSES and len(np.unique(labels)) <= most
                classes = max(int(labels.max()) + 1, 2) if labelled else None
            if (lost := lost_share(field, look=True)) == 1:
                raise ValueError("has no values: all are missing")
            whole = len(field) - round(len(field) * lost_share(field, look=True, rows_of_it=True))
            found.append(Candidate(name, tuple(field.shape), field.dtype, classes, lost, whole))
            if whole < FEWEST:
                refused[name] = f"could be x, but not y: only {whole} of its rows have no missing values"
        except (ConfigError, OSError, RuntimeError, LookupError, TypeError, ValueError, MemoryError) as error:
            said = first_line(error).removeprefix(f"{file.filename}: ").replace(f" ({argument('fields.x')})", "")
            subject, _, reason = said.partition(" ")
            named = name.startswith(subject.strip("/:")) or subject.strip(":").endswith(name)
            refused[name] = reason if named else said
    return found


def image_format(group: h5py.Group, name: str) -> str | None:
    """Return the format of images that a dataset contains as the bytes of files; None for other fields."""
    with suppress(LookupError, OSError, RuntimeError, TypeError, ValueError):
        item = group[name]
        if not isinstance(item, h5py.Dataset) or not item.shape[0] or item.is_virtual or item.external:
            return None
        if item.dtype.kind in "SVO" or (item.dtype == np.uint8 and item.ndim == 2):  # (N, length): padded
            return image_of(bytes(item[0]))
    return None


def columns_of(file: h5py.File, name: str) -> list[str]:
    """Return the columns in a block of pandas' fixed format; [] for other fields."""
    items = file.get(name.removesuffix("@classes").removesuffix("_values") + "_items")
    return [name_of(item, UTF_8) for item in items[:]] if isinstance(items, h5py.Dataset) else []


def as_classes(field: Field, name: str) -> int | None:
    """Return how many classes the distinct values of a field can be; None if they cannot be classes.

    Text, one-hot rows and integers (N, 1) can be classes if they have few distinct values; whole numbers in a
    floating-point type only if, in addition, the field's name is one for labels, as in MATLAB.
    """
    if field.dtype.kind == "f":
        alone = math.prod(field.shape[1:]) == 1 and not LABELS.search(name)
    else:  # the caller decides on integers (N,)
        alone = len(field.shape) == 1 and not field.text
    if alone:
        return None
    if len(field) > 1 << 20 or field.nbytes(None) > HELD or one_per_row(field, np.arange(min(100, len(field)))) is None:
        return None
    values = one_per_row(field, np.arange(len(field)))
    if values is None or (values.dtype.kind == "f" and not (np.isfinite(values) & (values == np.floor(values))).all()):
        return None
    count = len(np.unique(values))
    return count if 1 < count <= min(1000, len(field) // 2) else None


def choose(file: h5py.File, refused: dict[str, str] | None = None) -> Choice | None:
    """Return the suggested fields; None if no field can be x. refused: receives the fields that cannot be read as
    numbers, name -> reason."""
    splits = [split for split in SPLITS if isinstance(file.get(split), h5py.Group)]
    group = splits[0] if "train" in splits else "/"
    kind = kind_of(file)
    if kind in NO_SAMPLES:
        return None
    refused = {} if refused is None else refused
    found = candidates(file, kind, group, refused=refused)
    if kind == "plain":
        found = _without_numbered(found, refused)
    if kind == "pandas":  # the index contains the names of the rows
        found = [each for each in found if not each.name.removesuffix("@classes").endswith("/index")]
    if kind == "matlab":
        found = _with_the_same_rows(file, found)
    if kind == "loom":  # row_attrs describe the genes
        found = [each for each in found if not each.name.startswith("row_")]
    if kind == "anndata":
        found = [each for each in found if SAMPLES.match(each.name)]
    if kind == "nwb":
        found = [each for each in found if not ABOUT.search(each.name)]
        for name in [name for name in refused if ABOUT.search(name)]:
            del refused[name]
    best = max(_pairs(found, LATER if kind == "nwb" else LABELLING), key=lambda pair: pair[0], default=None)
    if best is None:
        return None
    _, x, y = best
    settings: dict[str, Any] = {"fields.x": x.name, "fields.y": None if y is None else y.name}
    if group == "/":
        settings["split_ratio"] = "80/10/10" if (x if y is None else y).whole >= 10 else "80/20"
        if kind == "nwb" and x.name.endswith("/data"):  # neighbouring times are alike
            settings["split_by"] = "blocks"
    else:
        settings |= {f"splits.{split}": None for split in SPLITS if split not in splits}
    replacement = "nan" if len(x.shape) == 2 else 0  # in a table, 0 would look like a value of the column
    lost = {"x": replacement if x.lost else None, "y": "drop" if y is not None and y.lost else None}
    if any(value is not None for value in lost.values()):
        settings["missing"] = {field: value for field, value in lost.items() if value is not None}
    numbers = y is not None and y.classes is None
    if numbers and y is not None and y.dtype.kind in "iu":
        settings["num_outputs"] = y.size
    return Choice(x, y, settings, "regression" if numbers else "classification")


def _without_numbered(found: list[Candidate], refused: dict[str, str]) -> list[Candidate]:
    """Return the fields without those of at least FEWEST groups that have the same members and are numbered, such as
    data/demo_0: the rows of one sample or episode are not a data set. A field stays if one elsewhere has as many rows.
    refused: the other fields of the file, name -> reason; receives what is left out."""
    members: dict[str, set[str]] = {}
    for name in [*(each.name for each in found), *refused]:
        if numbered := NUMBERED.fullmatch(name):
            members.setdefault(numbered[1], set()).add(numbered[2])
    kinds = {group: (group.rstrip("0123456789"), frozenset(names)) for group, names in members.items()}
    count = Counter(kinds.values())
    several = {group: count[kind] for group, kind in kinds.items() if count[kind] >= FEWEST}
    inside = {each.name: numbered[1] for each in found if (numbered := NUMBERED.fullmatch(each.name))}
    rows = {each.shape[0] for each in found if inside.get(each.name) not in several}
    for each in found:
        if each.shape[0] not in rows:
            refused[each.name] = (
                f"is in one of at least {several[inside[each.name]]} groups with the same fields, such as episodes; "
                "join their rows with h5rows.write"
            )
    return [each for each in found if each.shape[0] in rows]


def _with_the_same_rows(file: h5py.File, found: list[Candidate]) -> list[Candidate]:
    """Return MATLAB's arrays as they are read together with the vector whose name fits labels best."""
    vectors = [each for each in found if len(each.shape) == 1 and each.shape[0] > 1]
    if not vectors:
        return found
    label = max(vectors, key=lambda each: (bool(LABELS.search(each.name.removesuffix("@classes"))), each.shape[0]))
    return [label, *(each for each in candidates(file, "matlab", "/", (label.name,)) if each.name != label.name)]


def _pairs(
    found: list[Candidate], labelling: re.Pattern[str]
) -> Iterator[tuple[tuple[Any, ...], Candidate, Candidate | None]]:
    """Yield (score, x, y) for all pairs with equal numbers of rows. labelling: names of fields that are y, not x."""
    for one in found:
        x, rows = one.as_x or one, one.shape[0]
        others = (each for each in found if each is not one and each.shape[0] == rows and each.whole >= FEWEST)
        for y in [*others, None]:
            named = y is not None and bool(LABELS.search(y.name.removesuffix("@classes"))) and len(y.shape) <= 2
            single = y is not None and len(y.shape) == 1
            # AnnData: y describes samples, x does not
            labels = y is None or bool(LABELLING.match(y.name)) == bool(SAMPLES.match(y.name))
            apart = labels and not labelling.match(x.name)
            good = (
                apart, named, bool(INPUTS.search(x.name)) and x.size > 1,
                single, y is not None and (y.classes or 0) > 1,
                x.size > 1, rows * x.size, y is not None and y.lost < 1, -x.lost,
            )  # fmt: skip
            yield good, x, y


def suggestion(path: Any) -> tuple[dict[str, Any], str] | None:
    """Return the keys of `data` that read a local file, and the task; None if x or y is not found."""
    with suppress(ConfigError, OSError, RuntimeError, LookupError, TypeError, ValueError):
        if isinstance(path, str) and not is_remote(path):
            with open_h5(names_of(path)[0]) as file:
                choice = choose(file)
                return None if choice is None or choice.y is None else (choice.settings, choice.task)
    return None
