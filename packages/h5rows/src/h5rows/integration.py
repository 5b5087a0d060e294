"""What a program that is built on h5rows uses beside the seven names of its page: `from h5rows.integration import open_h5`.

Given: the arguments of a data set as the program's config has them. Returned: what a model must know of a field before
its data set is made, fields as rows of one dataset, the local copies of remote files, the command.

Promised: no name here imports torch but `share`, so a program may ask while it composes its config. ConfigError names
an argument as the program's user writes it: set `ConfigError.group = "data."` where the arguments are keys of `data`.

    sample_shape, num_outputs, suggestion         of a file: a sample's shape, the outputs of a model, x and y
    shares_of, split_of, share                    which rows a split has
    files_of, open_h5, open_field, Fixed          files, and one field of them; ChunkCache: its decoded chunks
    fetch                                         all remote files at once
    PackOptions, open_source, FileSource          a source of samples as `pack` reads it
    run, proposal                                 the command, and what it says of a packed file
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from h5rows.lazy_imports import lazy_getattr, names_of

if TYPE_CHECKING:
    from h5rows.command import run as run
    from h5rows.conventions.choice import suggestion as suggestion
    from h5rows.dataset import share as share
    from h5rows.importers import open_source as open_source
    from h5rows.importers.files import FileSource as FileSource
    from h5rows.options import PackOptions as PackOptions
    from h5rows.packing.inspect import proposal as proposal
    from h5rows.probe import num_outputs as num_outputs
    from h5rows.probe import sample_shape as sample_shape
    from h5rows.reading.copies import files_of as files_of
    from h5rows.reading.fields import Fixed as Fixed
    from h5rows.reading.fields import open_field as open_field
    from h5rows.reading.opening import open_h5 as open_h5
    from h5rows.reading.opening import shares_of as shares_of
    from h5rows.reading.opening import split_of as split_of
    from h5rows.reading.raw import ChunkCache as ChunkCache
    from h5rows.reading.remote import fetch as fetch

__getattr__ = lazy_getattr(__name__, __file__)


def __dir__() -> list[str]:
    return sorted(names_of(__file__))
