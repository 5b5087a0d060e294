"""Print how a file is laid out, how each field is read, and what to change."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from h5rows.conventions.choice import NO_SAMPLES, VARYING, choose, columns_of
from h5rows.conventions.detect import NAMES, kind_of
from h5rows.errors import clean, first_line, printable, report
from h5rows.packing.file import in_words
from h5rows.packing.scan import SMALL
from h5rows.packing.survey import attribute_names, grows, text
from h5rows.program import calling, typed
from h5rows.reading.copies import local_copy
from h5rows.reading.external import external_files, items_below, link_of, names_in
from h5rows.reading.filters import HDF5PLUGIN, filter_name, missing_filter
from h5rows.reading.finding import NOT_UTF_8
from h5rows.reading.layout import plan
from h5rows.reading.listed import is_index
from h5rows.reading.opening import is_remote, names_of, open_h5
from h5rows.reading.stored import stored
from h5rows.reading.texts import said_of

COSTLY = 4.0  # bytes read per byte needed, from which another layout is recommended
POINTLESS = 0.85  # stored / decoded bytes, above which compression is not worth its cost
MOST_ATTRIBUTES = 12  # printed per dataset or group
BLOCKS = "in pandas, to_hdf(..., format='table', data_columns=['label']) writes the column `label` as its own field"
PYTABLES_INDEX = re.compile(r"(.*/)?_i_[^/]+(/|$)")
# groups that are not printed: MATLAB's targets of cells and objects, PyTables' indexes of columns
INNER = {
    "matlab": re.compile("#(refs|subsystem)#(/|$)"),
    "pandas": PYTABLES_INDEX,
    "pytables": PYTABLES_INDEX,
}
MOST_REASONS = 8  # printed lines why fields cannot be x or y


class Found:
    """A dataset. stored, size: bytes in the file and decoded. amplification: bytes read per byte of a random row."""

    def __init__(self, name: str, dset: h5py.Dataset) -> None:
        self.name, self.dset = name, dset
        self.filters = [filter_name(number) for number, _ in stored(dset).pipeline]
        self.stored, self.size = dset.id.get_storage_size(), (dset.size or 0) * dset.dtype.itemsize
        self.amplification = amplification(dset)
        self.way, self.reason, _ = plan(dset)

    @property
    def vlen(self) -> bool:
        """Return True for a dataset of variable-length samples or strings."""
        return bool(self.dset.dtype.kind == "O" and self.dset.ndim == 1)

    @property
    def complaint(self) -> str | None:
        """Return the reasons why a dataset is slow or unreadable; None if nothing does."""
        if (number := missing_filter(self.dset)) is not None and self.way == "h5py":
            brings = "hdf5plugin has it" if number in HDF5PLUGIN else "hdf5plugin does not have it"
            return f"needs the filter {filter_name(number)} (number {number}), which is not installed; {brings}"
        if self.vlen:
            return "variable length, which HDF5 reads one sample at a time; flat values and offsets are memory-mapped"
        if self.amplification is None or self.dset.dtype.kind == "O" or self.size < SMALL or not self.stored:
            return None
        if self.filters and self.stored > POINTLESS * self.size:
            return f"compression saves only {1 - self.stored / self.size:.0%}, and each sample must be decoded"
        if self.way != "mapped" and self.amplification >= COSTLY:
            return f"a random row costs {self.amplification:,.0f} times its bytes (fine if read in windows of chunks)"
        return f"read through h5py, slowly: {self.reason}" if self.way == "h5py" else None


def inspect_file(path: str) -> None:
    """Print the report of a file. For an index of shards it describes the first shard."""
    given, (path, *others) = path, names_of(path) if is_index(path) else [path]
    if given != path:
        report(f"{given}: {len(others) + 1} shard{'s' * bool(others)}, read as one set; the first:")
    path = local_copy(path)
    with open_h5(path) as file:
        report(f"{path}: {in_words(Path(path).stat().st_size)}")
        show_attributes(file)
        with reported("/"):
            report("\n".join(["", *meaning_of(file, given, len(others) + 1)]))
        found = []
        inner = INNER.get(kind_of(file))
        for name, item in items_below(file):
            if inner and inner.match(name):
                continue
            with reported(name):
                if item is None:
                    is_text = printable(name) == name
                    report(f"\n{clean(name)}: {'is damaged and cannot be opened' if is_text else NOT_UTF_8}")
                elif isinstance(item, h5py.Dataset):
                    found.append(each := Found(name, stored(item)))
                    show(each)
                elif isinstance(item, h5py.Group):
                    show_group(name, item)
        if not found:
            report("  it contains no datasets that can be read")
        with reported("/"):
            show_links(file, "")
        advise(path, found)


def proposal(path: str) -> list[str]:
    """Return the lines of `inspect` about training: possible x and y, the command. Empty for a remote file."""
    if is_remote(path):
        return []
    names = names_of(path)
    with open_h5(names[0]) as file:
        return meaning_of(file, path, len(names))[1:]


@contextmanager
def reported(name: str) -> Iterator[None]:
    """Print the error of an object that cannot be read, and continue with the others."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (OSError, RuntimeError, LookupError, TypeError, ValueError, OverflowError, MemoryError) as error:
        report(f"\n{clean(name)}: cannot be read: {clean(first_line(error))}")


