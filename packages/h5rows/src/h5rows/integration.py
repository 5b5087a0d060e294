"""Names for programs that are built on h5rows: `from h5rows.integration import open_h5`.

Input: the arguments of a data set, as in the program's config. Output: properties of fields that a model needs before
its data set is built, fields as arrays of rows, local copies of remote files, the command line.

Guarantees: only first_non_finite imports torch, so a program can use all others while it composes its config.

Errors: ConfigError. It names an argument as the program's user writes it: set `ConfigError.group = "data."` if the
arguments are keys of `data`.

    sample_shape, num_outputs, suggestion         of a file: shape of a sample, number of outputs, suggested x and y
    shares_of, fold_splits, split_of              the splits of a file, and the entry of one of them
    rows_in_share, fold_rows                      the rows of a split, and the fold of each row
    split_version                                 the version of the rule that chooses the rows of a split
    reading_once                                  read a column once for all splits
    first_non_finite                              the first inf or NaN of a data set with `gather` and `where`
    files_of, open_h5, open_field, Fixed          files, and one field of them; ChunkCache: its decoded chunks
    fetch                                         download all remote files
    PackOptions, open_source, FileSource          a source of samples as `pack` reads it
    keep_interrupts                               for the main program: no Ctrl-C is lost while HDF5 writes
    run, proposal, calling                        the command, its summary of a packed file, its name in messages
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h5rows.lazy_imports import lazy_getattr, names_of

if TYPE_CHECKING:
    from h5rows.command import run as run
    from h5rows.conventions.choice import suggestion as suggestion
    from h5rows.dataset import first_non_finite as first_non_finite
    from h5rows.importers import open_source as open_source
    from h5rows.importers.files import FileSource as FileSource
    from h5rows.interrupts import keep_interrupts as keep_interrupts
    from h5rows.options import PackOptions as PackOptions
    from h5rows.packing.inspect import proposal as proposal
    from h5rows.probe import num_outputs as num_outputs, sample_shape as sample_shape
    from h5rows.program import calling as calling
    from h5rows.reading.copies import files_of as files_of
    from h5rows.reading.fields import Fixed as Fixed, open_field as open_field
    from h5rows.reading.opening import open_h5 as open_h5, shares_of as shares_of, split_of as split_of
    from h5rows.reading.raw import ChunkCache as ChunkCache
    from h5rows.reading.remote import fetch as fetch
    from h5rows.reading.shared import reading_once as reading_once
    from h5rows.row_sets import split_version as split_version
    from h5rows.selection import fold_rows as fold_rows, fold_splits as fold_splits, rows_in_share as rows_in_share

__getattr__ = lazy_getattr(__name__, __file__)


def __dir__() -> list[str]:
    return sorted(names_of(__file__))
