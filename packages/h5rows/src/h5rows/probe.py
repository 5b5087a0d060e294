"""Read properties of a data file's fields while the config is composed, without torch and with as little I/O as
possible."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.described import Group, groups_of_files
from h5rows.conventions.opening import How, Opened, has_meaning, how, parts_of
from h5rows.errors import ConfigError, argument, as_typed
from h5rows.reading.copies import open_file, open_remote, ranged
from h5rows.reading.external import ALLOW_EXTERNAL
from h5rows.reading.fields import Fixed
from h5rows.reading.finding import find, stated_classes
from h5rows.reading.memory import check_declared, check_written
from h5rows.reading.opening import groups_of, is_remote, names_of, split_of
from h5rows.reading.raw import ChunkCache
from h5rows.reading.texts import DECODE

_STEP = 16 << 20  # bytes per read
_ROWS = 4096  # rows of variable length per read
_CHECKED = 1 << 24  # labels; a larger field, such as a stream of tokens, is not read if it has the attribute `classes`


def sample_shape(data: Mapping[str, Any], field: str) -> list[int]:
    """Return the shape of one sample of a field.

    data: the config's data group (path, fields, splits, perhaps swmr). Raise ConfigError if the samples have no fixed
    shape.
    """
    shape, *_ = next(_stored(data, field, _groups(data)[0]))
    if shape is None:
        what = f"{argument(f'fields.{field}')}: its samples have no fixed shape (strings or variable length)"
        raise ConfigError(f"{what}; set {argument('input_shape')} yourself. If they are image files, {DECODE}")
    return shape


def num_outputs(data: Mapping[str, Any], field: str) -> int:
    """Return the number of outputs that a model needs to predict a field.

    Integers are classes. The attribute `classes` of the dataset, its group or the file has their names or their number;
    without it, the number is the largest label of the training split + 1. Floating-point fields: the number of elements
    of one sample.

    Raise ConfigError if a split has a label outside the classes, because on a GPU it would fail with an assertion that
    names no row.
    """
    first, *others = _groups(data)
    outputs = None
    for group in (first, *others):
        count, top, where = _classes(data, field, group)
        if count is None:
            return int(np.prod(sample_shape(data, field), dtype=np.int64))
        outputs = max(count, 2) if outputs is None else outputs
        if top >= outputs:
            raise ConfigError(
                f"{where} has the label {top}, but the classes are 0 to {outputs - 1} "
                f"({'its attribute `classes`' if group == first else f'of {first}'}): correct the labels, remove the "
                f"split ({as_typed(None)} in {argument('splits')}), or set {argument('num_outputs')}={top + 1}"
            )
    assert outputs is not None
    return outputs


def _groups(data: Mapping[str, Any]) -> list[str]:
    """Return the groups of the splits, beginning with the training split or, without one, the first split."""
    if not isinstance(data["splits"], Mapping):
        split_of(data["splits"], "train")  # raises the error
    return groups_of(data["splits"])


def _classes(data: Mapping[str, Any], field: str, group: str) -> tuple[int | None, int, str]:
    """Return (number of classes, None if the field has no classes; the largest label; the dataset that has it)."""
    named, top, at = None, -1, ""
    for _, where, classes, size, blocks in _stored(data, field, group):
        if named is None:
            named = classes
        if named is not None and size > _CHECKED:
            continue
        for block in blocks:
            if block.dtype.kind in "fc":
                return named, top, where
            if block.dtype.kind in "OSU":
                remedy = "write the classes as 0, 1, ..., and their names in the dataset's attribute `classes`"
                raise ConfigError(f"{where} contains text, neither classes nor numbers: {remedy}")
            if block.dtype.kind not in "iub":
                raise ConfigError(
                    f"{where} contains {block.dtype}, neither classes nor numbers; set {argument('num_outputs')}"
                )
            if block.size and block.min() < 0:
                remove = f"remove the split ({as_typed(None)} in {argument('splits')})"
                remedy = f"correct the labels, {remove}, or set {argument('num_outputs')}"
                raise ConfigError(f"{where} has the negative label {block.min()}; classes are 0, 1, ...: {remedy}")
            if block.size and int(block.max()) > top:
                top, at = int(block.max()), where
    return (top + 1 if named is None else named), top, at


# the shape of one sample (None if it varies), the dataset for messages, the number of classes in the file's attributes,
# the number of values, and the values in blocks
_Stored = tuple["list[int] | None", str, "int | None", int, Iterator[np.ndarray]]


def _stored(data: Mapping[str, Any], field: str, group: str) -> Iterator[_Stored]:
    """Yield the properties of a field in each file."""
    fields = data["fields"]
    if not isinstance(fields, Mapping):
        raise ConfigError(f"{argument('fields')}={fields}: expected a mapping, such as {{x: image, y: label}}")
    if field not in fields:
        raise ConfigError(f"{argument('fields')} has no {field!r}; it has {sorted(fields)}")
    external, key, swmr = str(data.get("external")), argument(f"fields.{field}"), bool(data.get("swmr"))
    paths = names_of(data["path"])
    ranged(paths, data.get("cache_gb"), external)  # opens all of them at once
    described = _described(data, paths, group)
    for path in paths:
        known = next(described, None)
        if known is not None and field in known.num_classes and known.fields[field][0].by_offset:
            yield _as_described(known.fields[field][0], known.num_classes[field], key)
            continue
        whole = not is_remote(path) or external == ALLOW_EXTERNAL or data.get("cache_gb") is not None
        with open_file(path, swmr, data.get("cache_gb")) if whole else open_remote(path) as file:
            name, part = parts_of(fields[field])
            item, member = find(file, group, name, key, external)
            if not data.get("decode") or not (part or has_meaning(file, item)):
                yield _as_it_lies(path, item, member, key, external)
                continue
        with open_file(path, swmr, data.get("cache_gb")) as file:
            yield _as_meant(file, data, field, group)


def _described(data: Mapping[str, Any], paths: list[str], group: str) -> Iterator[Group]:
    """Yield the group of each file, which the data sets need later, too; nothing from the first file on that cannot be
    opened in this way, because reading the one field raises the error, or there is none in it."""
    if data.get("swmr") or any(map(is_remote, paths)):
        return
    with suppress(ConfigError):
        yield from groups_of_files(paths, group, _how(data), ChunkCache(0))


def _how(data: Mapping[str, Any]) -> How:
    """Return the arguments of the data sets of a config."""
    names = ("swmr", "external", "decode", "missing", "encoding")
    return how(data["fields"], _groups(data), **{name: data[name] for name in names if data.get(name) is not None})


def _as_described(found: Fixed, num_classes: int | None, key: str) -> _Stored:
    def blocks() -> Iterator[np.ndarray]:
        yield np.empty(0, found.dtype)  # enough if these are no classes
        step = max(1, _STEP // max(1, found.row_bytes))
        for begin in range(0, len(found), step):
            if begin:
                found.check_written()
            yield found.read(np.arange(begin, min(begin + step, len(found))))

    where = f"{found.where} ({key})"
    return [int(side) for side in found.shape[1:]], where, num_classes, math.prod(found.shape), blocks()


def _as_it_lies(path: str, item: Any, member: str | None, key: str, external: str) -> _Stored:
    values = item
    if isinstance(item, h5py.Group) and "values" in set(item):  # `in item` follows links
        values, _ = find(item.file, item.name, "values", key, external)
    if not isinstance(values, h5py.Dataset) or not values.shape:
        raise ConfigError(f"{path}: {item.name} ({key}) has no rows; give a dataset of shape (rows, ...)")
    dtype = values.dtype if member is None else values.dtype[member]
    check_declared(values)
    inner = dtype.subdtype[1] if dtype.subdtype else ()
    shape = [int(n) for n in (*values.shape[1:], *inner)] if values is item and dtype.kind not in "OS" else None
    where = f"{values.file.filename}: {values.name} ({key})"
    return shape, where, _number(stated_classes(values)), values.size, _blocks(values, member)


def _as_meant(file: h5py.File, data: Mapping[str, Any], field: str, group: str) -> _Stored:
    opened = Opened(file, group, ChunkCache(int(data.get("cache_mb") or 0) << 20), _how(data))
    found, names = opened.field(field)
    fixed = not found.text and found.shape[0] != -1
    step = max(1, _STEP // max(1, found.nbytes(None) // max(1, len(found))))
    lacks = opened.rows_without_value()
    rows = np.arange(len(found)) if lacks is None else np.flatnonzero(~lacks)
    blocks = (found.read(rows[k : k + step]) for k in range(0, max(1, len(rows)), step))
    where = f"{file.filename}: {opened.names[field]} ({argument(f'fields.{field}')})"
    shape = [int(side) for side in found.shape[1:]] if fixed else None
    return shape, where, _number(names), len(found), blocks if fixed else iter(())


def _number(classes: Any) -> int | None:
    """Return the number of classes. classes: their names, their number, or None."""
    return None if classes is None else int(classes) if np.ndim(classes) == 0 else len(classes)


def _blocks(values: h5py.Dataset, member: str | None) -> Iterator[np.ndarray]:
    step = max(1, _STEP // max(1, values.dtype.itemsize * int(np.prod(values.shape[1:], dtype=np.int64))))
    source = values if member is None else values.fields(member)
    dtype = source.dtype if member is None else values.dtype[member]
    numbers = None if h5py.check_string_dtype(dtype) else h5py.check_vlen_dtype(dtype)  # of rows' elements
    for begin in range(0, max(1, len(values)), step if numbers is None else _ROWS):
        if begin:  # skipped if the caller needs only the first rows
            check_written(values, values.nbytes, f"{len(values):,} rows")
        block = source[begin : begin + step] if numbers is None else source[begin : begin + _ROWS]
        yield block if numbers is None else np.concatenate([np.empty(0, numbers), *block])