def show_attributes(item: Any) -> None:
    """Print the attributes of an object, one per line."""
    names = [text(name) for name in attribute_names(item.id)]
    for name in names[:MOST_ATTRIBUTES]:
        try:
            value = shorten(item.attrs[name])
        except (OSError, RuntimeError, LookupError, TypeError, ValueError) as error:
            value = f"cannot be read: {first_line(error)}"
        report(f"  {clean(name)}: {clean(value)}")
    if len(names) > MOST_ATTRIBUTES:
        report(f"  and {len(names) - MOST_ATTRIBUTES} more attributes")


def show_group(name: str, group: h5py.Group) -> None:
    """Print a group's attributes, and its links that are not followed."""
    if attribute_names(group.id):
        report(f"\n{clean(name)}: group")
        show_attributes(group)
    show_links(group, f"{name}/")


def show_links(group: h5py.Group, prefix: str) -> None:
    """Print the links of a group that are not followed here."""
    for name in names_in(group):
        link = link_of(group, name)
        if isinstance(link, h5py.ExternalLink):
            where = f"{clean(link.path)} in {clean(link.filename)}"
            report(f"\n{clean(prefix + name)}: a link to {where}, which is not followed here")
        elif link is None:
            report(f"\n{clean(prefix + name)}: a user-defined link, which cannot be followed")


