"""Rows of HDF5 files at the speed of memory, for PyTorch; other formats -> HDF5, each value kept or refused by name.

Given: files, here or behind an URL, as anybody's program has written them. Returned: batches of named fields, from
`Dataset` and `open`; files whose rows are laid out to be read at random, from `pack` and `repack`; what a file is like,
from `inspect`.

Promised: the bytes are h5py's; where a layout is not known for certain, h5py reads it. A file that changes while it is
open is an error, never other data; one that is cut short while its mapping is read kills the process (SIGBUS). What is
packed is read back bit for bit: types, order, splits, text. A value that HDF5 cannot hold, or that differs in kind from
its neighbours, is refused with the sample that holds it. What is not taken is counted and named, and in the exit
status. Nothing outside of a source is read through a link. A pack is whole or not at all, whatever it is killed at.

Raised: ConfigError, one line that names the file, the field or sample, and the remedy.

Imports numpy and h5py, torch where batches are made, and nothing of the programs that use it.

    dataset, reading/     files -> batches         probe    what a file holds, asked without torch
    meaning/              what packed, turned and sparse values stand for; which fields x and y could be
    functions, command    what strangers call, and `python -m h5rows`
    options, account      what pack and repack can be told; what was left out
    source                what an importer gives to the writer
    packing/              the writer; other layouts, copies of all that a file holds, what a file is like
    importers/            a reader for each other format
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from h5rows.command import run
    from h5rows.dataset import Dataset, open, share
    from h5rows.errors import ConfigError
    from h5rows.functions import inspect, pack, repack
    from h5rows.importers import open_source
    from h5rows.importers.files import FileSource
    from h5rows.meaning.choice import suggestion
    from h5rows.options import PackOptions
    from h5rows.packing.inspect import proposal
    from h5rows.probe import num_outputs, sample_shape
    from h5rows.reading.copies import files_of
    from h5rows.reading.fields import Fixed, open_field
    from h5rows.reading.folders import is_remote
    from h5rows.reading.opening import open_h5, shares_of, split_of
    from h5rows.reading.raw import ChunkCache
    from h5rows.reading.readers import Mapped
    from h5rows.reading.remote import fetch

# {module: its names}, imported when a name is first used: importing h5rows imports no library
MODULES = {
    "command": "run",
    "dataset": "Dataset open share",
    "errors": "ConfigError",
    "functions": "inspect pack repack",
    "importers": "open_source",
    "importers.files": "FileSource",
    "meaning.choice": "suggestion",
    "options": "PackOptions",
    "packing.inspect": "proposal",
    "probe": "num_outputs sample_shape",
    "reading.copies": "files_of",
    "reading.fields": "Fixed open_field",
    "reading.folders": "is_remote",
    "reading.opening": "open_h5 shares_of split_of",
    "reading.raw": "ChunkCache",
    "reading.readers": "Mapped",
    "reading.remote": "fetch",
}
NAMES = {name: module for module, names in MODULES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in NAMES:
        raise AttributeError(f"h5rows has no {name!r}; it has {', '.join(NAMES)}")
    return getattr(import_module(f"h5rows.{NAMES[name]}"), name)
