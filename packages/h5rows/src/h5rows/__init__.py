"""Read rows of HDF5 files as PyTorch batches at memory speed, and convert other formats to HDF5 without loss.

Input: HDF5 files from any program, local or at a URL. Output: batches of named fields, from `Dataset` and `open`;
files that are fast to read in random order, from `write`, `pack` and `repack`; a description of a file, from `inspect`.
Programs that are built on this library import further names from `h5rows.integration`.

Guarantees: a batch contains exactly the bytes that h5py reads; if a storage layout is not known for certain, h5py reads
it. If a file changes while it is open, reading raises an error and never returns other data; a file that is truncated
while it is mapped kills the process (SIGBUS). A packed file has the same values, types, order, splits and text as its
source. A value that HDF5 cannot store, or that differs in type from the other samples, is refused, and the error names
its sample. Everything that is left out is counted and listed, and changes the exit status. No link out of a source is
followed. A killed pack leaves no incomplete file.

Errors: ConfigError, one line with the file, the field or sample, and the remedy.

Imports numpy and h5py, torch only to make batches, and nothing of the programs that use it.

    dataset, reading/       files -> batches
    selection               the rows of a split: shares, folds of a cross-validation
    row_sets                row numbers of a split, without an array of them
    probe                   shapes and number of classes of a file, without torch
    conventions/            conventions of MATLAB, netCDF, AnnData and others; suggestions for the fields x and y
    functions               the Python functions `write`, `pack`, `repack`, `inspect`
    command, program        the command line, `python -m h5rows`; how it is named in messages
    options, checks         the options of pack and repack; type checks of options
    account                 counts of the things that a pack contains and lacks
    source                  the interface between importers and the writer
    packing/                the writer, repacking, and the description of a file
    importers/              readers of folders of files, arrays, tables and text
    errors                  ConfigError, and messages for the errors of other libraries
    locks                   a lock between processes
    interrupts              Ctrl-C while HDF5 writes
    integration             names for programs that are built on this library
    lazy_imports            imports a package's public names on first use
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h5rows.lazy_imports import lazy_getattr, names_of

if TYPE_CHECKING:
    from h5rows.dataset import Dataset as Dataset, open as open
    from h5rows.errors import ConfigError as ConfigError
    from h5rows.functions import inspect as inspect, pack as pack, repack as repack, write as write

__version__ = "0.3.0"
__getattr__ = lazy_getattr(__name__, __file__)


def __dir__() -> list[str]:
    return sorted([*names_of(__file__), "__version__", "integration"])
