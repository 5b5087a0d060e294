"""Other formats -> HDF5, each value kept or refused by name.

Given: a source (`open_source`) and `PackOptions`, by `src/h5.py`. Returned: one file, or shards of it, whole or not at
all; a pack that was killed goes on where it stopped. Imports nothing of ranks and runs.

Promised: what is read back is what was given, bit for bit: types, order, splits, text. A value that HDF5
cannot hold, or that differs in kind from its neighbours, is refused with the sample that holds it. What is not taken
is counted and named, and in the exit status. Nothing outside of the source is read through a link. Each sample has the
same place whatever the number of processes.

Raised: ConfigError, with the file, the sample and the remedy.

    importers/                                  a reader for each format
    plan, encode, write, pool, file, journal    the writer
    repack, inspect, summary                    other layouts, what a file holds
    tree, copying, comparing, raw_values        all of an HDF5 file, in another
    account                                     what was left out
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from engine.pages import lazy

if TYPE_CHECKING:
    from engine.packing.encode import Encoding
    from engine.packing.importers import open_source
    from engine.packing.importers.base import printable
    from engine.packing.importers.images import FileSource
    from engine.packing.inspect import inspect_file
    from engine.packing.options import PackOptions
    from engine.packing.predictions import Part, Spec, assemble, check_target
    from engine.packing.repack import pack_encoded, repack_file
    from engine.packing.write import pack
else:
    __getattr__ = lazy(__name__, __file__)
