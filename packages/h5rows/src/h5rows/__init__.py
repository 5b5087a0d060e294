"""Rows of HDF5 files at the speed of memory, for PyTorch; other formats -> HDF5, each value kept or refused by name.

Given: files, here or behind an URL, as anybody's program has written them. Returned: batches of named fields, from
`Dataset` and `open`; files whose rows are laid out to be read at random, from `write`, `pack` and `repack`; what a file
is like, from `inspect`. A program that is built on this library finds the rest in `h5rows.integration`.

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
    importers/            readers of folders of files, arrays, tables and text
    engines, pages        names for programs that are built on this one; how a page imports its names
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h5rows.lazy_imports import lazy_getattr, names_of

if TYPE_CHECKING:
    from h5rows.dataset import Dataset as Dataset
    from h5rows.dataset import open as open
    from h5rows.errors import ConfigError as ConfigError
    from h5rows.functions import inspect as inspect
    from h5rows.functions import pack as pack
    from h5rows.functions import repack as repack
    from h5rows.functions import write as write

__version__ = "0.3.0"
__getattr__ = lazy_getattr(__name__, __file__)


def __dir__() -> list[str]:
    return sorted([*names_of(__file__), "__version__", "integration"])