def amplification(dset: h5py.Dataset) -> float | None:
    """Return the bytes read per byte of a row, as whole chunks are read; None if there are no rows."""
    if not dset.ndim or not dset.size:
        return None
    if dset.chunks is None:
        return 1.0
    touched = np.prod([-(-side // c) * c for side, c in zip(dset.shape[1:], dset.chunks[1:], strict=True)])
    return float(dset.chunks[0] * touched / np.prod(dset.shape[1:]))


def show(each: Found) -> None:
    """Print shape, layout, reading method and attributes of a dataset."""
    dset = each.dset
    layout = "contiguous" if dset.chunks is None else f"chunks of {'x'.join(map(str, dset.chunks))}"
    if dset.is_virtual:
        layout = "virtual"
    if others := external_files(dset):
        layout += f", in other files: {shorten(', '.join(others))}"
    shape = "x".join(map(str, dset.shape)) if dset.shape else "no rows"
    stored = f", {in_words(each.stored)} in the file" if each.filters else ""
    report(f"\n{clean(each.name)}: {shape} {dset.dtype}, {in_words(each.size)}{stored}")
    report(f"  layout: {', '.join([layout, ' + '.join(each.filters)] if each.filters else [layout])}")
    if each.amplification is not None:
        report(f"  random row: reads {each.amplification:,.1f} times its own bytes")
    report(f"  read: {each.way} ({each.reason})")
    for line in said_of(dset):
        report(f"  {clean(line)}")
    show_attributes(dset)


def advise(path: str, found: list[Found]) -> None:
    """Print the problems of the datasets, and the commands that repack the file."""
    report("\nadvice:")
    for each in found:
        if each.complaint:
            report(f"  {clean(each.name)}: {each.complaint}")
    vlen = [each for each in found if each.vlen]
    fixable = [each for each in found if each.complaint and missing_filter(each.dset) is None]
    if not fixable:
        report("  nothing to repack")
        return
    new = str(Path(path).with_suffix("")) + ".repacked.h5"
    options = ["--flatten"] * bool(vlen) + ["--contiguous"] * any(grows(each.dset.id) for each in fixable)
    fixed = " (--contiguous: resizable datasets become contiguous, of fixed size)" * ("--contiguous" in options)
    size = sum(each.size for each in found)
    report(f"  fastest to read, {in_words(size)}{fixed}:\n    {typed('repack', path, new, *options)}")
    if any(e.filters and e.stored < POINTLESS * e.size for e in fixable):
        report(f"  smaller, with a few rows per chunk:\n    {typed('repack', path, new, '--codec', 'zstd')}")


def shorten(value: Any, limit: int = 100) -> str:
    """Return the value as text of at most `limit` characters."""
    text = ", ".join(map(str, value)) if isinstance(value, np.ndarray) and value.ndim else str(value)
    return text if len(text) <= limit else text[: limit - 4] + " ..."


def meaning_of(file: h5py.File, path: str, shards: int = 1) -> list[str]:
    """Return lines: the kind of file, the fields that could be x and y, and the command that trains on `path`. shards:
    the number of shards of `path`, of which `file` is the first."""
    refused: dict[str, str] = {}
    lines = _meaning(file, path, shards, refused)
    varying = [name for name, reason in refused.items() if reason == VARYING]
    named = clean(shorten(", ".join(varying)))
    return [*lines, *[f"rows of different length: {named}; {calling.varying}"] * bool(varying)]


def _meaning(file: h5py.File, path: str, shards: int, refused: dict[str, str]) -> list[str]:
    """Return the lines of `meaning_of`. refused: receives the fields that cannot be x and y, name -> reason."""
    kind = kind_of(file)
    lines = [f"kind: {NAMES[kind]}"]
    choice = choose(file, refused)
    alike: dict[str, list[str]] = {}
    for name, reason in refused.items():
        if reason != VARYING:  # has a line of its own
            alike.setdefault(reason, []).append(name)
    why = [f"  {clean(shorten(', '.join(names)))}: {clean(reason)}" for reason, names in alike.items()]
    if len(why) > MOST_REASONS:
        why = [*why[:MOST_REASONS], f"  and {len(why) - MOST_REASONS} more"]
    if kind in NO_SAMPLES:
        return [*lines, NO_SAMPLES[kind]]
    if choice is None:
        named = "" if refused else " no rows of numbers"
        return [*lines, f"cannot be used for training{' as it is' * bool(refused)}:{named}", *why]
    alone = choice.y is None and choice.x.classes and VARYING in refused.values()  # labels of these rows
    mixed = False
    for field, each in (("y" if alone else "x", choice.x), ("y", choice.y)):
        if each is not None:
            what = f"{each.classes} classes" if each.classes and field == "y" else str(each.dtype)
            lost = f", {each.lost:.1%} without a value" if each.lost else ""
            lines.append(f"{field} could be {each.name}: {each.shape[0]:,} samples of {each.shape[1:]} {what}{lost}")
            if kind == "pandas" and (columns := columns_of(file, each.name)):
                lines.append(f"  its columns: {shorten(', '.join(columns))}")
                mixed = choice.y is None or choice.y.size > 1
    lines += [BLOCKS] * mixed
    if choice.y is None and kind == "10x":
        how = f"write one for each of the {choice.x.shape[0]:,} barcodes, in their order, to a dataset `label`"
        return [*lines, f"no command: the file has no labels; {how}, then inspect it again"]
    if alone:
        return lines
    if choice.y is None:
        return [*lines, f"no other field with the same number of rows could be y{':' * bool(why)}", *why]
    if shards > 1 and (made := [each.name for each in (choice.x, choice.y) if each.name.endswith("@classes")]):
        return [*lines, f"{made[0]}: shards may have different values; pack the classes as integers"]
    return [*lines, "train on it:", f"  {calling.training(path, choice.settings, choice.task)}"]
